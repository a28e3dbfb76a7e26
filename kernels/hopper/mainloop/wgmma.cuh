// Main loop `wgmma` (iteration 21): a warpgroup's products are asynchronous, and read K, V and Q where they lie.
//
// No ldmatrix, no fragments of Q, K and V in registers: 64 rows by 128 columns by 16 are one instruction of four warps.
// A slot issues P V of the block before and S = Q K^T of this one, waits for both at once, and has the exponentials to
// itself: the tensor cores are the other warpgroup's then.
#pragma once

#include "hopper/warpgroup.cuh"

namespace flashladder::hopper {

struct Wgmma {
    template <typename Cta, typename Consumer>
    static __device__ __forceinline__ void run(const Cta &cta, Consumer &me) {
        Warpgroup<Cta, Consumer> group(cta, me);
#pragma unroll 1
        for (typename Cta::Scheduler work(cta.args); work.valid(); work.next()) {
            const auto tile = work.tile();
            group.first_block(tile);
#pragma unroll 1
            for (int i = 1; i < cta.args.n_kv_blocks; ++i) {
                cta.k.wait(group.k);
                cta.v.wait(group.v);
                me.take_turn();
                group.hand_over();
                group.issue_pv();
                group.issue_qk(group.q);
                ptx::wgmma_commit();
                me.pass_turn();
                me.fetch_k(tile, i + 1);
                me.fetch_v(tile, i);
                ptx::wgmma_wait<0>();
                group.take_s();
                group.take_o();
                group.template softmax<false>();
                Cta::Softmax::rescale(group.o, group.factor);
                pack_weights<typename Cta::value_t>(group.p, group.s);
            }
            cta.v.wait(group.v);
            group.last_product();
            group.store(tile, group.stats);
        }
        Cta::Epilogue::settle();
    }
};

}  // namespace flashladder::hopper
