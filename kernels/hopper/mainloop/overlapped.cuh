// Main loop `overlapped` (iteration 24): P V of the block before runs under the exponentials of this one.
//
// A slot issues S = Q K^T first and P V second, and waits for the first only: groups end in order. What O has to be
// multiplied by for the new maximum waits until P V is done, and so do the weights, whose registers P V reads.
//
// The wait for V's next tile stands between the exponentials and the wait for P V although nothing needs it there: its
// loop ends a basic block. Without it ptxas moves all 66 ex2 below the wait for P V, where nothing overlaps them, and
// says nothing (nvcc 13.0.88). On an H200 that is worth half a percent (S >= 2048, 2026-11-23): with turns the other
// warpgroup's products hide most of them.
#pragma once

#include "hopper/warpgroup.cuh"

namespace flashladder::hopper {

struct Overlapped {
    template <typename Cta, typename Consumer>
    static __device__ __forceinline__ void run(const Cta &cta, Consumer &me) {
        static_assert(Cta::Kernel::v_stages >= 2, "a slot waits for a tile of V before it has released the one before");
        Warpgroup<Cta, Consumer> group(cta, me);
#pragma unroll 1
        for (typename Cta::Scheduler work(cta.args); work.valid(); work.next()) {
            const auto tile = work.tile();
            group.first_block(tile);
            cta.v.wait(group.v);
#pragma unroll 1
            for (int i = 1; i < cta.args.n_kv_blocks; ++i) {
                cta.k.wait(group.k);
                me.take_turn();
                group.hand_over();
                group.issue_qk(group.q);
                ptx::wgmma_commit();
                group.issue_pv();
                ptx::wgmma_commit();
                me.pass_turn();
                ptx::wgmma_wait<1>();  // S is whole, P V may be under way
                group.take_s();
                group.template softmax<false>();
                ptx::pin(group.s);
                cta.v.wait(group.v.after());
                ptx::wgmma_wait<0>();
                group.take_o();
                Cta::Softmax::rescale(group.o, group.factor);
                pack_weights<typename Cta::value_t>(group.p, group.s);
            }
            group.last_product();
            group.store(tile, group.stats);
        }
        Cta::Epilogue::settle();
    }
};

}  // namespace flashladder::hopper
