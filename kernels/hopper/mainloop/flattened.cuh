// Main loop `flattened` (iteration 26): one loop over all blocks of all tiles of a CTA, in which nothing waits for P V.
//
// A slot issues S = Q K^T of a block and P V of the block before, and waits for that S and for the P V of two blocks
// before: groups end in order. With two buffers of P that is all it needs. While no weight has outgrown its limit, O is
// not touched, whoever adds to it. A block that opens the next tile is a slot like any other whose maximum is always
// followed; there O is waited for. The tile before ends with that wait, and its O leaves while products of the other
// warpgroup are under way.
//
// Which rows have to follow their maximum differs from warp to warp, and a wait for products is the whole warpgroup's
// or nobody's. So a warp that follows weighs the block, a second time where it had not known before, and goes on at
// once, and its O is brought to the new maximum in the next slot, between the two products: there the four warps tell
// each other, under the S just issued, whether one of them has to wait.
//
// The loop has two slots, for the two directions of the buffers; a tile may begin in either. On the path that most
// rounds take all exponentials, sums and conversions stand under products (`invoke sass 26 --order`).
#pragma once

#include "hopper/slots.cuh"

namespace flashladder::hopper {

struct Flattened {
    // P V with `before`, S of the next block, which becomes `now`.
    template <typename Slots>
    static __device__ __forceinline__ void slot(Slots &slots, typename Slots::Weights &before,
                                                typename Slots::Weights &now) {
        auto &group = slots.group;
        slots.settle();
        // A CTA that has a part of a tile's blocks has one tile, and so fewer blocks than opens another one.
        const bool opens = ++slots.block == slots.cta.args.n_kv_blocks;
        auto q = group.q;  // O of the tile before leaves through its own
        if (opens) {
            slots.block = 0;
            q.next();
            slots.cta.q.wait(q);
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
        float grown[2];
        if (opens) {
            slots.follow(true, grown);
            ptx::wgmma_wait<0>();
            ptx::pin(group.o);
            group.store(slots.work.tile());
            slots.work.next();
            slots.begin_tile();
        } else if (slots.must_follow()) {
            slots.follow(false, grown);
            slots.fall_behind(grown);
        }
        typename Slots::Sums sums;
        slots.weigh(now, sums);
        if (slots.outgrown(sums)) {
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
        slots.first();
#pragma unroll 1
        while (slots.done < slots.all) {
            slot(slots, slots.group.p, slots.other);
            if (slots.done == slots.all) {  // an even number of blocks: the last weights, which no product reads yet
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

}  // namespace flashladder::hopper
