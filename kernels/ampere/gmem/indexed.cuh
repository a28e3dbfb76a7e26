// Global access `indexed` (iteration 12): the block's number gives its address, nothing is carried from block to block.
//
// K and V can then be walked in any order, which iteration 13 needs.
#pragma once

#include <cstdint>

namespace flashladder {

struct Indexed {
    const char *const first;  // this thread's first 16 bytes of tile 0
    const char *pointer;      // the same of the current tile
    const int row_stride;     // bytes

    // base: first byte of tile 0; thread_row, thread_byte: what this thread copies first.
    __device__ __forceinline__ Indexed(const char *base, int stride, int thread_row, int thread_byte)
        : first(base + static_cast<std::int64_t>(thread_row) * stride + thread_byte),
          pointer(first),
          row_stride(stride) {}

    __device__ __forceinline__ const char *at(int row) const {
        return pointer + static_cast<std::int64_t>(row) * row_stride;
    }

    // Called before and after a tile is copied; the first alone decides which one.
    template <int rows>
    __device__ __forceinline__ void seek(int block) {
        pointer = first + static_cast<std::int64_t>(block * rows) * row_stride;
    }

    template <int rows>
    __device__ __forceinline__ void next() {}
};

}  // namespace flashladder
