// Main loop `overlapped` (iteration 24): P V of the block before runs under the exponentials of this one.
//
// A slot issues S = Q K^T first and P V second, and waits for the first only: groups end in order. What O has to be
// multiplied by for the new maximum waits until P V is done; so do the weights, whose registers P V reads.
#pragma once

#include <cstdint>

#include "hopper/pack.cuh"
#include "hopper/products.cuh"

namespace flashladder::hopper {

struct Overlapped {
    template <typename Cta, typename Consumer>
    static __device__ __forceinline__ void run(const Cta &cta, Consumer &me) {
        using G = typename Cta::G;
        using value_t = typename Cta::value_t;
        static_assert(G::m_tiles == 1, "a warpgroup multiplies 64 rows at a time");
        typename Cta::QRing::Place q;
        typename Cta::KRing::Place k;
        typename Cta::VRing::Place v;
        float s[1][G::s_n_tiles][4];
        float o[1][G::o_n_tiles][4];
        std::uint32_t p[G::B_c / 16][4];
        float factor[1][2];
        RowStats<1> stats;
#pragma unroll 1
        for (typename Cta::Scheduler work(cta.args); work.valid(); work.next()) {
            const auto tile = work.tile();
            const std::uint32_t q_rows = cta.q.tile(q) + me.group * G::group_bytes;
            cta.q.wait(q);
            cta.k.wait(k);
            me.take_turn();
            ptx::wgmma_fence();
            multiply_qk<value_t, G::B_c>(s, q_rows, cta.k.tile(k));
            ptx::wgmma_commit();
            me.pass_turn();
            ptx::wgmma_wait<0>();
            ptx::pin(s);
            cta.k.release(k);
            k.next();
            if (cta.ragged_rows() < G::B_c) {
                mask_columns(s, cta.ragged_rows());
            }
            Cta::Softmax::template weights<true>(s, stats, cta.args.scale_log2, factor);
            pack_weights<value_t>(p, s);
            clear(o);
            cta.v.wait(v);
#pragma unroll 1
            for (int i = 1; i < cta.args.n_kv_blocks; ++i) {
                cta.k.wait(k);
                me.take_turn();
                ptx::pin(o);
                ptx::pin(p);
                ptx::wgmma_fence();
                multiply_qk<value_t, G::B_c>(s, q_rows, cta.k.tile(k));
                ptx::wgmma_commit();
                multiply_pv<value_t, G::B_c>(o, p, cta.v.tile(v));
                ptx::wgmma_commit();
                me.pass_turn();
                ptx::wgmma_wait<1>();  // S is whole, P V may still be under way
                ptx::pin(s);
                cta.k.release(k);
                k.next();
                Cta::Softmax::template weights<false>(s, stats, cta.args.scale_log2, factor);
                ptx::pin(s);
                auto v_next = v;
                v_next.next();
                cta.v.wait(v_next);
                ptx::wgmma_wait<0>();
                ptx::pin(o);
                ptx::pin(p);
                cta.v.release(v);
                v = v_next;
                Cta::Softmax::rescale(o, factor);
                pack_weights<value_t>(p, s);
            }
            ptx::pin(o);
            ptx::pin(p);
            ptx::wgmma_fence();
            multiply_pv<value_t, G::B_c>(o, p, cta.v.tile(v));
            ptx::wgmma_commit();
            ptx::wgmma_wait<0>();
            ptx::pin(o);
            cta.v.release(v);
            v.next();
            q.next();
            Cta::Epilogue::write(cta, me, tile, o, stats);
        }
    }
};

}  // namespace flashladder::hopper
