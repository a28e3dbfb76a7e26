// Softmax `exp2_stale` (iteration 17): a row keeps a stale maximum until a score exceeds it by more than `slack`, and a
// row that one key may dominate has no slack.
//
// softmax does not depend on the m that is subtracted, only the range of P does: with a slack of 2 P is at most 4. So a
// lane compares its own part of the row with the m in use, without a shuffle, and the warp votes once a block. Only
// where a score is above the slack, the rows concerned agree on their true maximum, and O and l are brought to it: 128
// multiplications a lane in every block become 32 in a few.
//
// Why 2, and not the 8 that range alone would allow, and why not for every row: the largest P of a row is a power of
// two, which 16 bits hold exactly, after the row was brought to its maximum, and is rounded below that. Where one key
// dominates, the rounding is seen. Such a row has a small sum: it is heavy while l, in units of its largest P, falls
// short of `weight` sqrt(S) times the part of the keys that it has seen. The m in use of a heavy row is its maximum
// less the slack, so that one comparison with one constant means no slack for a heavy row and a slack of 2 for a light
// one, and the common path does not know of weights. Which a row is, is decided where it is brought to its maximum; the
// last bit of m says it where m is below 2^10 in size: there the bit is less than what P's 16 bits can tell. Beyond,
// where it would bend every P of a row one way, a row is light and its m whole.
//
// On N(0,1) inputs the sum grows faster than sqrt(S): with a weight of 2 at every length, most rows of a short one are
// heavy, and S = 512 takes the time of its rescales. So short rows have less, and from 512 to 1023 keys they start
// light: a row that starts heavy is brought up by any score above its first block's, which half of all rows meet in the
// second, and eight rows go together. One that starts light is asked as any other when a score is above it by more than
// the slack. Where the maxima of its four lanes lie far apart a key may dominate the block: such a row starts heavy at
// any length, or the error of its rounding would be that of the whole row. In a trial on an H200 this brought 19 from
// 115.6 to 116.5 % of FA2 at S = 512, and its largest errors stayed as they were. Light starts from 512 keys on at
// every length gain 0.2 points at 1024 and none at 2048, and the maximum on N(0,1) is 1.15 times FA2's at
// S = 16384 instead of 1.09 (docs/decisions/024).
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder {

template <int d_head>
struct Exp2Stale {
    static constexpr float slack = 2.0f;  // powers of two, whole: 2^slack is exact in 16 bits
    static constexpr float apart = 4.0f;  // powers of two between a row's lanes, beyond which a key may dominate it

    // A light row's l at the end, in units of its largest P, over sqrt(S); S in blocks of `keys`.
    template <int keys>
    static __device__ __forceinline__ float weight(int n_kv_blocks) {
        return n_kv_blocks >= 1024 / keys ? 2.0f : n_kv_blocks >= 512 / keys ? 1.25f : 1.5f;
    }

    // Whether rows of this length start light where no key dominates the first block, or all start heavy.
    template <int keys>
    static __device__ __forceinline__ bool starts_light(int n_kv_blocks) {
        return n_kv_blocks >= 512 / keys && n_kv_blocks < 1024 / keys;
    }

    // c = log2(e) / sqrt(d_head); rsqrt.approx in PTX, folded to a constant by ptxas
    static __device__ __forceinline__ float scale() { return rsqrtf(static_cast<float>(d_head)) * kLog2E; }

    // Whether the last bit of m tells something: where m is small enough for it to be nothing beside P's 16 bits.
    static __device__ __forceinline__ bool marks(float m) { return fabsf(m) < 1024.0f; }

    // The m in use of a row whose maximum is `top`: below it by the slack if the row is heavy. The last bit says which.
    static __device__ __forceinline__ float light(float top) {
        return marks(top) ? __int_as_float(__float_as_int(top) & ~1) : top;
    }
    static __device__ __forceinline__ float heavy(float top) { return __int_as_float(__float_as_int(top - slack) | 1); }
    static __device__ __forceinline__ bool is_heavy(float m) { return marks(m) && (__float_as_int(m) & 1); }

    // Brings rows whose scores exceed m by more than the slack to their maximum, and says anew which of them are heavy;
    // rescale(m, half, factor) must do the same to what was summed under the old one. `RowStats::m` is c m here.
    template <int m_tiles, int s_tiles, typename Rescale>
    static __device__ __forceinline__ void follow(const float (&s)[m_tiles][s_tiles][4], RowStats<m_tiles> &stats,
                                                  int done, int n_kv_blocks, Rescale rescale) {
        float best[m_tiles][2];
        bool above[m_tiles][2];
        bool any = false;
#pragma unroll
        for (int i = 0; i < m_tiles * 2; ++i) {
            best[i / 2][i % 2] = lane_max(s[i / 2], i % 2);
            above[i / 2][i % 2] = fmaf(best[i / 2][i % 2], scale(), -stats.m[i / 2][i % 2]) > slack;
            any |= above[i / 2][i % 2];
        }
        if (!__any_sync(0xffffffffu, any)) {
            return;
        }
        constexpr int keys = s_tiles * 8;
        const float due = weight<keys>(n_kv_blocks) * static_cast<float>(done * keys) *
                          rsqrtf(static_cast<float>(n_kv_blocks * keys));
#pragma unroll
        for (int i = 0; i < m_tiles * 2; ++i) {
            if (__any_sync(0xffffffffu, above[i / 2][i % 2])) {  // eight rows: a lane's, over the warp
                float &m = stats.m[i / 2][i % 2];
                float &l = stats.l[i / 2][i % 2];
                const float top = fmaxf(is_heavy(m) ? m + slack : m, quad_max(best[i / 2][i % 2]) * scale());
                const float light_m = light(top);
                const float lighter = ptx::ex2(m - light_m);
                const float heavy_m = heavy(top);
                const float heavier = ptx::ex2(m - heavy_m);
                const bool becomes_heavy = quad_sum(l) * lighter < due && marks(heavy_m);
                const float correction = becomes_heavy ? heavier : lighter;
                m = becomes_heavy ? heavy_m : light_m;
                l *= correction;
                rescale(i / 2, i % 2, correction);
            }
        }
    }

    // One tile of S becomes P = 2^(c S - c m), and is added to l.
    template <int m_tiles>
    static __device__ __forceinline__ void exponentials(float (&s)[4], int m, RowStats<m_tiles> &stats) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            s[i] = ptx::ex2(fmaf(s[i], scale(), -stats.m[m][i / 2]));
        }
        stats.l[m][0] += s[0] + s[1];
        stats.l[m][1] += s[2] + s[3];
    }

    // S becomes P; l and O are brought to another maximum where it must be, or started by the first block.
    template <bool first_block, int m_tiles, int s_tiles, int o_tiles>
    static __device__ __forceinline__ void update(float (&s)[m_tiles][s_tiles][4], float (&o)[m_tiles][o_tiles][4],
                                                  RowStats<m_tiles> &stats, int done, int n_kv_blocks) {
        if constexpr (first_block) {
#pragma unroll
            for (int i = 0; i < m_tiles * 2; ++i) {
                const float lane = lane_max(s[i / 2], i % 2);
                const float best = quad_max(lane);
                const float least = -quad_max(-lane);
                const float top = best * scale();
                const bool alone = (best - least) * scale() > apart;
                const bool starts_heavy = marks(heavy(top)) && !(starts_light<s_tiles * 8>(n_kv_blocks) && !alone);
                stats.m[i / 2][i % 2] = starts_heavy ? heavy(top) : light(top);
            }
        } else {
            follow(s, stats, done, n_kv_blocks,
                   [&](int m, int half, float correction) { scale_row(o[m], half, correction); });
        }
#pragma unroll
        for (int i = 0; i < m_tiles * s_tiles; ++i) {
            exponentials(s[i / s_tiles][i % s_tiles], i / s_tiles, stats);
        }
    }

  private:
    // Maximum of this lane's elements of row `half`.
    template <int n_tiles>
    static __device__ __forceinline__ float lane_max(const float (&s)[n_tiles][4], int half) {
        float best = fmaxf(s[0][half * 2], s[0][half * 2 + 1]);
#pragma unroll
        for (int n = 1; n < n_tiles; ++n) {
            best = fmaxf(best, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
        }
        return best;
    }

    // The greatest of a quad's four values.
    static __device__ __forceinline__ float quad_max(float best) {
        best = fmaxf(best, ptx::shuffle_xor(best, 2));
        return fmaxf(best, ptx::shuffle_xor(best, 1));
    }

    // The sum of a quad's four values.
    static __device__ __forceinline__ float quad_sum(float sum) {
        sum += ptx::shuffle_xor(sum, 2);
        return sum + ptx::shuffle_xor(sum, 1);
    }
};

}  // namespace flashladder
