// A lane's ldmatrix addresses in a tile whose place is known at run time only: a stage of a ring.
//
// As `LaneAddresses` of flash_fwd_static_offsets.cuh, without a type per tile: one register per operand, the XOR where
// it is used (docs/decisions/007).
#pragma once

#include <cstdint>

#include "ampere/geometry.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/logic.cuh"

namespace flashladder {

// ldmatrix address of row group `group` (16 rows) and column tile `tile` (16 columns) in a tile of `rows` rows whose
// group 0, column tile 0 this lane reads at `first`.
template <typename Layout, int rows>
__device__ __forceinline__ std::uint32_t lane_address(std::uint32_t first, int group, int tile) {
    constexpr int per_half = 4;  // column tiles in 128 bytes
    const std::uint32_t swizzled = tile % per_half ? ptx::xor_in_place(first, tile % per_half * 2 * kUnitBytes) : first;
    return swizzled + tile / per_half * Layout::half_bytes(rows) + group * 16 * Layout::row_bytes;
}

// Fragments of k-tile t where k runs along d_head: A of Q (groups = m_tiles), B of K (groups = pairs of n-tiles).
template <typename Layout, int rows, int groups>
struct AlongColumns {
    const std::uint32_t first;

    __device__ __forceinline__ void load(std::uint32_t (&regs)[groups][4], int t) const {
#pragma unroll
        for (int group = 0; group < groups; ++group) {
            ptx::ldmatrix_x4(regs[group], lane_address<Layout, rows>(first, group, t));
        }
    }
};

// B fragments of k-tile t where k runs along the rows of V, transposed on the way.
template <typename Layout, int rows, int pairs>
struct AlongRows {
    const std::uint32_t first;

    __device__ __forceinline__ void load(std::uint32_t (&regs)[pairs][4], int t) const {
#pragma unroll
        for (int pair = 0; pair < pairs; ++pair) {
            ptx::ldmatrix_x4_trans(regs[pair], lane_address<Layout, rows>(first, t, pair));
        }
    }
};

}  // namespace flashladder
