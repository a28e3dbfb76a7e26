// mbarrier: a 64-bit word of shared memory that counts arrivals, and bytes of copies under way, phase by phase.
//
// A phase ends when nobody is missing and no byte is outstanding; a waiter names the parity of the phase it waits for.
// The plain forms only: `.acquire.cluster` and `.release.cluster` cost a cache invalidation or a GPU-wide fence each
// (nvcc 13.0.88, sm_90a). One function per instruction; PTX ISA 9.0, 9.7.13.15.
#pragma once

#include <cstdint>

namespace flashladder::ptx {

__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Shows the inits to the copy engine; other threads need a barrier besides.
__device__ __forceinline__ void mbarrier_fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival, and so many bytes that must land before the phase ends.
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Returns when the phase of this parity has ended. try_wait suspends the thread for a while: no busy polling.
__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

}  // namespace flashladder::ptx
