// Schedule `peeled` (iteration 10): as `eager`, with the first KV block outside the loop.
//
// The first P V then starts from zero instead of adding to an O that had to be zeroed (64 CS2R at 128 accumulators),
// and the first softmax has nothing to rescale.
#pragma once

#include "ptx/cp_async.cuh"

namespace flashladder {

struct Peeled {
    template <bool first_block, typename Cta>
    static __device__ __forceinline__ void kv_block(Cta &cta, int block, int n_kv_blocks) {
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
        if constexpr (first_block) {
            cta.clear_o();  // becomes the zero register of the first mma
        }
        cta.template softmax<first_block>(block, n_kv_blocks);
        cta.pv_matmul();
    }

    template <typename Cta>
    static __device__ __forceinline__ void run(Cta &cta, int n_kv_blocks) {
        cta.load_q();
        ptx::cp_async_commit();
        cta.load_k(0);
        ptx::cp_async_commit();
        cta.reset_row_stats();
        if constexpr (Cta::q_resident) {
            ptx::cp_async_wait<1>();
            cta.sync_q();  // Q has landed, K may still be on its way
            cta.load_q_fragments();
        }
        kv_block<true>(cta, 0, n_kv_blocks);
        for (int block = 1; block < n_kv_blocks; ++block) {
            kv_block<false>(cta, block, n_kv_blocks);
        }
    }
};

}  // namespace flashladder
