// Epilogue `encoded` (iteration 11): the swizzle of O's fragments becomes signed strides.
//
// unit ^ (row % 8) with a fixed row changes by +2^i or -2^i when bit i of the unit is set, the sign being bit i of the
// row. Three strides per lane therefore encode every address of a row: sums instead of an XOR, a shift and an add each.
// Reading back reuses the copy offset that the lane already has for Q, K and V.
#pragma once

#include <cstdint>

#include "ampere/geometry.cuh"
#include "host/args.cuh"
#include "ptx/store.cuh"

namespace flashladder {

struct Encoded {
    // o: (m_tiles, o_n_tiles, 2) packed pairs of this warp's rows, g and g + 8 of each m-tile.
    template <typename Cta, int m_tiles, int n_tiles>
    static __device__ __forceinline__ void write(const Cta &cta, const FlashFwdArgs &args,
                                                 const std::uint32_t (&o)[m_tiles][n_tiles][2]) {
        using Layout = typename Cta::Layout;
        const std::uint32_t tile = cta.smem + Cta::smem_q;
        const int g = cta.lane / 4;  // row % 8 of every row that this lane holds
        const std::uint32_t base =
            tile + Layout::template offset<Cta::B_r>(cta.warp * Cta::rows_per_warp + g, 0) + cta.lane % 4 * 4;
        const int stride_1 = g & 1 ? -kUnitBytes : kUnitBytes;
        const int stride_2 = g & 2 ? -2 * kUnitBytes : 2 * kUnitBytes;
        const int stride_4 = g & 4 ? -4 * kUnitBytes : 4 * kUnitBytes;
        static_assert(n_tiles % 8 == 0, "eight 16-byte units in each 128-byte half");
        // No barrier before the first store: only this warp reads these rows of Q, and it has; no copy is under way.
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const std::uint32_t address =
                base + (n & 1 ? stride_1 : 0) + (n & 2 ? stride_2 : 0) + (n & 4 ? stride_4 : 0);
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
                for (int side = 0; side < n_tiles / 8; ++side) {
                    const int column = side * Layout::half_bytes(Cta::B_r);
                    const std::uint32_t first = address + m * kMmaM * Layout::row_bytes + column;
                    ptx::store_shared_4(first, o[m][side * 8 + n][0]);
                    ptx::store_shared_4(first + 8 * Layout::row_bytes, o[m][side * 8 + n][1]);
                }
            }
        }
        __syncthreads();  // a thread reads rows that other warps wrote
        const auto rows = Cta::o_gmem(args, Cta::copy_row(), Cta::copy_byte());
        Cta::template for_each_copy<Cta::B_r>([&](int row, int smem_offset, int gmem_offset) {
            const uint4 value = ptx::load_shared_16(tile + cta.copy_offset + smem_offset);
            Cta::store_global(rows.at(row) + gmem_offset, value);
        });
    }
};

}  // namespace flashladder
