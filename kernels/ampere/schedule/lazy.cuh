// Schedule `lazy` (iteration 1): K and V are fetched when they are needed, and everybody waits for them.
//
// The tensor cores see the full latency of global memory twice per KV block.
#pragma once

#include "ptx/cp_async.cuh"

namespace flashladder {

struct Lazy {
    template <typename Cta>
    static __device__ __forceinline__ void run(Cta &cta, int n_kv_blocks) {
        cta.load_q();
        ptx::cp_async_commit();
        cta.reset_row_stats();
        cta.clear_o();
        if constexpr (Cta::q_resident) {
            ptx::cp_async_wait<0>();
            cta.sync_q();  // the copies of every thread that filled this warp's rows of Q have landed
            cta.load_q_fragments();
        }
        for (int block = 0; block < n_kv_blocks; ++block) {
            cta.load_k(block);
            ptx::cp_async_commit();
            ptx::cp_async_wait<0>();
            __syncthreads();  // K has landed; every warp is done with the V of the block before
            cta.qk_matmul();
            cta.template softmax<false>(block, n_kv_blocks);
            cta.load_v(block);
            ptx::cp_async_commit();
            ptx::cp_async_wait<0>();
            __syncthreads();  // V has landed; every warp is done with K
            cta.pv_matmul();
        }
    }
};

}  // namespace flashladder
