// xor.b32, computed where it is written: `volatile` keeps the compiler from lifting it out of a loop.
//
// PTX ISA 9.0, 9.7.8.3. For values that cost one instruction to make and a register to keep.
#pragma once

#include <cstdint>

namespace flashladder::ptx {

__device__ __forceinline__ std::uint32_t xor_in_place(std::uint32_t a, std::uint32_t b) {
    std::uint32_t c;
    asm volatile("xor.b32 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

}  // namespace flashladder::ptx
