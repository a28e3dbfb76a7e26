// What is done to accumulators between products: P rounded for P V, the ragged block masked, O divided by its sums.
//
// They are in n8 tiles as mma.m16n8k16 has them (ptx/mma.cuh), wgmma's too: (m_tiles, n_tiles, 4) registers of a lane.
#pragma once

#include <cstdint>

#include "ampere/softmax/rows.cuh"
#include "hopper/geometry.cuh"
#include "ptx/math.cuh"

namespace flashladder::hopper {

// Byte offset of 16-byte unit `unit` (0-15) of row `row` in a tile of `rows` rows.
template <int rows>
__device__ __forceinline__ std::uint32_t swizzled(int row, int unit) {
    return unit / 8 * rows * kHalfRow + row * kHalfRow + ((unit % 8) ^ (row % 8)) * 16;
}

// P, rounded: the accumulators of n8 tiles 2 t and 2 t + 1 are the A fragment of k-step t, no lane gives any away.
template <typename value_t, int n_tiles>
__device__ __forceinline__ void pack_weights(std::uint32_t (&p)[n_tiles / 2][4], const float (&s)[1][n_tiles][4]) {
#pragma unroll
    for (int i = 0; i < n_tiles * 2; ++i) {
        const float (&pair)[4] = s[0][i / 2];
        p[i / 4][i % 4] = ptx::pack<value_t>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
    }
}

// Columns 16 t to 16 t + 15 of O, rounded, as stmatrix takes them: rows 0-7 and 8-15 of the left eight, then of the
// right.
template <typename value_t, int n_tiles>
__device__ __forceinline__ void pack_columns(std::uint32_t (&packed)[4], const float (&o)[n_tiles][4], int t) {
    packed[0] = ptx::pack<value_t>(o[2 * t][0], o[2 * t][1]);
    packed[1] = ptx::pack<value_t>(o[2 * t][2], o[2 * t][3]);
    packed[2] = ptx::pack<value_t>(o[2 * t + 1][0], o[2 * t + 1][1]);
    packed[3] = ptx::pack<value_t>(o[2 * t + 1][2], o[2 * t + 1][3]);
}

// O / l; 0 where l may be 0, because a row may see no key, and is.
template <bool may_be_empty, int m_tiles, int n_tiles>
__device__ __forceinline__ void normalize(float (&o)[m_tiles][n_tiles][4], RowStats<m_tiles> &stats) {
    stats.reduce_l();
#pragma unroll
    for (int i = 0; i < m_tiles * 2; ++i) {
        const float l = stats.l[i / 2][i % 2];
        scale_row(o[i / 2], i % 2, may_be_empty && l == 0.0f ? 0.0f : ptx::rcp(l));
    }
}

// The log-sum-exp of the rows of a warp that begin at `first` of its tensor's, those before `end`; l is of whole rows.
__device__ __forceinline__ void write_lse(float *of_head, int first, int end, int lane, const RowStats<1> &stats) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first + half * 8 + lane / 4;
        if (lane % 4 == 0 && row < end) {
            of_head[row] = (stats.m[0][half] + __log2f(stats.l[0][half])) * kLn2;
        }
    }
}

template <int m_tiles, int n_tiles>
__device__ __forceinline__ void clear(float (&acc)[m_tiles][n_tiles][4]) {
#pragma unroll
    for (int i = 0; i < m_tiles * n_tiles * 4; ++i) {
        acc[i / (n_tiles * 4)][i / 4 % n_tiles][i % 4] = 0.0f;
    }
}

// A block on the diagonal: the lane's upper row sees its columns up to `last`, the lower one eight more.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void mask_diagonal(float (&s)[m_tiles][n_tiles][4], int last) {
    const int own = last - threadIdx.x % 4 * 2;  // this lane's columns are 8 n + i % 2 behind its first
#pragma unroll
    for (int i = 0; i < m_tiles * n_tiles * 4; ++i) {
        const int n = i / 4 % n_tiles;
        float &score = s[i / (n_tiles * 4)][n][i % 4];
        score = 8 * n + i % 2 <= own + i % 4 / 2 * 8 ? score : kNegInf;
    }
}

// The ragged block: columns from `valid` on are no keys, their scores become -inf and their weights 0.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void mask_columns(float (&s)[m_tiles][n_tiles][4], int valid) {
    const int first = valid - threadIdx.x % 4 * 2;  // this lane's columns are 8 n + i % 2 behind its first
#pragma unroll
    for (int i = 0; i < m_tiles * n_tiles * 4; ++i) {
        const int n = i / 4 % n_tiles;
        float &score = s[i / (n_tiles * 4)][n][i % 4];
        score = 8 * n + i % 2 < first ? score : kNegInf;
    }
}

}  // namespace flashladder::hopper
