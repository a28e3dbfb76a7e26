// Softmax `exp2_stale` (iteration 17): a row keeps a stale maximum until a score exceeds it by more than `slack`.
//
// softmax does not depend on the m that is subtracted, only the range of P does: with a slack of 1.5 P is at most 2.83.
// So a lane compares its own part of the row with the m in use, without a shuffle, and the warp votes once a block.
// Only where a score is above the slack, the rows concerned agree on their true maximum, and O and l are brought to it:
// 128 multiplications a lane in every block become 32 in a few.
//
// Why 1.5, and not the 8 that range alone would allow: the largest P of a row is exactly 1 after the row was brought to
// its maximum, and rounded to 16 bits below that. Where one key dominates, the rounding is seen. On N(0,1) inputs the
// maximum error over FA2's is up to 1.68 at 8, 1.20 at 2 and 1.18 at 1 (fp16, H200, five lengths, up to five
// seeds each, 2026-11-22; docs/decisions/024), the speed 118.0, 116.8 and 115.4 % of FA2 (S = 4096). At 2 a short row
// of many heads broke the rule of the check in bf16.
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder {

template <int d_head>
struct Exp2Stale {
    static constexpr float slack = 1.5f;  // powers of two

    // c = log2(e) / sqrt(d_head); rsqrt.approx in PTX, folded to a constant by ptxas
    static __device__ __forceinline__ float scale() { return rsqrtf(static_cast<float>(d_head)) * kLog2E; }

    // Brings rows whose scores exceed c m by more than the slack to their maximum; rescale(m, half, factor) must do the
    // same to what was summed under the old one. `RowStats::m` is c m here. It may be -inf: every row is brought then.
    template <int m_tiles, int s_tiles, typename Rescale>
    static __device__ __forceinline__ void follow(const float (&s)[m_tiles][s_tiles][4], RowStats<m_tiles> &stats,
                                                  Rescale rescale) {
        float best[m_tiles][2];
        bool above[m_tiles][2];
        bool any = false;
#pragma unroll
        for (int i = 0; i < m_tiles * 2; ++i) {
            float &b = best[i / 2][i % 2];
            b = lane_max(s[i / 2], i % 2);
            above[i / 2][i % 2] = fmaf(b, scale(), -stats.m[i / 2][i % 2]) > slack;
            any |= above[i / 2][i % 2];
        }
        if (!__any_sync(0xffffffffu, any)) {
            return;
        }
#pragma unroll
        for (int i = 0; i < m_tiles * 2; ++i) {
            if (__any_sync(0xffffffffu, above[i / 2][i % 2])) {  // eight rows: a lane's, over the warp
                float &m = stats.m[i / 2][i % 2];
                const float m_new = fmaxf(m, quad_max(best[i / 2][i % 2]) * scale());
                const float correction = ptx::ex2(m - m_new);
                m = m_new;
                stats.l[i / 2][i % 2] *= correction;
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
                                                  RowStats<m_tiles> &stats) {
        if constexpr (first_block) {
#pragma unroll
            for (int i = 0; i < m_tiles * 2; ++i) {
                stats.m[i / 2][i % 2] = row_max(s[i / 2], i % 2) * scale();
            }
        } else {
            follow(s, stats, [&](int m, int half, float correction) { scale_row(o[m], half, correction); });
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
};

}  // namespace flashladder
