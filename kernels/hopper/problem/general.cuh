// Problem `general` (iteration 29): any numbers of queries and keys, heads of Q in groups, the log-sum-exp on request.
#pragma once

#include "hopper/args.cuh"

namespace flashladder::hopper {

struct General {
    static constexpr bool writes_lse = true;

    // The head of K and V that a head of Q reads.
    static __device__ __forceinline__ int kv_head(const HopperArgs &args, int head) { return head / args.heads_per_kv; }
};

}  // namespace flashladder::hopper
