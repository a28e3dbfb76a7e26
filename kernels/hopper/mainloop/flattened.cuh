// Main loop `flattened` (iteration 26): one loop over all blocks of all tiles of a CTA; P V may run into the next slot.
//
// A slot issues S = Q K^T of one block and P V of the block before it. It then waits for that S and, as wgmma groups
// complete in order, for P V of two blocks before. P has two buffers, so it needs no other wait. While no weight is
// above its limit, the threads do not touch O. The block that opens the next tile is a slot, too, but it always updates
// the maximum, and it waits for O. The tile before ends with that wait; its O is stored while products of the other
// warpgroup run.
//
// Each warp decides whether its rows update their maximum, but all four warps of a warpgroup wait for products as one.
// So a warp that updates computes P with the new maximum (again, if it was computed already) and goes on at once. Its
// O is rescaled in the next slot, between the two products: there, while the S just issued runs, the four warps vote
// whether any of them needs that wait.
//
// The loop body has two slots, because the two buffers of P swap roles; a tile may begin in either. On the common path
// all exponentials, sums and conversions are issued while a product runs (`invoke sass 26 --order`).
#pragma once

#include "hopper/slots.cuh"

namespace flashladder::hopper {

// `weighs_first`: whether a block that opens a tile computes its P before O of the tile before is stored.
template <bool weighs_first>
struct OneLoop {
    // P V with `before`, S of the next block, which becomes `now`.
    template <typename Slots>
    static __device__ __forceinline__ void slot(Slots &slots, typename Slots::Weights &before,
                                                typename Slots::Weights &now) {
        auto &group = slots.group;
        slots.settle();
        const bool opens = ++slots.block == slots.end_of_tile();
        auto q = group.q;  // group.q keeps the old tile's stage: its O is stored through it
        if (opens) {
            slots.block = 0;
            q.next();
            slots.cta.q.wait(q);
            slots.open(q, slots.done + 1);
        }
        slots.cta.k.wait(group.k);
        slots.me.take_turn();
        ptx::pin(group.s);
        ptx::wgmma_fence();
        group.issue_qk(q);
        ptx::wgmma_commit();
        slots.catch_up();
        slots.cta.v.wait(group.v);
        slots.issue_pv(before);
        slots.me.pass_turn();
        ptx::wgmma_wait<1>();  // S is whole, and so is P V of the block before the last
        group.take_s();
        slots.take_weights(now);
        slots.mask_rows();
        auto of_o = group.stats;  // those that O belongs to
        float grown[2];
        if (opens) {
            slots.follow(true, grown);
            if constexpr (!weighs_first) {
                slots.end_tile(of_o);
            }
        } else if (slots.must_follow()) {
            slots.follow(false, grown);
            slots.fall_behind(grown);
        }
        typename Slots::Sums sums;
        slots.weigh(now, sums);
        if (weighs_first && opens) {
            ptx::pin(now);  // computed by here: the products in flight hide it
            slots.end_tile(of_o);
        } else if (slots.outgrown(sums)) {
            slots.follow(false, grown);
            slots.fall_behind(grown);
            slots.weigh(now, sums);
        }
        slots.add(sums);
        ++slots.done;
    }

    template <typename Cta, typename Consumer>
    static __device__ __forceinline__ void run(const Cta &cta, Consumer &me) {
        static_assert(Cta::Kernel::v_stages >= 3, "two tiles of V are read while the next one lands");
        Slots<Cta, Consumer> slots(cta, me);
        if constexpr (Cta::packed) {
            if (!slots.any()) {
                return;
            }
        }
        slots.first();
#pragma unroll 1
        while (slots.done < slots.all) {
            slot(slots, slots.group.p, slots.other);
            if (slots.done == slots.all) {  // an even number of blocks: the last P is in `other`, last() reads group.p
                ptx::wgmma_wait<0>();
#pragma unroll
                for (int i = 0; i < Cta::G::B_c / 4; ++i) {
                    slots.group.p[i / 4][i % 4] = slots.other[i / 4][i % 4];
                }
                break;
            }
            slot(slots, slots.other, slots.group.p);
        }
        slots.last();
        Cta::Epilogue::settle();
    }
};

struct Flattened : OneLoop<false> {};

}  // namespace flashladder::hopper
