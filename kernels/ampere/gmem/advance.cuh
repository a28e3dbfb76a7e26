// Global access `advance` (iteration 1): a pointer per thread that walks through K or V, block after block.
//
// Row addresses are pointer + row x stride with a stride known at run time: one 32 x 32 + 64-bit multiply-add each.
#pragma once

#include <cstdint>

namespace flashladder {

struct Advance {
    const char *pointer;   // this thread's first 16 bytes of the current tile
    const int row_stride;  // bytes

    // base: first byte of tile 0; thread_row, thread_byte: what this thread copies first.
    __device__ __forceinline__ Advance(const char *base, int stride, int thread_row, int thread_byte)
        : pointer(base + static_cast<std::int64_t>(thread_row) * stride + thread_byte), row_stride(stride) {}

    __device__ __forceinline__ const char *at(int row) const {
        return pointer + static_cast<std::int64_t>(row) * row_stride;
    }

    // Called before and after a tile is copied; the tiles come in order, so only the second has to do anything.
    template <int rows>
    __device__ __forceinline__ void seek(int /*block*/) {}

    template <int rows>
    __device__ __forceinline__ void next() {
        pointer += static_cast<std::int64_t>(rows) * row_stride;
    }
};

}  // namespace flashladder
