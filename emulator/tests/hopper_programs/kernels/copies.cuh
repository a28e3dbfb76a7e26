#pragma once

// What it is: bulk copies and tensor copies (TMA) as CUDA functions, one instruction each.
// Why: a description of a tensor travels as 128 opaque bytes; the functions name its coordinates innermost first.
// Run: pytest tests/nvcc/test_hopper_programs.py

#include "barriers.cuh"

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

__device__ inline void bulk_load(void *shared, const void *global, int bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

__device__ inline void bulk_store(void *global, const void *shared, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}

// `OP` is the operation with its type, such as "add.u32"; of floats also "add.noftz.f16".
#define BULK_REDUCE(OP, global, shared, bytes)                                                              \
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." OP " [%0], [%1], %2;" ::"l"(global), \
                 "r"(shared_address(shared)), "r"(bytes)                                                    \
                 : "memory")

__device__ inline void commit_stores() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most N of the thread's latest groups have not been written.
template <int N>
__device__ inline void wait_stores() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

// Waits until at most N of the thread's latest groups have not read their sources.
template <int N>
__device__ inline void wait_reads() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

#define TENSOR_LOAD(D, COORDINATES, ...)                                                          \
    asm volatile("cp.async.bulk.tensor." #D                                                       \
                 "d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {" COORDINATES \
                 "}], [%2];" ::"r"(shared_address(shared)),                                       \
                 "l"(map), "r"(shared_address(barrier)), __VA_ARGS__                              \
                 : "memory")

__device__ inline void tensor_load(void *shared, const TensorMap *map, uint64_t *barrier, int x) {
    TENSOR_LOAD(1, "%3", "r"(x));
}

__device__ inline void tensor_load(void *shared, const TensorMap *map, uint64_t *barrier, int x, int y) {
    TENSOR_LOAD(2, "%3, %4", "r"(x), "r"(y));
}

__device__ inline void tensor_load(void *shared, const TensorMap *map, uint64_t *barrier, int x, int y, int z) {
    TENSOR_LOAD(3, "%3, %4, %5", "r"(x), "r"(y), "r"(z));
}

__device__ inline void tensor_load(void *shared, const TensorMap *map, uint64_t *barrier, int x, int y, int z, int w) {
    TENSOR_LOAD(4, "%3, %4, %5, %6", "r"(x), "r"(y), "r"(z), "r"(w));
}

__device__ inline void tensor_load(void *shared, const TensorMap *map, uint64_t *barrier, int x, int y, int z, int w,
                                   int v) {
    TENSOR_LOAD(5, "%3, %4, %5, %6, %7", "r"(x), "r"(y), "r"(z), "r"(w), "r"(v));
}

// Lands at the same offsets in every block that `mask` names, and signals the barrier of each.
__device__ inline void tensor_load_multicast(void *shared, const TensorMap *map, uint64_t *barrier, int x, int y,
                                             int mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(static_cast<short>(mask))
        : "memory");
}

__device__ inline void tensor_store(const TensorMap *map, const void *shared, int x) {
    asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%2}], [%1];" ::"l"(map),
                 "r"(shared_address(shared)), "r"(x)
                 : "memory");
}

__device__ inline void tensor_store(const TensorMap *map, const void *shared, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(shared_address(shared)), "r"(x), "r"(y)
                 : "memory");
}

__device__ inline void tensor_store(const TensorMap *map, const void *shared, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

// `OP` is one of add, min, max, inc, dec, and, or, xor; the type is the map's.
#define TENSOR_REDUCE(OP, map, shared, x, y)                             \
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta." OP \
                 ".bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),         \
                 "r"(shared_address(shared)), "r"(x), "r"(y)             \
                 : "memory")
