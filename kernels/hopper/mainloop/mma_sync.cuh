// Main loop `mma_sync` (iteration 20): iteration 19's products on tiles that the copy engine brings.
//
// No thread computes an address of global memory or copies 16 bytes any more; what remains of a copy is a wait for its
// mbarrier. ldmatrix reads what the copy engine has swizzled, which is the layout `xor_tiled` of iteration 15.
#pragma once

#include <cstdint>

#include "ampere/k_order/serpentine.cuh"
#include "ampere/lanes.cuh"
#include "ampere/layout/xor_tiled.cuh"
#include "ampere/matmul.cuh"
#include "ampere/operands/tiled.cuh"
#include "hopper/accumulators.cuh"
#include "hopper/tile.cuh"
#include "hopper/warp.cuh"

namespace flashladder::hopper {

struct MmaSync {
    using Layout = XorTiled;
    using KOrder = Serpentine;

    // A warp's accumulators, and where its lane reads in any tile.
    template <typename Cta>
    struct State {
        using G = typename Cta::G;
        static constexpr int k_steps = 128 / kMmaK;
        float s[G::m_tiles][G::s_n_tiles][4];  // S, then P
        float o[G::m_tiles][G::o_n_tiles][4];
        RowStats<G::m_tiles> stats;
        std::uint32_t q_first;  // shared address
        std::uint32_t k_lane;   // offsets
        std::uint32_t v_lane;

        __device__ __forceinline__ State(const Cta &cta, const Warp &me)
            : q_first(cta.smem + G::smem_q + me.group * G::group_bytes + me.warp * G::m_tiles * kMmaM * kHalfRow +
                      Layout::offset<G::rows>(me.lane % 16, me.lane / 16)),
              k_lane(Layout::offset<G::B_c>(KOrder::row(me.lane), KOrder::unit(me.lane))),
              v_lane(Layout::offset<G::B_c>(me.lane % 16, me.lane / 16)) {}

        // S = Q K^T
        __device__ __forceinline__ void multiply_qk(std::uint32_t tile) {
            Tiled<k_steps, G::m_tiles> q;
            Tiled<k_steps, G::s_n_tiles / 2> k;
            clear(s);
            serpentine_matmul<typename Cta::value_t, KOrder, k_steps>(
                q, AlongColumns<Layout, G::rows, G::m_tiles>{q_first}, k,
                AlongColumns<Layout, G::B_c, G::s_n_tiles / 2>{tile + k_lane}, s);
        }

        // O += P V
        __device__ __forceinline__ void multiply_pv(std::uint32_t tile) {
            constexpr int steps = G::B_c / kMmaK;
            PackedScores<typename Cta::value_t, G::m_tiles, steps> p(s);
            Tiled<steps, G::o_n_tiles / 2> v;
            matmul<typename Cta::value_t, VPairs, steps>(p, nullptr, v,
                                                         AlongRows<Layout, G::B_c, G::o_n_tiles / 2>{tile + v_lane}, o);
        }
    };

    template <bool first_block, typename Cta, typename Consumer>
    static __device__ __forceinline__ void block(const Cta &cta, Consumer &me, const Tile &tile, State<Cta> &state,
                                                 int i) {
        const auto k = Cta::KRing::Place::of(i);
        cta.k.wait(k);
        state.multiply_qk(cta.k.tile(k));
        __syncwarp();  // every lane has read: lane 0 speaks for the warp
        cta.k.release(k);
        me.fetch_k(tile, i + 1);
        me.fetch_v(tile, i + 1);
        if (first_block && cta.ragged_rows() < Cta::G::B_c) {
            mask_columns(state.s, cta.ragged_rows());
        }
        float factor[Cta::G::m_tiles][2];
        Cta::Softmax::template weights<first_block>(state.s, state.stats, cta.args.scale_log2, factor);
        if constexpr (first_block) {
            clear(state.o);
        } else {
            Cta::Softmax::rescale(state.o, factor);
        }
        const auto v = Cta::VRing::Place::of(i);
        cta.v.wait(v);
        state.multiply_pv(cta.v.tile(v));
        __syncwarp();
        cta.v.release(v);
    }

    template <typename Cta, typename Consumer>
    static __device__ __forceinline__ void run(const Cta &cta, Consumer &me) {
        State<Cta> state(cta, me);
        for (typename Cta::Scheduler work(cta.args); work.valid(); work.next()) {
            const auto tile = work.tile();
            me.fetch_q(tile);
            me.fetch_k(tile, 0);
            me.fetch_v(tile, 0);
            cta.q.wait({});
            block<true>(cta, me, tile, state, 0);
#pragma unroll 1
            for (int i = 1; i < cta.args.n_kv_blocks; ++i) {
                block<false>(cta, me, tile, state, i);
            }
            Cta::Epilogue::write(cta, me, tile, cta.q.tile({}) + me.group * Cta::G::group_bytes, state.o, state.stats);
        }
        Cta::Epilogue::settle();
    }
};

}  // namespace flashladder::hopper
