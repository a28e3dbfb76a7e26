// Row statistics of the online softmax, shared by its variants.
//
// S and O are held as mma accumulators: a lane has two rows of every m-tile (elements 0, 1 and 2, 3), and the four
// lanes of a quad share a row. m is the running maximum of a row, l this lane's part of the running sum of
// exponentials: only the maximum must be agreed within the quad for every block, l is summed over the quad once, at the
// end. Milakov and Gimelshein 2018 (arXiv:1805.02867); Dao 2023 (arXiv:2307.08691), algorithm 1.
#pragma once

#include "ptx/math.cuh"
#include "ptx/shuffle.cuh"

namespace flashladder {

constexpr float kNegInf = -__builtin_huge_valf();
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.693147180559945309417f;

template <int m_tiles>
struct RowStats {
    float m[m_tiles][2];  // running row maximum of S: scaled in `exp` and the stale ones, as mma left it in the others
    float l[m_tiles][2];  // running sum of the exponentials over this lane's columns

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < m_tiles * 2; ++i) {
            m[i / 2][i % 2] = kNegInf;
            l[i / 2][i % 2] = 0.0f;
        }
    }

    // l of whole rows: the quad's four parts added.
    __device__ __forceinline__ void reduce_l() {
#pragma unroll
        for (int i = 0; i < m_tiles * 2; ++i) {
            float &sum = l[i / 2][i % 2];
            sum += ptx::shuffle_xor(sum, 2);
            sum += ptx::shuffle_xor(sum, 1);
        }
    }
};

// Maximum of this lane's elements of row `half` of one m-tile. Pairs first, here and in sums: the chain of dependent
// instructions is half as long.
template <int n_tiles>
__device__ __forceinline__ float lane_max(const float (&s)[n_tiles][4], int half) {
    float best = fmaxf(s[0][half * 2], s[0][half * 2 + 1]);
#pragma unroll
    for (int n = 1; n < n_tiles; ++n) {
        best = fmaxf(best, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
    }
    return best;
}

// Maximum of row `half` of one m-tile over the block's columns, agreed within the quad.
template <int n_tiles>
__device__ __forceinline__ float row_max(const float (&s)[n_tiles][4], int half) {
    float best = lane_max(s, half);
    best = fmaxf(best, ptx::shuffle_xor(best, 2));
    return fmaxf(best, ptx::shuffle_xor(best, 1));
}

// Sum of this lane's elements of row `half`, of the tiles from `first` to the one before `end`.
template <int first, int end, int n_tiles>
__device__ __forceinline__ float lane_sum(const float (&p)[n_tiles][4], int half) {
    float sum = p[first][half * 2] + p[first][half * 2 + 1];
#pragma unroll
    for (int t = first + 1; t < end; ++t) {
        sum += p[t][half * 2] + p[t][half * 2 + 1];
    }
    return sum;
}

// Sum of this lane's elements of row `half`, added to `sum`.
template <int n_tiles>
__device__ __forceinline__ float row_sum(const float (&p)[n_tiles][4], int half, float sum) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
        sum += p[n][half * 2] + p[n][half * 2 + 1];
    }
    return sum;
}

// Row `half` of one m-tile times a factor.
template <int n_tiles>
__device__ __forceinline__ void scale_row(float (&o)[n_tiles][4], int half, float factor) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
        o[n][half * 2] *= factor;
        o[n][half * 2 + 1] *= factor;
    }
}

}  // namespace flashladder
