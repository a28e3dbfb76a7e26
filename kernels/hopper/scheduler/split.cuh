// Scheduler `split` (iteration 28): the blocks of a tile are dealt out to the CTAs of a cluster.
//
// Where there are fewer tiles than multiprocessors, the host launches a cluster of CTAs for each (hopper/plan.cpp); the
// CTA of rank r visits the r-th part of the blocks, in the order in which one CTA would visit all. Parts differ by one
// block at most, none is empty, and the block that may be ragged, which is visited first, is rank 0's. Without clusters
// this is `persistent`: a part is all blocks. With them a CTA has one tile.
#pragma once

#include "hopper/scheduler/persistent.cuh"
#include "ptx/cluster.cuh"

namespace flashladder::hopper {

struct Split : Persistent {
    __device__ __forceinline__ explicit Split(const HopperArgs &arguments) : Persistent(arguments) {
        at = static_cast<int>(blockIdx.x) / parts();
    }

    static __device__ __forceinline__ int parts() { return ptx::cluster_size(); }  // of a tile

    // Of the blocks of any tile, those of this CTA.
    static __device__ __forceinline__ Visits visits(const HopperArgs &args) {
        const int rank = ptx::cluster_rank();
        return {args.n_kv_blocks * rank / parts(), args.n_kv_blocks * (rank + 1) / parts()};
    }
};

}  // namespace flashladder::hopper
