// Layout `xor_static` (iteration 8): the bytes lie as in `xor`, but a lane knows its addresses before the main loop.
//
// A lane always touches rows that are equal modulo 8 (its fragment rows step by 16, its copy rows by a multiple of 8),
// so row % 8 is a constant of the lane. Within a 128-byte half the XOR then takes four values per lane (one per
// k-tile); they are computed once, and everything else (half, row group, operand) is an immediate offset of the
// instruction.
#pragma once

#include <cstdint>

#include "ampere/geometry.cuh"

namespace flashladder {

struct XorStatic {
    static constexpr int row_bytes = 256;
    static constexpr int threads_per_row = 16;  // lanes that copy one row, 16 bytes each

    // Bytes between the two 128-byte halves of d_head of a tile of `rows` rows.
    static __device__ constexpr int half_bytes(int /*rows*/) { return 128; }

    // Byte offset of 16-byte unit `unit` (0-15) of row `row` in a tile of `rows` rows.
    template <int rows>
    static __device__ __forceinline__ std::uint32_t offset(int row, int unit) {
        const int swizzled = unit ^ (row % 8);
        return row * row_bytes + swizzled * kUnitBytes;
    }
};

}  // namespace flashladder
