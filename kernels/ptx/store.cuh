// Stores and loads of the epilogue: 4 bytes to shared memory, 16 bytes from shared and to global memory.
//
// One function per instruction; PTX ISA 9.0, 9.7.9.8 (ld) and 9.7.9.11 (st).
#pragma once

#include <vector_types.h>
#include <cstdint>

namespace flashladder::ptx {

__device__ __forceinline__ void store_shared_4(std::uint32_t shared_address, std::uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared_address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared_16(std::uint32_t shared_address, int x, int y, int z, int w) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

__device__ __forceinline__ uint4 load_shared_16(std::uint32_t shared_address) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(shared_address)
                 : "memory");
    return v;
}

// The default policy, write-back: L1 may keep a copy of the line.
__device__ __forceinline__ void store_global_16(void *pointer, uint4 v) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// O is written once and never read again by this kernel: no line of L1 is spent on it.
__device__ __forceinline__ void store_global_16_no_allocate(void *pointer, uint4 v) {
    asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

}  // namespace flashladder::ptx
