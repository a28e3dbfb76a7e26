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

// O / l.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void normalize(float (&o)[m_tiles][n_tiles][4], RowStats<m_tiles> &stats) {
    stats.reduce_l();
#pragma unroll
    for (int i = 0; i < m_tiles * 2; ++i) {
        scale_row(o[i / 2], i % 2, ptx::rcp(stats.l[i / 2][i % 2]));
    }
}

template <int m_tiles, int n_tiles>
__device__ __forceinline__ void clear(float (&acc)[m_tiles][n_tiles][4]) {
#pragma unroll
    for (int i = 0; i < m_tiles * n_tiles * 4; ++i) {
        acc[i / (n_tiles * 4)][i / 4 % n_tiles][i % 4] = 0.0f;
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
