// Schedule `rings` (iteration 18): one wait and one barrier a KV block, which has its copies most of a block ahead.
//
// K and V lie in rings of two stages. The barrier at the head of a block says that both of its tiles have landed and
// that every warp has left the block before, whose stages the next copies fill. Until the next barrier warps run free:
// one may be at its exponentials while another is at its products.
//
// The copies stand behind S = Q K^T: straight behind the barrier they would stand between every warp and its first
// ldmatrix, and all warps of the SM would ask for them at once. On an H200: 118.9 instead of 115.8 % of FA2 (S = 4096,
// fp16, 2026-11-22; docs/decisions/024).
//
// Tiles go from the last to the first as in `backward`; blocks are counted upwards, as their parity is their stage.
#pragma once

#include "ptx/cp_async.cuh"

namespace flashladder {

struct Rings {
    template <bool first_block, typename Cta>
    static __device__ __forceinline__ void kv_block(Cta &cta, int block, int n_kv_blocks) {
        ptx::cp_async_wait<0>();
        __syncthreads();  // K and V have landed; every warp is done with those of the block before
        cta.qk_matmul(block);
        if (block + 1 < n_kv_blocks) {
            cta.load_k(block + 1, n_kv_blocks - 2 - block);
            cta.load_v(block + 1, n_kv_blocks - 2 - block);
            ptx::cp_async_commit();
        }
        if constexpr (first_block) {
            cta.clear_o();  // becomes the zero register of the first mma
        }
        cta.template softmax<first_block>(block, n_kv_blocks);
        cta.pv_matmul(block);
    }

    template <typename Cta>
    static __device__ __forceinline__ void run(Cta &cta, int n_kv_blocks) {
        cta.load_q();
        ptx::cp_async_commit();
        cta.load_k(0, n_kv_blocks - 1);
        cta.load_v(0, n_kv_blocks - 1);
        ptx::cp_async_commit();
        cta.reset_row_stats();
        if constexpr (Cta::q_resident) {
            ptx::cp_async_wait<1>();
            cta.sync_q();  // Q has landed, K and V may still be on their way
            cta.load_q_fragments();
        }
        kv_block<true>(cta, 0, n_kv_blocks);
        for (int block = 1; block < n_kv_blocks; ++block) {
            kv_block<false>(cta, block, n_kv_blocks);
        }
    }
};

}  // namespace flashladder
