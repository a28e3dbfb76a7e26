// Tensor copies (TMA): one thread names a box of a tensor map, the copy engine moves and swizzles it.
//
// The maps of this project have five axes (hopper/args.cuh): a box begins at element 0 of the first half of d_head, at
// a row, a head and a sample. Those of packed sequences are others. One function per instruction; PTX
// ISA 9.0, 9.7.9.27.
#pragma once

#include <cstdint>

#include "hopper/args.cuh"

namespace flashladder::ptx {

// Box to shared memory; `barrier` is told of the bytes as they land, zeros outside of the tensor among them.
__device__ __forceinline__ void tma_load(std::uint32_t shared_address, const TensorMap &map, std::uint32_t barrier,
                                         int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %3, %5, %6}], [%2];" ::"r"(shared_address),
        "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

// The same of a map of packed sequences: half of d_head from `column` on, and the sequence that ends before row `end`.
__device__ __forceinline__ void tma_load_packed(std::uint32_t shared_address, const TensorMap &map,
                                                std::uint32_t barrier, int column, int row, int head, int end) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address),
        "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(kPackedEnd), "r"(end)
        : "memory");
}

__device__ __forceinline__ void tma_store_packed(const TensorMap &map, std::uint32_t shared_address, int column,
                                                 int row, int head, int end) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
        "r"(shared_address), "r"(column), "r"(row), "r"(head), "r"(kPackedEnd), "r"(end)
        : "memory");
}

// Shared memory to a box, of which only what is inside of the tensor is written.
__device__ __forceinline__ void tma_store(const TensorMap &map, std::uint32_t shared_address, int row, int head,
                                          int batch) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %2, %4, %5}], [%1];" ::"l"(&map),
        "r"(shared_address), "r"(0), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

// Closes the group of stores that this thread has issued since the last commit.
__device__ __forceinline__ void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most `pending` of this thread's groups still read shared memory.
template <int pending>
__device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// Shows this thread's writes to shared memory to copies and wgmma; other threads' copies need a barrier besides.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Fetches the 128 bytes of a map, which the first copy would wait for.
__device__ __forceinline__ void prefetch_map(const TensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace flashladder::ptx
