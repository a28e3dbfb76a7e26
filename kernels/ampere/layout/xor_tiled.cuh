// Layout `xor_tiled` (iteration 15): a tile is two tiles, each 64 elements (128 bytes) wide along d_head.
//
// A row of a tile is exactly the 128 bytes within which the XOR permutes, eight threads copy one row of one half, and a
// warp's global access covers four rows instead of two.
#pragma once

#include <cstdint>

#include "ampere/geometry.cuh"

namespace flashladder {

struct XorTiled {
    static constexpr int row_bytes = 128;
    static constexpr int threads_per_row = 8;  // lanes that copy one row of one half, 16 bytes each

    // Bytes between the two halves of d_head of a tile of `rows` rows.
    static __device__ constexpr int half_bytes(int rows) { return rows * row_bytes; }

    // Byte offset of 16-byte unit `unit` (0-15, of the whole row) of row `row` in a tile of `rows` rows.
    template <int rows>
    static __device__ __forceinline__ std::uint32_t offset(int row, int unit) {
        const int swizzled = (unit % 8) ^ (row % 8);
        return unit / 8 * half_bytes(rows) + row * row_bytes + swizzled * kUnitBytes;
    }
};

}  // namespace flashladder
