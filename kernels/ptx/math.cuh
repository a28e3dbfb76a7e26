// Approximate fp32 units and the 16-bit conversions; PTX ISA 9.0, 9.7.3 and 9.7.9.21.
#pragma once

#include <cstdint>

#include "ptx/value_types.cuh"

namespace flashladder::ptx {

// 2^x on the MUFU unit; at most 2 ulp off, subnormals flushed, ex2(-inf) = +0.
__device__ __forceinline__ float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x on the MUFU unit; at most 1 ulp off, subnormals flushed.
__device__ __forceinline__ float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two floats to one register of two 16-bit values, `low` in the low half, round to nearest even.
template <typename value_t>
__device__ __forceinline__ std::uint32_t pack(float low, float high);

template <>
__device__ __forceinline__ std::uint32_t pack<fp16>(float low, float high) {
    std::uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

template <>
__device__ __forceinline__ std::uint32_t pack<bf16>(float low, float high) {
    std::uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

}  // namespace flashladder::ptx
