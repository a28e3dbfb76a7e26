// What a consumer warpgroup keeps from slot to slot while it works through the blocks of all its tiles without a break.
//
// A slot is the work for one block; the main loop `flattened` gives its order. Here are the very first block (before
// any P V), the last P V (after the last S), and the steps of a slot.
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
    using Sums = float[2][2];                       // of a lane's weights: [row][half of the block's keys]
    static constexpr int most_slots = 0x7fffffff;
    static constexpr float no_key = -1e30f;  // below every scaled score

    const Cta &cta;
    Consumer &me;
    Warpgroup<Cta, Consumer> group;            // its p is the first buffer of P
    Weights other;                             // the second buffer of P
    typename Cta::Scheduler work;              // the tile that O belongs to
    typename Cta::VRing::Place v_before = {};  // V's stage of the P V that was issued one slot earlier
    int block = 0;                             // number of the block within this CTA's part of the tile, as visited
    int done = 0;                              // slots; counters, as flags take 35 instructions more (decision 027)
    float limit[2];                            // largest allowed weight of each row under the current maximum
    int late = 0;                              // 1: O of this warp has not been rescaled to the current maximum yet
    float factor[2];                           // per row: rescales O to the current maximum
    int all;                                   // slots in total; if CTAs share tiles, of one tile
    int unsure;    // blocks after a tile's first that always update the maximum: with few keys or blocks limits mislead
    WorkTile own;  // where tiles differ: the tile that S belongs to
    Tile stored;   // and the one that O belongs to
    int whole;     // and blocks at its beginning of which this warpgroup's rows see all keys

    __device__ __forceinline__ Slots(const Cta &cta_, Consumer &me_)
        : cta(cta_), me(me_), group(cta_, me_), work(cta_.args) {
        if constexpr (!Cta::told) {
            const int step = static_cast<int>(gridDim.x);
            const int tiles = work.tiles() - work.at;
            unsure = blocks() < 4 ? 2 : cta.ragged_rows() < G::B_c ? 1 : 0;
            all = (tiles + step - 1) / step * blocks() - 1;
        }
    }

    // Where tiles differ: the one whose Q is at `at` begins, with the block that is visited `slots` after the first.
    __device__ __forceinline__ void open(const typename Cta::QRing::Place &at, int slots) {
        if constexpr (Cta::told) {
            own = cta.work_at(at);
            whole = max(own.reach + me.group * G::rows, 0) / G::B_c;
            unsure = own.blocks < 4 ? 2 : !Cta::causal && own.valid < G::B_c ? 1 : 0;
            all = own.is_last ? slots + own.blocks - 1 : most_slots;
        }
    }

    // S of a block that not all rows see whole.
    __device__ __forceinline__ void mask_rows() {
        if constexpr (Cta::causal) {
            if (block >= whole) {
                const int row = me.group * G::rows + me.warp * 16 + me.lane / 4;  // of the tile, the upper of two
                mask_diagonal(group.s, own.reach - 1 + row - block * G::B_c);
            }
        }
    }

    // The tile that O belongs to; the next one after it.
    __device__ __forceinline__ Tile tile_of_o() const {
        if constexpr (Cta::told) {
            return stored;
        } else {
            return work.tile();
        }
    }
    __device__ __forceinline__ void next_tile() {
        if constexpr (Cta::told) {
            stored = own.tile;
        } else {
            work.next();
        }
    }

    // Whether this CTA computes any tile: of packed sequences only the producer finds out.
    __device__ __forceinline__ bool any() const {
        cta.q.wait(group.q);
        return cta.blocks_at(group.q) > 0;
    }

    // Blocks of a tile that this CTA visits.
    __device__ __forceinline__ int blocks() const { return cta.visits().end() - cta.visits().first(); }

    // The block that begins the next tile. If CTAs share tiles, each has a part of one, and `block` never gets there.
    __device__ __forceinline__ int end_of_tile() const {
        if constexpr (Cta::told) {
            return own.blocks;
        } else {
            return cta.args.n_kv_blocks;
        }
    }

    // Keys of the tile visited so far; with shared tiles an upper bound, as only one CTA has the ragged block.
    __device__ __forceinline__ int seen() const {
        if constexpr (Cta::splits || Cta::causal) {
            return (block + 1) * G::B_c;
        } else {
            return (Cta::packed ? own.valid : cta.ragged_rows()) + block * G::B_c;
        }
    }

    // Keys that a row of the tile sees, about.
    __device__ __forceinline__ int keys() const {
        if constexpr (Cta::told) {
            return own.blocks * G::B_c;
        } else {
            return cta.args.seq_len;
        }
    }

    __device__ __forceinline__ void first() {
        cta.q.wait(group.q);
        open(group.q, 0);
        if constexpr (Cta::told) {
            next_tile();
        }
        cta.k.wait(group.k);
        me.take_turn();
        ptx::wgmma_fence();
        group.issue_qk(group.q);
        ptx::wgmma_commit();
        me.pass_turn();
        ptx::wgmma_wait<0>();
        group.take_s();
        mask_rows();
        float grown[2];  // unused on the first block
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
                return Cta::Epilogue::merge(cta, me, tile_of_o(), group.o, group.stats);
            }
        }
        group.store(tile_of_o(), group.stats);
    }

    __device__ __forceinline__ void issue_pv(Weights &weights) {
        ptx::pin(weights);
        ptx::wgmma_fence();
        multiply_pv<typename Cta::value_t, G::B_c>(group.o, weights, cta.v.tile(group.v));
        ptx::wgmma_commit();
    }

    // P V of two blocks before is done: its V stage goes back to the producer; `weights`, its operand, may be reused.
    __device__ __forceinline__ void take_weights(Weights &weights) {
        ptx::pin(weights);
        if (done > 0) {
            cta.v.release(v_before);
        }
        v_before = group.v;
        group.v.next();
    }

    // After a block that always updates its maximum: sets the limits of its rows. If that block opened a tile: gives
    // back the stage of Q through which O of the tile before was stored.
    __device__ __forceinline__ void settle() {
        if (must_follow()) {
            Softmax::decide(limit, group.stats, seen(), keys());
            if (block == 0 && done > 0) {
                group.give_back();
            }
        }
    }

    // Whether this block updates the row maxima unconditionally.
    __device__ __forceinline__ bool must_follow() const { return block <= unsure; }

    // Valid keys of the block that opens a tile. For a CTA's first tile that is any block if CTAs share the tile; for a
    // later tile it is the tile's last block.
    template <bool first>
    __device__ __forceinline__ int opening_rows() const {
        if constexpr (Cta::packed) {
            return own.valid;
        } else {
            return first ? cta.ragged_rows() : cta.last_rows();
        }
    }

    template <bool first = false>
    __device__ __forceinline__ void follow(bool opens, float (&grown)[2]) {
        if constexpr (!Cta::causal) {
            if (opens && opening_rows<first>() < G::B_c) {
                mask_columns(group.s, opening_rows<first>());
            }
        }
        Softmax::follow(group.s, group.stats, cta.args.scale_log2, opens, grown);
        if constexpr (Cta::told) {
            if (opens) {  // a row without keys: no -inf, from which -inf would be subtracted
                group.stats.m[0][0] = fmaxf(group.stats.m[0][0], no_key);
                group.stats.m[0][1] = fmaxf(group.stats.m[0][1], no_key);
            }
        }
    }

    // The maximum of a row grew while P V is in flight: rescales l now, and leaves O to the next slot.
    __device__ __forceinline__ void fall_behind(const float (&grown)[2]) {
        Softmax::rescale(group.stats, grown, limit, factor);
        late = 1;
    }

    // If one of the four warps has an O under an older maximum, all four wait for products, and that warp rescales its
    // O: wgmma.wait_group is .aligned over the warpgroup, so that no warp may wait alone. The wait includes S: if O
    // is touched while S is in flight, ptxas puts a wait after every product (C7514, nvcc 13.0.88).
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

    // O of the tile that has ended is stored once its last P V is done, and the next one's begins.
    __device__ __forceinline__ void end_tile(RowStats<1> &of_o) {
        ptx::wgmma_wait<0>();
        ptx::pin(group.o);
        group.store(tile_of_o(), of_o);
        next_tile();
        begin_tile();
    }

    __device__ __forceinline__ void begin_tile() {
        clear(group.o);
        group.stats.l[0][0] = group.stats.l[0][1] = 0.0f;
    }

    // Whether a weight of the warp is above its row's limit. Sums rule most blocks out; only if one is above the limit
    // are the weights themselves compared.
    __device__ __forceinline__ bool outgrown(const Sums &sums) const {
        return Softmax::suspicious(sums, limit) && !must_follow() &&
               Softmax::outgrown(group.s, group.stats, cta.args.scale_log2, limit);
    }

    // Computes P under the current maximum and the sums of this lane's rows; S is not changed.
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
