// Scheduler `paired` (iteration 31): a CTA computes tiles in pairs of one head, a long one and a short one.
//
// Under a causal mask the tile at block i of n sees i + 1 blocks of K. Tiles i and n - 1 - i together always see n + 1:
// every CTA gets the same work. Pairs of a head follow each other, so that the CTAs of a moment share the K and V of a
// few heads in L2, and they reach the ends of their tiles at different times.
#pragma once

#include "hopper/args.cuh"
#include "hopper/tile.cuh"

namespace flashladder::hopper {

struct Paired {
    static constexpr bool several = true;  // tiles of one CTA
    const HopperArgs &args;
    int pair = static_cast<int>(blockIdx.x);  // its number
    bool second = false;                      // the short tile of it

    __device__ __forceinline__ explicit Paired(const HopperArgs &arguments) : args(arguments) {}

    // Pairs of a head; with an odd number of tiles the one in the middle is alone.
    __device__ __forceinline__ int of_head() const { return (args.n_q_blocks + 1) / 2; }
    __device__ __forceinline__ int place() const { return pair % of_head(); }
    __device__ __forceinline__ bool valid() const { return pair < of_head() * args.n_heads * args.batch; }
    __device__ __forceinline__ void next() {
        second = !second && place() != args.n_q_blocks - 1 - place();
        pair += second ? 0 : static_cast<int>(gridDim.x);
    }
    __device__ __forceinline__ Tile tile() const {
        const int row = pair / of_head();  // of blocks: a head of a sample
        return {second ? place() : args.n_q_blocks - 1 - place(), row % args.n_heads, row / args.n_heads};
    }
};

}  // namespace flashladder::hopper
