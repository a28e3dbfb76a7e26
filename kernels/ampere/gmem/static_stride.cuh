// Global access `static_stride` (iteration 16): the distance between two rows is a constant of the kernel.
//
// Every row of a tile is then one pointer plus a constant: no multiply-add per row, no register for a stride. Only the
// first row of Q and O still asks for the argument. The host refuses tensors with another sequence stride (checks.h).
#pragma once

#include <cstdint>

namespace flashladder {

template <int seq_stride /* elements */>
struct StaticStride {
    static constexpr int row_stride = seq_stride * 2;  // bytes
    static_assert(seq_stride % 8 == 0, "rows start at 16-byte boundaries");
    static_assert(seq_stride > 0 && seq_stride < (1 << 22), "256 rows of it, in bytes, fit an int");

    const char *const first;  // this thread's first 16 bytes of tile 0
    const char *pointer;      // the same of the current tile

    // base: first byte of tile 0; thread_row, thread_byte: what this thread copies first.
    __device__ __forceinline__ StaticStride(const char *base, int /*stride*/, int thread_row, int thread_byte)
        : first(base + thread_row * row_stride + thread_byte), pointer(first) {}

    __device__ __forceinline__ const char *at(int row) const { return pointer + row * row_stride; }

    // Called before and after a tile is copied; the first alone decides which one.
    template <int rows>
    __device__ __forceinline__ void seek(int block) {
        pointer = first + static_cast<std::int64_t>(block) * (rows * row_stride);
    }

    template <int rows>
    __device__ __forceinline__ void next() {}
};

}  // namespace flashladder
