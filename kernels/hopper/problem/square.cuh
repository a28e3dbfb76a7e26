// Problem `square` (iteration 20): as many queries as keys, as many heads of Q as of K and V; O is the only result.
#pragma once

#include "hopper/args.cuh"

namespace flashladder::hopper {

struct Square {
    static constexpr bool writes_lse = false;

    // The head of K and V that a head of Q reads.
    static __device__ __forceinline__ int kv_head(const HopperArgs &, int head) { return head; }
};

}  // namespace flashladder::hopper
