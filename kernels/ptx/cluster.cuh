// CTAs of a cluster: who one is among them, where another's shared memory lies, and the barrier of all their threads.
//
// Without clusters a CTA is one of its own: rank 0 of 1. One function per instruction; PTX ISA 9.0, 10.16 and 10.17
// (special registers), 9.7.9.23 (mapa), 9.7.9.8 (ld), 9.7.9.11 (st), 9.7.13.4 (barrier.cluster).
#pragma once

#include <vector_types.h>
#include <cstdint>

namespace flashladder::ptx {

__device__ __forceinline__ int cluster_size() {
    int ctas;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ctas));
    return ctas;
}

__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Where the CTA of this rank has what this CTA has at `shared_address`.
__device__ __forceinline__ std::uint32_t cluster_map(std::uint32_t shared_address, int rank) {
    std::uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address), "r"(rank));
    return there;
}

__device__ __forceinline__ float2 load_cluster_8(std::uint32_t cluster_address) {
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(cluster_address) : "memory");
    return v;
}

__device__ __forceinline__ float4 load_cluster_16(std::uint32_t cluster_address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(cluster_address)
                 : "memory");
    return v;
}

// To this CTA's own shared memory: two floats, or four 16-bit elements.
__device__ __forceinline__ void store_shared_8(std::uint32_t shared_address, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared_address), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ void store_shared_8(std::uint32_t shared_address, std::uint32_t x, std::uint32_t y) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(shared_address), "r"(x), "r"(y) : "memory");
}

// A whole warp; what it has written is seen by whoever waits. Threads that have exited count as arrived.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// A whole warp, which has arrived: until all threads of the cluster have.
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace flashladder::ptx
