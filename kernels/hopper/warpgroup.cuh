// A consumer warpgroup at work on a tile: its accumulators, and the steps that are the same in every main loop of
// wgmma.
//
// Between the first block, which no P V goes before, and the last P V, which no Q K^T comes after, stands the steady
// loop: that is the main loop's part. Products are asynchronous; `pin` marks where registers change hands.
#pragma once

#include <cstdint>

#include "hopper/accumulators.cuh"
#include "hopper/products.cuh"
#include "hopper/tile.cuh"

namespace flashladder::hopper {

template <typename Cta, typename Consumer>
struct Warpgroup {
    using G = typename Cta::G;
    using value_t = typename Cta::value_t;
    static_assert(G::m_tiles == 1, "a warpgroup multiplies 64 rows at a time");

    const Cta &cta;
    Consumer &me;
    typename Cta::QRing::Place q;  // stages that are read next
    typename Cta::KRing::Place k;
    typename Cta::VRing::Place v;
    float s[1][G::s_n_tiles][4];      // S, then P: (64, B_c)
    std::uint32_t p[G::B_c / 16][4];  // P in 16 bits, the operand of P V
    float o[1][G::o_n_tiles][4];      // O: (64, d_head)
    float factor[1][2];               // what O has to be multiplied by for the last block's maximum
    RowStats<1> stats;
    typename Cta::QRing::Place stored;  // of the tile before, whose O may be on its way
    bool is_stored = false;

    __device__ __forceinline__ Warpgroup(const Cta &cta_, Consumer &me_) : cta(cta_), me(me_) {}

    // S = Q K^T of the tile at `rows` and the block at `k`.
    __device__ __forceinline__ void issue_qk(const typename Cta::QRing::Place &rows) {
        multiply_qk<value_t, G::B_c>(s, cta.q.tile(rows) + me.group * G::group_bytes, cta.k.tile(k));
    }

    // O += P V of the block at `v`.
    __device__ __forceinline__ void issue_pv() { multiply_pv<value_t, G::B_c>(o, p, cta.v.tile(v)); }

    // The products issued next may read P, and add to O.
    __device__ __forceinline__ void hand_over() {
        ptx::pin(o);
        ptx::pin(p);
        ptx::wgmma_fence();
    }

    // Q K^T is done: S is the threads', K's stage the producer's.
    __device__ __forceinline__ void take_s() {
        ptx::pin(s);
        cta.k.release(k);
        k.next();
    }

    // P V is done: O and P are the threads', V's stage the producer's.
    __device__ __forceinline__ void take_o() {
        ptx::pin(o);
        ptx::pin(p);
        cta.v.release(v);
        v.next();
    }

    template <bool first_block>
    __device__ __forceinline__ void softmax() {
        Cta::Softmax::template weights<first_block>(s, stats, cta.args.scale_log2, factor);
    }

    // The first block of a tile: S, its mask if it is ragged, P.
    __device__ __forceinline__ void first_block(const Tile &tile) {
        me.fetch_q(tile);
        me.fetch_k(tile, 0);
        cta.q.wait(q);
        cta.k.wait(k);
        me.take_turn();
        ptx::wgmma_fence();
        issue_qk(q);
        ptx::wgmma_commit();
        me.pass_turn();
        me.fetch_k(tile, 1);
        me.fetch_v(tile, 0);
        ptx::wgmma_wait<0>();
        take_s();
        if constexpr (Cta::Scheduler::several) {
            if (is_stored) {
                give_back();
            }
        }
        if (cta.ragged_rows() < G::B_c) {
            mask_columns(s, cta.ragged_rows());
        }
        softmax<true>();
        pack_weights<value_t>(p, s);
        clear(o);
    }

    // P V of the last block, whose V is there.
    __device__ __forceinline__ void last_product() {
        hand_over();
        issue_pv();
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        take_o();
    }

    // O of a tile on its way, through the place of its Q.
    __device__ __forceinline__ void store(const Tile &tile, RowStats<1> &of_o) {
        Cta::Epilogue::write(cta, me, tile, cta.q.tile(q) + me.group * G::group_bytes, o, of_o);
        if constexpr (Cta::Scheduler::several) {
            stored = q;
            is_stored = true;
            q.next();
        }
    }

    // The place that O of the tile before left through, read by now, is the producer's: the next but one tile's Q
    // comes.
    __device__ __forceinline__ void give_back() {
        Cta::Epilogue::settle();
        __syncwarp();  // who asked for the copy need not be who arrives
        cta.q.release(stored);
    }
};

}  // namespace flashladder::hopper
