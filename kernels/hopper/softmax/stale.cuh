// Softmax `stale` (iteration 26): a row keeps its maximum until a weight outgrows its limit.
//
// As iteration 17, but the other way round: weights 2^(c S - m) are taken under the m in use at once, and nobody looks
// for a maximum. Their sums, which l needs anyway, tell enough: no weight is above the sum that it is part of. A lane
// sums each of its two rows in two parts, half of the block's keys each: one sum of all keys is above the limit in
// every other block of rows of 512 keys, though hardly a weight is. Where a sum of any lane is above its row's limit,
// all 32 look for their largest scores; where a weight of any is above the limit, too, the rows agree on their true
// maximum, and the block is weighed again; l is brought to it, O when no product adds to it any more. S stays as the
// product left it until the next one.
//
// How large a weight may grow is decided from a tile's first blocks, which follow their maximum anyway (Slots). The
// largest weight of a row is exactly 1 under its true maximum and rounded to 16 bits under a stale one, which shows
// where it is a good part of the row's sum. So a weight that would be more than 2.5 / sqrt(seq_len) of what the sum
// will be is followed (l of the blocks so far says how much that is), and none grows beyond 256, far below the 65504
// that fp16 holds.
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder::hopper {

struct Stale {
    static constexpr float most = 256.0f;
    static constexpr float share = 2.5f;

    // What a weight of either row may be, after `seen` keys of `seq_len`.
    static __device__ __forceinline__ void decide(float (&limit)[2], const RowStats<1> &stats, int seen, int seq_len) {
        RowStats<1> whole = stats;
        whole.reduce_l();
        const float of_l = __fdividef(share * sqrtf(static_cast<float>(seq_len)), static_cast<float>(seen));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            limit[half] = fminf(fmaxf(whole.l[0][half] * of_l, 1.0f), most);
        }
    }

    // P = 2^(scale S - m), and the sums of a lane's: of a row, of half of the keys.
    template <int n_tiles>
    static __device__ __forceinline__ void weigh(float (&p)[1][n_tiles][4], float (&sums)[2][2],
                                                 const float (&s)[1][n_tiles][4], const RowStats<1> &stats,
                                                 float scale) {
#pragma unroll
        for (int i = 0; i < n_tiles * 4; ++i) {
            p[0][i / 4][i % 4] = ptx::ex2(fmaf(s[0][i / 4][i % 4], scale, -stats.m[0][i / 2 % 2]));
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sums[half][0] = lane_sum<0, n_tiles / 2>(p[0], half);
            sums[half][1] = lane_sum<n_tiles / 2, n_tiles>(p[0], half);
        }
    }

    // Whether a sum of the warp's lanes is above its row's limit, or no number; the same in all lanes.
    static __device__ __forceinline__ bool suspicious(const float (&sums)[2][2], const float (&limit)[2]) {
        bool above = false;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            above |= !(sums[i / 2][i % 2] <= limit[i / 2]);
        }
        return __any_sync(0xffffffffu, above);
    }

    // Whether a weight of the warp is above its row's limit; the same in all lanes.
    template <int n_tiles>
    static __device__ __forceinline__ bool outgrown(const float (&s)[1][n_tiles][4], const RowStats<1> &stats,
                                                    float scale, const float (&limit)[2]) {
        bool above = false;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float largest = ptx::ex2(fmaf(lane_max(s[0], half), scale, -stats.m[0][half]));
            above |= !(largest <= limit[half]);
        }
        return __any_sync(0xffffffffu, above);
    }

    // Rows agree on their maximum: m grows by `grown`; of a tile that opens it is whatever the block's is.
    template <int n_tiles>
    static __device__ __forceinline__ void follow(const float (&s)[1][n_tiles][4], RowStats<1> &stats, float scale,
                                                  bool opens, float (&grown)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float found = row_max(s[0], half) * scale;
            float &m = stats.m[0][half];
            const float now = opens ? found : fmaxf(m, found);
            grown[half] = now - m;
            m = now;
        }
    }

    // l, which was summed under the m before, and what O, which may be in use, is to be multiplied by; the limit falls
    // by what m grew.
    static __device__ __forceinline__ void rescale(RowStats<1> &stats, const float (&grown)[2], float (&limit)[2],
                                                   float (&factor)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            factor[half] = ptx::ex2(-grown[half]);
            limit[half] = fmaxf(limit[half] * factor[half], 1.0f);
            stats.l[0][half] *= factor[half];
        }
    }
};

}  // namespace flashladder::hopper
