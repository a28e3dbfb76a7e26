// A consumer warpgroup that goes through the blocks of all its tiles without a stop: what it holds from slot to slot.
//
// A slot is what is done for one block; the main loop `flattened` says in which order. Here are the first block of all,
// which no P V goes before, the last P V, which no S comes after, and the steps between.
#pragma once

#include <cstdint>

#include "hopper/warpgroup.cuh"

namespace flashladder::hopper {

template <typename Cta_, typename Consumer>
struct Slots {
    using Cta = Cta_;
    using G = typename Cta::G;
    using Softmax = typename Cta::Softmax;
    using Weights = std::uint32_t[G::B_c / 16][4];  // P of a block
    using Sums = float[2][2];                       // of a lane's weights: of a row, of half of the block's keys

    const Cta &cta;
    Consumer &me;
    Warpgroup<Cta, Consumer> group;            // whose P is one buffer of weights
    Weights other;                             // the other one
    typename Cta::Scheduler work;              // the tile that O belongs to
    typename Cta::VRing::Place v_before = {};  // of the product before the last one
    int block = 0;                             // of the tile's that this CTA visits, in the order of visits
    int done = 0;                              // slots; numbers, as flags take 35 instructions more (decision 027)
    float limit[2];                            // of the weights of each row under the maximum in use
    int late = 0;                              // 1: O of this warp is still under the maximum before the one in use
    float factor[2];                           // of each row, which brings it to the one in use
    int all;                                   // slots that there are: of one tile where CTAs share tiles
    int unsure;  // blocks behind the first that follow: a few keys, or a few blocks, tell too little of a row

    __device__ __forceinline__ Slots(const Cta &cta_, Consumer &me_)
        : cta(cta_), me(me_), group(cta_, me_), work(cta_.args) {
        const int step = static_cast<int>(gridDim.x);
        const int tiles = work.tiles() - work.at;
        unsure = blocks() < 4 ? 2 : cta.ragged_rows() < G::B_c ? 1 : 0;
        all = (tiles + step - 1) / step * blocks() - 1;
    }

    // Blocks of a tile that this CTA visits.
    __device__ __forceinline__ int blocks() const { return cta.visits().end() - cta.visits().first(); }

    // Keys of the blocks visited so far, of the tile; at most so many where the first of them may be another CTA's.
    __device__ __forceinline__ int seen() const {
        if constexpr (Cta::splits) {
            return (block + 1) * G::B_c;
        } else {
            return cta.ragged_rows() + block * G::B_c;
        }
    }

    __device__ __forceinline__ void first() {
        cta.q.wait(group.q);
        cta.k.wait(group.k);
        me.take_turn();
        ptx::wgmma_fence();
        group.issue_qk(group.q);
        ptx::wgmma_commit();
        me.pass_turn();
        ptx::wgmma_wait<0>();
        group.take_s();
        float grown[2];  // of an m that had no value yet: nobody asks
        follow<true>(true, grown);
        begin_tile();
        Sums sums;
        weigh(group.p, sums);
        add(sums);
    }

    __device__ __forceinline__ void last() {
        catch_up();
        cta.v.wait(group.v);
        issue_pv(group.p);
        ptx::wgmma_wait<0>();
        ptx::pin(group.o);
        if constexpr (Cta::splits) {
            if (Cta::Scheduler::parts() > 1) {
                return Cta::Epilogue::merge(cta, me, work.tile(), group.o, group.stats);
            }
        }
        group.store(work.tile());
    }

    __device__ __forceinline__ void issue_pv(Weights &weights) {
        ptx::pin(weights);
        ptx::wgmma_fence();
        multiply_pv<typename Cta::value_t, G::B_c>(group.o, weights, cta.v.tile(group.v));
        ptx::wgmma_commit();
    }

    // P V of the block before the last is done: its stage is the producer's, `weights`, which it read, the threads'.
    __device__ __forceinline__ void take_weights(Weights &weights) {
        ptx::pin(weights);
        if (done > 0) {
            cta.v.release(v_before);
        }
        v_before = group.v;
        group.v.next();
    }

    // After a slot that followed whatever there was: how much scores may grow from here on. After one that opened a
    // tile the place through which the tile before it left can be given back, too.
    __device__ __forceinline__ void settle() {
        if (must_follow()) {
            Softmax::decide(limit, group.stats, seen(), cta.args.seq_len);
            if (block == 0 && done > 0) {
                group.give_back();
            }
        }
    }

    // Whether rows agree on their maximum whatever it is.
    __device__ __forceinline__ bool must_follow() const { return block <= unsure; }

    // Rows of a block that opens a tile. The CTA's first may be any block of one that others share; a later one is the
    // last of a tile of its own.
    template <bool first>
    __device__ __forceinline__ int opening_rows() const {
        return first ? cta.ragged_rows() : cta.last_rows();
    }

    template <bool first = false>
    __device__ __forceinline__ void follow(bool opens, float (&grown)[2]) {
        if (opens && opening_rows<first>() < G::B_c) {
            mask_columns(group.s, opening_rows<first>());
        }
        Softmax::follow(group.s, group.stats, cta.args.scale_log2, opens, grown);
    }

    // The warp's maximum has grown while P V is under way: l is brought to it now, O in the next slot.
    __device__ __forceinline__ void fall_behind(const float (&grown)[2]) {
        Softmax::rescale(group.stats, grown, limit, factor);
        late = 1;
    }

    // Where one of the four warps has an O under an older maximum, all wait for their products, and that O is brought
    // to the one in use: wgmma.wait_group is .aligned over the warpgroup, so that no warp may wait alone. It waits for
    // S, too: where O is touched while S is under way, ptxas puts a wait behind every product (C7514, nvcc 13.0.88).
    __device__ __forceinline__ void catch_up() {
        if (ptx::barrier_any(me.own_barrier(), kWarpgroup, late)) {
            ptx::wgmma_wait<0>();
            ptx::pin(group.o);
            if (late) {
                scale_row(group.o[0], 0, factor[0]);
                scale_row(group.o[0], 1, factor[1]);
                late = 0;
            }
        }
    }

    __device__ __forceinline__ void begin_tile() {
        clear(group.o);
        group.stats.l[0][0] = group.stats.l[0][1] = 0.0f;
    }

    // Whether a weight is above its row's limit, as far as the sums of a lane's tell, and then by the weights
    // themselves.
    __device__ __forceinline__ bool outgrown(const Sums &sums) const {
        return Softmax::suspicious(sums, limit) && !must_follow() &&
               Softmax::outgrown(group.s, group.stats, cta.args.scale_log2, limit);
    }

    // P of the block under the maximum in use, and the sums of a lane's rows; S stays as it is.
    __device__ __forceinline__ void weigh(Weights &weights, Sums &sums) {
        float p[1][G::B_c / 8][4];
        Softmax::weigh(p, sums, group.s, group.stats, cta.args.scale_log2);
        pack_weights<typename Cta::value_t>(weights, p);
    }

    __device__ __forceinline__ void add(const Sums &sums) {
        group.stats.l[0][0] += sums[0][0] + sums[0][1];
        group.stats.l[0][1] += sums[1][0] + sums[1][1];
    }
};

}  // namespace flashladder::hopper
