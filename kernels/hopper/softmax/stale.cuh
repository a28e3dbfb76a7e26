// Softmax `stale` (iteration 26): a row keeps its maximum until a score outgrows it.
//
// As iteration 17, but the other way round: S becomes x = c S - m with the m in use at once, then the lane looks at its
// largest x, of both its rows, and the warp votes. Only the test has to know the maximum, and only whether it is above
// the room, so that it is taken over the bits of x as integers: three at a time, without a shuffle. Where somebody's
// is, the rows agree on their true maximum, x is shifted by what m grew, and O and l are brought to it.
//
// How much a score may exceed m is decided once a tile, from its first block. The largest weight of a row is exactly 1
// under its true maximum and rounded to 16 bits under a stale one, which shows where it is a good part of the row's
// sum. So a weight that would be more than 2.5 / sqrt(seq_len) of what the sum will be is followed (l of the
// first block says how much that is), and no weight grows beyond 256: those of 16 bits would not hold it.
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder::hopper {

struct Stale {
    static constexpr float most_room = 8.0f;    // powers of two: P is at most 256
    static constexpr float log2_share = 1.32f;  // of 2.5 / sqrt(seq_len)

    // Powers of two by which a score of either row may exceed its m, after `seen` keys of `seq_len`.
    static __device__ __forceinline__ void decide(float (&room)[2], const RowStats<1> &stats, int seen, int seq_len) {
        RowStats<1> whole = stats;
        whole.reduce_l();
        const float keys = log2f(static_cast<float>(seen)) - 0.5f * log2f(static_cast<float>(seq_len));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            room[half] = fminf(fmaxf(log2f(whole.l[0][half]) - keys + log2_share, 0.0f), most_room);
        }
    }

    // S becomes x = scale S - m.
    template <int n_tiles>
    static __device__ __forceinline__ void shift(float (&s)[1][n_tiles][4], const RowStats<1> &stats, float scale) {
#pragma unroll
        for (int i = 0; i < n_tiles * 4; ++i) {
            s[0][i / 4][i % 4] = fmaf(s[0][i / 4][i % 4], scale, -stats.m[0][i / 2 % 2]);
        }
    }

    // Whether an x of the warp is above its row's room, or `anyhow`; the same in all lanes.
    template <int n_tiles>
    static __device__ __forceinline__ bool outgrown(const float (&x)[1][n_tiles][4], const float (&room)[2],
                                                    bool anyhow) {
        bool above = anyhow;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int most = 0;  // negative numbers are negative integers: which of them is larger does not matter
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                most = max(max(most, __float_as_int(x[0][n][half * 2])), __float_as_int(x[0][n][half * 2 + 1]));
            }
            above |= most > __float_as_int(room[half]);
        }
        return __any_sync(0xffffffffu, above);
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

    // O and l, which were summed under the m before; what room there was is used up by what m grew.
    template <int n_tiles>
    static __device__ __forceinline__ void rescale(float (&o)[1][n_tiles][4], RowStats<1> &stats,
                                                   const float (&grown)[2], float (&room)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            room[half] = fmaxf(room[half] - grown[half], 0.0f);
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
