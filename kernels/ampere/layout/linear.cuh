// Layout `linear` (iteration 1): a tile is row-major in shared memory, 256-byte rows, nothing else.
//
// All rows start at bank 0. An ldmatrix phase reads one 16-byte unit of eight consecutive rows: the same four banks
// eight times, an 8-way conflict. That is what iteration 2 removes.
#pragma once

#include <cstdint>

#include "ampere/geometry.cuh"

namespace flashladder {

struct Linear {
    static constexpr int row_elements = 128;

    // Byte offset of 16-byte unit `unit` (0-15) of row `row`; the same in a tile of any number of rows.
    template <int /*rows*/>
    static __device__ __forceinline__ std::uint32_t offset(int row, int unit) {
        return (row * row_elements + unit * 8) * 2;  // eight elements a unit, two bytes an element
    }
};

}  // namespace flashladder
