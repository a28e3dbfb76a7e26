// What warps with different parts need: one thread of a warp, barriers of some warps, registers handed over.
//
// One function per instruction; PTX ISA 9.0, 9.7.14.16 (elect.sync), 9.7.13.1 (barrier), 9.7.20.5 (setmaxnreg).
#pragma once

#include <cstdint>

namespace flashladder::ptx {

// True in one lane of a whole warp. `lane == 0` would do as well, but ptxas then wraps every copy in a loop that
// elects a lane (nvcc 13.0.88).
__device__ __forceinline__ bool elect_one() {
    std::uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(elected));
    return elected != 0;
}

// Lane 0's value, which the compiler then knows to be the same in all lanes.
__device__ __forceinline__ int uniform(int value) {
    return __shfl_sync(0xffffffffu, value, 0);
}

// Barrier 0 is __syncthreads; 1 to 15 are free. `threads` counts those that wait and those that only arrive.
__device__ __forceinline__ void barrier_sync(int barrier, int threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_arrive(int barrier, int threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// As barrier_sync of `threads` that all wait; whether any of them said `mine`, the same in all.
__device__ __forceinline__ bool barrier_any(int barrier, int threads, bool mine) {
    int any;
    asm volatile(
        "{\n.reg .pred mine, any;\nsetp.ne.b32 mine, %3, 0;\nbarrier.cta.red.or.aligned.pred any, %1, %2, mine;\n"
        "selp.b32 %0, 1, 0, any;\n}"
        : "=r"(any)
        : "r"(barrier), "r"(threads), "r"(static_cast<int>(mine))
        : "memory");
    return any != 0;
}

// All four warps of a warpgroup; what they had beyond `count` (a multiple of 8) goes to the CTA's pool.
template <int count>
__device__ __forceinline__ void release_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// All four warps of a warpgroup; waits until the pool holds what is missing to `count`.
template <int count>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace flashladder::ptx
