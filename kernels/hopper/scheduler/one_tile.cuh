// Scheduler `one_tile` (iteration 20): a CTA computes one tile of O, the grid is (seq_len / B_r, n_heads, batch).
//
// The hardware hands tiles to SMs; the CTAs of one head follow each other, so that its K and V stay in L2.
#pragma once

#include "hopper/args.cuh"
#include "hopper/tile.cuh"

namespace flashladder::hopper {

struct OneTile {
    static constexpr bool several = false;  // tiles of one CTA
    bool open = true;

    __device__ __forceinline__ explicit OneTile(const HopperArgs &) {}

    __device__ __forceinline__ bool valid() const { return open; }
    __device__ __forceinline__ void next() { open = false; }
    __device__ __forceinline__ Tile tile() const {
        return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
    }
};

}  // namespace flashladder::hopper
