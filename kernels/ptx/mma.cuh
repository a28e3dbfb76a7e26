// mma.m16n8k16: D(16x8) += A(16x16) B(16x8), 16-bit inputs, fp32 accumulators, one warp.
//
// Fragments (PTX ISA 9.0, 9.7.14.5.8), lane = 4 * g + t:
//   A: a[0] rows g, a[1] rows g + 8 at k 2t..2t+1; a[2], a[3] the same rows at k + 8
//   B: b0 at k 2t..2t+1, b1 at k + 8, column g
//   D: d[0..1] row g, d[2..3] row g + 8, columns 2t..2t+1
#pragma once

#include <cstdint>

#include "ptx/value_types.cuh"

namespace flashladder::ptx {

template <typename value_t>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1);

template <>
__device__ __forceinline__ void mma_m16n8k16<fp16>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                   std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<bf16>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                   std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace flashladder::ptx
