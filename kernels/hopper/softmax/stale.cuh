// Softmax `stale` (iteration 26): a row keeps its maximum until a weight outgrows its limit.
//
// Like iteration 17 in another order: weights 2^(c S - m) are computed with the m in use, before any maximum is found.
// Their sums, which l needs anyway, are the test: no weight is above a sum that includes it. A lane sums each of its
// two rows in two parts, half of the block's keys each: with rows of 512 keys one sum of all keys is above the limit in
// every other block, though hardly any weight is. If a sum of any lane is above its row's limit, all 32 lanes find
// their largest scores. If a weight is above its limit, too, the rows take their true maximum, and P is computed again;
// l is rescaled at once, O when no product adds to it any more. S stays in its registers until the next product
// overwrites it.
//
// A tile's first blocks always update their maximum; they give the limits (Slots). Under the true maximum a row's
// largest weight is exactly 1; under a stale one it is rounded to 16 bits, and that error shows if it is a large
// part of the row's sum. So the limit is 2.5 / sqrt(seq_len) of the expected final sum, which is extrapolated from l so
// far, but at least 1 and at most 256, far below the 65504 that fp16 holds. A weight above its limit makes the row
// update its maximum.
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder::hopper {

struct Stale {
    static constexpr float most = 256.0f;
    static constexpr float share = 2.5f;

    // The largest allowed weight of each of the lane's two rows, after `seen` of `seq_len` keys.
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

    // Whether a sum of any lane of the warp is above its row's limit or NaN; the same in all lanes.
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

    // Updates m of each row; `grown` is the increase. If the block opens a tile, m is the maximum of this block alone.
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

    // Rescales l to the new m, and lowers the limit (to 1 at least). `factor` is for O, to which a product may still be
    // adding: O is multiplied by it later.
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
