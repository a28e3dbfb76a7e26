// Layout `xor` (iteration 2): 16-byte units of a row are permuted by the row number, so columns spread over all banks.
//
// unit -> unit ^ (row % 8): eight rows of one column fall into eight different bank groups, and a row stays a row (it
// is only permuted within each 128-byte half). The address is computed at run time for every single access.
#pragma once

#include <cstdint>

#include "ampere/geometry.cuh"

namespace flashladder {

struct Xor {
    static constexpr int row_units = 16;

    // Byte offset of 16-byte unit `unit` (0-15) of row `row`; the same in a tile of any number of rows.
    template <int /*rows*/>
    static __device__ __forceinline__ std::uint32_t offset(int row, int unit) {
        const int swizzled = unit ^ (row % 8);
        return (row * row_units + swizzled) * kUnitBytes;
    }
};

}  // namespace flashladder
