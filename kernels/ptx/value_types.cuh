// The two 16-bit element types. A kernel only moves them and names them to `mma` and `cvt`, it never computes in them.
// CUDA's <cuda_fp16.h> and <cuda_bf16.h>, two fifths of the time that nvcc took for a kernel, are not needed for that.
#pragma once

#include <cstdint>

namespace flashladder {

// IEEE binary16, as bits; the host's half.
struct fp16 {
    std::uint16_t bits;
};

// The upper half of a binary32, as bits; the host's bfloat16.
struct bf16 {
    std::uint16_t bits;
};

}  // namespace flashladder
