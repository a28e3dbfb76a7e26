// Who a thread is: its consumer warpgroup, its warp in it, its lane; the same number in all lanes where it may be.
#pragma once

#include "hopper/geometry.cuh"
#include "ptx/roles.cuh"

namespace flashladder::hopper {

struct Warp {
    const int group;  // consumer warpgroup, from 0
    const int warp;   // in the warpgroup
    const int lane;

    // `before`: warpgroups of the CTA in front of the first consumer.
    __device__ __forceinline__ explicit Warp(int before)
        : group(ptx::uniform(threadIdx.x / kWarpgroup) - before),
          warp(ptx::uniform(threadIdx.x % kWarpgroup / kWarp)),
          lane(threadIdx.x % kWarp) {}

    // Named barriers: 0 is __syncthreads, 1 and 2 are turns (roles/ping_pong.cuh), then one of each warpgroup alone.
    __device__ __forceinline__ int own_barrier() const { return 3 + group; }

    // Then one of all `n_consumers` warpgroups.
    __device__ __forceinline__ int consumers_barrier(int n_consumers) const { return 3 + n_consumers; }
};

}  // namespace flashladder::hopper
