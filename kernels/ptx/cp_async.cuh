// cp.async: 16 bytes from global to shared memory without passing through registers (sm_80 and later).
//
// Why: a warp issues a whole tile and computes while it arrives. One function per instruction; PTX ISA 9.0, 9.7.9.25.
#pragma once

#include <cstdint>

namespace flashladder::ptx {

// Copies 16 bytes; `.cg` keeps them out of L1 (a tile is read once per CTA), the 128-byte L2 prefetch fetches the line.
__device__ __forceinline__ void cp_async_16(std::uint32_t shared_address, const void *global_pointer) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address), "l"(global_pointer)
                 : "memory");
}

// Closes the group of copies that this thread has issued since the last commit.
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` of this thread's groups are still under way. Other threads' copies need a barrier too.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace flashladder::ptx
