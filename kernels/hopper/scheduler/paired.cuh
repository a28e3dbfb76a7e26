// Scheduler `paired` (iteration 31): a CTA computes tiles in pairs of one head, a long one and a short one.
//
// Under a causal mask the tile at block i of n sees i + 1 blocks of K. Tiles i and n - 1 - i together always see n + 1:
// every CTA gets the same work. Pairs of a head follow each other, so that the CTAs of a moment share the K and V of a
// few heads in L2, and they reach the ends of their tiles at different times.
//
// Pairs seldom divide among the CTAs: the last round would keep some of them busy and the others idle. So the last
// whole round and what is left after it are dealt out as single tiles, from long to short, in rounds that go over the
// CTAs forwards and backwards in turn. Where tiles have few blocks there is nothing to even out.
#pragma once

#include "hopper/args.cuh"
#include "hopper/tile.cuh"

namespace flashladder::hopper {

struct Paired {
    static constexpr bool several = true;  // tiles of one CTA
    static constexpr int few_blocks = 8;   // of Q: heads with fewer are computed in pairs to the end
    const HopperArgs &args;
    int paired_heads;  // heads, of all samples, whose tiles are computed in pairs
    int unit;          // number of the CTA's pair, or, after all pairs, of its single tile
    int step;          // to its next one
    bool second;       // the short tile of a pair

    __device__ __forceinline__ explicit Paired(const HopperArgs &arguments)
        : args(arguments), unit(static_cast<int>(blockIdx.x)), second(false) {
        const int ctas = static_cast<int>(gridDim.x), rounds = of_head() * heads() / ctas;
        if (args.n_q_blocks < few_blocks) {
            paired_heads = heads();
            step = ctas;
        } else {
            paired_heads = max(rounds - 1, 0) * ctas / of_head();
            step = 2 * (ctas - unit) - 1;
        }
    }

    // Pairs of a head; with an odd number of tiles the one in the middle is alone.
    __device__ __forceinline__ int of_head() const { return (args.n_q_blocks + 1) / 2; }
    __device__ __forceinline__ int heads() const { return args.n_heads * args.batch; }
    __device__ __forceinline__ int pairs() const { return paired_heads * of_head(); }
    __device__ __forceinline__ bool valid() const {
        return unit < pairs() + (heads() - paired_heads) * args.n_q_blocks;
    }
    __device__ __forceinline__ void next() {
        second = !second && unit < pairs() && 2 * (unit % of_head()) != args.n_q_blocks - 1;
        if (!second) {
            unit += step;
            step = 2 * static_cast<int>(gridDim.x) - step;
        }
    }
    __device__ __forceinline__ Tile tile() const {
        const int single = unit - pairs(), left = heads() - paired_heads;
        const int head = single < 0 ? unit / of_head() : paired_heads + single % left;  // of all samples
        const int place = single < 0 ? unit % of_head() : single / left;                // 0: of the longest tile
        return {second ? place : args.n_q_blocks - 1 - place, head % args.n_heads, head / args.n_heads};
    }
};

}  // namespace flashladder::hopper
