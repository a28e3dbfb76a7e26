// Scheduler `persistent` (iteration 25): one CTA a multiprocessor, which computes tile after tile.
//
// The grid is as many CTAs as run at once (host/launch.cpp), and CTA c computes tiles c, c + gridDim.x, c + 2
// gridDim.x, ...: blocks of rows run fastest, then heads, then samples, so that the CTAs of a moment share the K and V
// of a few heads in L2. Every warp counts for itself; nothing is handed out at run time, and two runs compute the same
// tiles in the same CTAs.
#pragma once

#include "hopper/args.cuh"
#include "hopper/tile.cuh"

namespace flashladder::hopper {

struct Persistent {
    static constexpr bool several = true;  // tiles of one CTA
    const HopperArgs &args;
    int at = static_cast<int>(blockIdx.x);  // number of the tile

    __device__ __forceinline__ explicit Persistent(const HopperArgs &arguments) : args(arguments) {}

    __device__ __forceinline__ int tiles() const { return args.n_q_blocks * args.n_heads * args.batch; }  // of all CTAs
    __device__ __forceinline__ bool valid() const { return at < tiles(); }
    __device__ __forceinline__ void next() { at += static_cast<int>(gridDim.x); }
    __device__ __forceinline__ Tile tile() const {
        const int row = at / args.n_q_blocks;  // of blocks: a head of a sample
        return {at % args.n_q_blocks, row % args.n_heads, row / args.n_heads};
    }
};

}  // namespace flashladder::hopper
