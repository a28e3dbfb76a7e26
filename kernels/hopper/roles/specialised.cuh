// Roles `specialised` (iteration 22): a warpgroup that only copies, and warpgroups that only multiply.
//
// The producer is one thread: it runs ahead as far as stages are free, and no consumer waits for another one any more.
// Its warpgroup gives its registers to the others (setmaxnreg): 168 a thread at launch become 24 and 240.
#pragma once

#include "hopper/tile.cuh"
#include "hopper/warp.cuh"

namespace flashladder::hopper {

struct Specialised {
    static constexpr int n_threads(int n_consumers) { return (1 + n_consumers) * kWarpgroup; }

    template <typename Cta>
    struct Consumer : Warp {
        __device__ __forceinline__ explicit Consumer(const Cta &) : Warp(1) {}

        // Somebody else's work.
        __device__ __forceinline__ void fetch_q(const Tile &) const {}
        __device__ __forceinline__ void fetch_k(const Tile &, int) const {}
        __device__ __forceinline__ void fetch_v(const Tile &, int) const {}

        __device__ __forceinline__ void take_turn() const {}
        __device__ __forceinline__ void pass_turn() const {}
    };

    // Asks for a tile's Q; which blocks of K and V follow.
    template <typename Cta, typename Scheduler, typename Visits>
    static __device__ __forceinline__ auto request_q(const Cta &cta, const Scheduler &work, const Tile &tile,
                                                     const Visits &all, const typename Cta::QRing::Place &at) {
        if constexpr (Cta::told) {
            Scheduler later = work;
            later.next();
            const WorkTile told = cta.work_of(tile, !later.valid());
            cta.load_q(told, at);
            return hopper::Visits{0, told.blocks};
        } else {
            cta.load_q(tile, at);
            return all;
        }
    }

    // One thread. The order is that of use: K one block ahead of V, whose product comes a block later.
    template <typename Cta>
    static __device__ __forceinline__ void produce(const Cta &cta) {
        typename Cta::QRing::Place q_next;
        typename Cta::KRing::Place k_next;
        typename Cta::VRing::Place v_next;
        const auto all = cta.visits();  // of each tile, unless tiles differ
#pragma unroll 1
        for (typename Cta::Scheduler work(cta.args); work.valid(); work.next()) {
            const auto tile = work.tile();
            const auto visits = request_q(cta, work, tile, all, q_next);
            const Tile kv = {tile.q_block, Cta::Problem::kv_head(cta.args, tile.head), tile.batch};
            q_next.next();
#pragma unroll 1
            for (int i = visits.first(); i < visits.end(); ++i) {
                cta.load_k(kv, i, k_next);
                k_next.next();
                if (i > visits.first()) {
                    cta.load_v(kv, i - 1, v_next);
                    v_next.next();
                }
            }
            cta.load_v(kv, visits.end() - 1, v_next);
            v_next.next();
        }
    }

    // The producer's warp, for packed sequences: all lanes look for tiles, one asks for them.
    template <typename Cta>
    static __device__ __forceinline__ void produce_packed(const Cta &cta) {
        typename Cta::QRing::Place q_next;
        typename Cta::KRing::Place k_next;
        typename Cta::VRing::Place v_next;
        const bool asks = ptx::elect_one();
        typename Cta::Scheduler::template Sequences<Cta> work(cta.args);
        if (!work.valid() && asks) {
            cta.tell_none(q_next);
        }
#pragma unroll 1
        while (work.valid()) {
            const SequenceTile one = work.tile();
            work.next();
            if (asks) {
                const WorkTile told = Cta::work_of(one, !work.valid());
                const int step = Cta::causal ? Cta::G::B_c : -Cta::G::B_c;
                const int first = kPackedEnd - one.kv_len + (Cta::causal ? 0 : (told.blocks - 1) * Cta::G::B_c);
                Tile kv = {first, Cta::Problem::kv_head(cta.args, one.tile.head), one.kv_end};
                cta.load_q(told, q_next);
                cta.copy_k(kv, k_next);
                k_next.next();
#pragma unroll 1
                for (int i = 1; i < told.blocks; ++i) {
                    cta.copy_k({kv.q_block + step, kv.head, kv.batch}, k_next);
                    k_next.next();
                    cta.copy_v(kv, v_next);
                    v_next.next();
                    kv.q_block += step;
                }
                cta.copy_v(kv, v_next);
                v_next.next();
                q_next.next();
            }
            __syncwarp();
        }
    }

    template <template <typename> class Consumer, typename Cta>
    static __device__ __forceinline__ void split(const Cta &cta) {
        using Kernel = typename Cta::Kernel;
        static_assert(
            Kernel::producer_registers + Kernel::n_consumers * Kernel::consumer_registers <= 65536 / kWarpgroup,
            "an SM has 65,536 registers");
        if (ptx::uniform(threadIdx.x / kWarpgroup) == 0) {
            ptx::release_registers<Kernel::producer_registers>();
            if constexpr (Cta::packed) {
                if (ptx::uniform(threadIdx.x / kWarp) == 0) {
                    produce_packed(cta);
                }
            } else if (ptx::uniform(threadIdx.x / kWarp) == 0 && ptx::elect_one()) {
                produce(cta);
            }
        } else {
            ptx::take_registers<Kernel::consumer_registers>();
            Consumer<Cta> me(cta);
            Kernel::Mainloop::run(cta, me);
        }
    }

    template <typename Cta>
    static __device__ __forceinline__ void run(const Cta &cta) {
        split<Consumer>(cta);
    }
};

}  // namespace flashladder::hopper
