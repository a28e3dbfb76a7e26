// Softmax `stale` (iteration 26): a row keeps its maximum until a score exceeds it by more than `slack`.
//
// As iteration 17, but the other way round: S becomes x = c S - m with the m in use at once, then the lane looks at its
// largest x, of both its rows, and the warp votes. Only the test has to know the maximum, and only whether it is above
// the slack, so that it is taken over the bits of x as integers: three at a time, without a shuffle. Where somebody's
// is, the rows agree on their true maximum, x is shifted by what m grew, and O and l are brought to it.
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder::hopper {

struct Stale {
    static constexpr float slack = 8.0f;  // powers of two: P is at most 256, in range for fp16

    // S becomes x = scale S - m.
    template <int n_tiles>
    static __device__ __forceinline__ void shift(float (&s)[1][n_tiles][4], const RowStats<1> &stats, float scale) {
#pragma unroll
        for (int i = 0; i < n_tiles * 4; ++i) {
            s[0][i / 4][i % 4] = fmaf(s[0][i / 4][i % 4], scale, -stats.m[0][i / 2 % 2]);
        }
    }

    // Whether an x of the warp is above the slack, or `anyhow`; the same in all lanes.
    template <int n_tiles>
    static __device__ __forceinline__ bool outgrown(const float (&x)[1][n_tiles][4], bool anyhow) {
        int most = __float_as_int(x[0][0][0]);  // of negative numbers any, which is all that the test asks
#pragma unroll
        for (int i = 1; i < n_tiles * 4 - 1; i += 2) {
            const int one = __float_as_int(x[0][i / 4][i % 4]), other = __float_as_int(x[0][(i + 1) / 4][(i + 1) % 4]);
            most = max(max(most, one), other);
        }
        most = max(most, __float_as_int(x[0][n_tiles - 1][3]));
        return __any_sync(0xffffffffu, most > __float_as_int(slack) || anyhow);
    }

    // Rows agree on their maximum: m grows by `grown`, x falls by it; of a tile that opens it may be below 0.
    template <int n_tiles>
    static __device__ __forceinline__ void follow(float (&x)[1][n_tiles][4], RowStats<1> &stats, bool opens,
                                                  float (&grown)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float most = row_max(x[0], half);
            grown[half] = opens ? most : fmaxf(most, 0.0f);
            stats.m[0][half] += grown[half];
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                x[0][n][half * 2] -= grown[half];
                x[0][n][half * 2 + 1] -= grown[half];
            }
        }
    }

    // O and l, which were summed under the m before.
    template <int n_tiles>
    static __device__ __forceinline__ void rescale(float (&o)[1][n_tiles][4], RowStats<1> &stats,
                                                   const float (&grown)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float factor = ptx::ex2(-grown[half]);
            stats.l[0][half] *= factor;
            scale_row(o[0], half, factor);
        }
    }

    // x becomes P = 2^x, and is added to l.
    template <int n_tiles>
    static __device__ __forceinline__ void exponentials(float (&x)[1][n_tiles][4], RowStats<1> &stats) {
#pragma unroll
        for (int i = 0; i < n_tiles * 4; ++i) {
            x[0][i / 4][i % 4] = ptx::ex2(x[0][i / 4][i % 4]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            stats.l[0][half] = row_sum(x[0], half, stats.l[0][half]);
        }
    }
};

}  // namespace flashladder::hopper
