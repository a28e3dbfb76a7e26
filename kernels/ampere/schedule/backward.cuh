// Schedule `backward` (iteration 13): as `peeled`, from the last KV block to the first.
//
// The loop's end is a comparison with zero, and n_kv_blocks need not be kept in a register beside the index.
#pragma once

#include "ptx/cp_async.cuh"

namespace flashladder {

struct Backward {
    template <bool first_block, typename Cta>
    static __device__ __forceinline__ void kv_block(Cta &cta, int block, int n_kv_blocks) {
        ptx::cp_async_wait<0>();
        __syncthreads();  // K has landed; every warp is done with the V of the block before
        cta.load_v(block);
        ptx::cp_async_commit();
        cta.qk_matmul();
        ptx::cp_async_wait<0>();
        __syncthreads();  // V has landed; every warp is done with K
        if (block > 0) {
            cta.load_k(block - 1);
            ptx::cp_async_commit();
        }
        if constexpr (first_block) {
            cta.clear_o();  // becomes the zero register of the first mma
        }
        cta.template softmax<first_block>(n_kv_blocks - 1 - block, n_kv_blocks);
        cta.pv_matmul();
    }

    template <typename Cta>
    static __device__ __forceinline__ void run(Cta &cta, int n_kv_blocks) {
        cta.load_q();
        ptx::cp_async_commit();
        cta.load_k(n_kv_blocks - 1);
        ptx::cp_async_commit();
        cta.reset_row_stats();
        if constexpr (Cta::q_resident) {
            ptx::cp_async_wait<1>();
            cta.sync_q();  // Q has landed, K may still be on its way
            cta.load_q_fragments();
        }
        kv_block<true>(cta, n_kv_blocks - 1, n_kv_blocks);
        for (int block = n_kv_blocks - 2; block >= 0; --block) {
            kv_block<false>(cta, block, n_kv_blocks);
        }
    }
};

}  // namespace flashladder
