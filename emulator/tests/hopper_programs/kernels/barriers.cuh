#pragma once

// What it is: mbarriers, clusters, fences and roles as CUDA functions, one instruction each (a wait: a loop of one).
// Why: the programs of this folder are about these instructions, and CUDA C++ has no plain words for them.
// Run: pytest tests/nvcc/test_hopper_programs.py

#include <cstdint>

__device__ inline uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void init(uint64_t *barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ inline void invalidate(uint64_t *barrier) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Makes the initialisation of barriers visible to the cluster and to the async proxy.
__device__ inline void fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline uint64_t arrive(uint64_t *barrier) {
    uint64_t state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(shared_address(barrier)) : "memory");
    return state;
}

__device__ inline uint64_t arrive(uint64_t *barrier, int count) {
    uint64_t state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(state)
                 : "r"(shared_address(barrier)), "r"(count)
                 : "memory");
    return state;
}

__device__ inline uint64_t arrive_no_complete(uint64_t *barrier, int count) {
    uint64_t state;
    asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(state)
                 : "r"(shared_address(barrier)), "r"(count)
                 : "memory");
    return state;
}

__device__ inline void arrive_drop(uint64_t *barrier) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive_drop.shared::cta.b64 s, [%0]; }" ::"r"(shared_address(barrier))
                 : "memory");
}

__device__ inline void expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ inline void complete(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ inline void arrive_expect(uint64_t *barrier, int bytes) {
    asm volatile(
        "{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

__device__ inline bool try_wait(uint64_t *barrier, int parity) {
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return done != 0;
}

__device__ inline void wait(uint64_t *barrier, int parity) {
    while (!try_wait(barrier, parity)) {
    }
}

__device__ inline bool test_wait(uint64_t *barrier, uint64_t state) {
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "l"(state)
                 : "memory");
    return done != 0;
}

__device__ inline uint32_t pending_count(uint64_t state) {
    uint32_t count;
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(count) : "l"(state));
    return count;
}

// The barrier's place in the cluster's window of another block.
__device__ inline uint32_t in_block(const void *pointer, int rank) {
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(pointer)), "r"(rank));
    return address;
}

__device__ inline void arrive_remote(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void arrive_expect_remote(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ inline void wait_cluster(uint64_t *barrier, int parity) {
    uint32_t done;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
            "selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!done);
}

__device__ inline void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ inline void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ inline void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

__device__ inline uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ inline uint32_t load_remote(uint32_t address) {
    uint32_t value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

__device__ inline void store_remote(uint32_t address, uint32_t value) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ inline bool elect_one() {
    uint32_t chosen;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
    return chosen != 0;
}

__device__ inline void barrier_sync(int number, int threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ inline void barrier_arrive(int number, int threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

template <int REGISTERS>
__device__ inline void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ inline void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
