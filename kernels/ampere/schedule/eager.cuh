// Schedule `eager` (iteration 3): V arrives while S = Q K^T is computed, the next K during the softmax and P V.
#pragma once

#include "ptx/cp_async.cuh"

namespace flashladder {

struct Eager {
    template <typename Cta>
    static __device__ __forceinline__ void run(Cta &cta, int n_kv_blocks) {
        cta.load_q();
        ptx::cp_async_commit();
        cta.load_k(0);
        ptx::cp_async_commit();
        cta.reset_row_stats();
        cta.clear_o();
        if constexpr (Cta::q_resident) {
            ptx::cp_async_wait<1>();
            cta.sync_q();  // Q has landed, K may still be on its way
            cta.load_q_fragments();
        }
        for (int block = 0; block < n_kv_blocks; ++block) {
            ptx::cp_async_wait<0>();
            __syncthreads();  // K has landed; every warp is done with the V of the block before
            cta.load_v(block);
            ptx::cp_async_commit();
            cta.qk_matmul();
            ptx::cp_async_wait<0>();
            __syncthreads();  // V has landed; every warp is done with K
            if (block + 1 < n_kv_blocks) {
                cta.load_k(block + 1);
                ptx::cp_async_commit();
            }
            cta.template softmax<false>(block, n_kv_blocks);
            cta.pv_matmul();
        }
    }
};

}  // namespace flashladder
