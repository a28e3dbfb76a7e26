// Main loop `flattened` (iteration 26): one loop over all blocks of all tiles of a CTA, in which nothing waits for P V.
//
// A slot issues S = Q K^T of a block and P V of the block before, and waits for S and for the P V of two blocks before
// (groups end in order). With two buffers of P that is all it needs: while no row's maximum is outgrown, O stays as it
// is under the product. A block that opens the next tile is a slot like any other, whose maximum is always followed:
// there, as where a row outgrew its maximum, O is waited for. The old tile's O leaves, and its end lies under the new
// tile's first products.
//
// The two slots of the loop are the two directions of the buffers; a boundary may fall on either.
#pragma once

#include "hopper/warpgroup.cuh"

namespace flashladder::hopper {

template <typename Cta, typename Consumer>
struct Unbroken : Warpgroup<Cta, Consumer> {
    using G = typename Cta::G;
    using value_t = typename Cta::value_t;
    using Buffer = std::uint32_t[G::B_c / 16][4];
    using Softmax = typename Cta::Softmax;

    typename Cta::Scheduler work;
    Buffer p2;                         // the other buffer of P
    typename Cta::VRing::Place v_old;  // of the product that is waited for beside S
    int block = 0;                     // of the tile, in the order of visits
    int left;                          // slots to come
    float grown[2];

    __device__ __forceinline__ Unbroken(const Cta &cta, Consumer &me) : Warpgroup<Cta, Consumer>(cta, me), work(cta.args) {}

    // P of the block whose S is there, of one that opens a tile or of another.
    __device__ __forceinline__ void weights(Buffer &p, bool opens) {
        if (opens) {
            this->stats.m[0][0] = this->stats.m[0][1] = 0.0f;
        }
        Softmax::shift(this->s, this->stats.m, this->cta.args.scale_log2);
        if (Softmax::outgrown(this->s) || opens) {
            if (opens && this->cta.ragged_rows() < G::B_c) {
                mask_columns(this->s, this->cta.ragged_rows());
            }
            Softmax::follow(this->s, this->stats, grown, opens);
            ptx::wgmma_wait<0>();
            ptx::pin(this->o);
            if (opens) {
                open_tile();
            } else {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float factor = ptx::ex2(-grown[half]);
                    this->stats.l[0][half] *= factor;
                    scale_row(this->o[0], half, factor);
                }
            }
        }
        Softmax::exponentials(this->s, this->stats);
        pack_weights<value_t>(p, this->s);
    }

    // O of the tile before leaves; the next one's begins.
    __device__ __forceinline__ void open_tile() {
        this->store(work.tile());
        work.next();
        begin_sums();
    }

    __device__ __forceinline__ void begin_sums() {
        clear(this->o);
        this->stats.l[0][0] = this->stats.l[0][1] = 0.0f;
    }

    __device__ __forceinline__ void first_slot() {
        this->cta.q.wait(this->q);
        this->cta.k.wait(this->k);
        this->me.take_turn();
        ptx::wgmma_fence();
        this->issue_qk();
        ptx::wgmma_commit();
        this->me.pass_turn();
        ptx::wgmma_wait<0>();
        this->take_s();
        this->stats.m[0][0] = this->stats.m[0][1] = 0.0f;
        Softmax::shift(this->s, this->stats.m, this->cta.args.scale_log2);
        if (this->cta.ragged_rows() < G::B_c) {
            mask_columns(this->s, this->cta.ragged_rows());
        }
        Softmax::follow(this->s, this->stats, grown, true);
        begin_sums();
        Softmax::exponentials(this->s, this->stats);
        pack_weights<value_t>(this->p, this->s);
    }

    __device__ __forceinline__ void slot(Buffer &before, Buffer &now) {
        const bool opens = ++block == this->cta.args.n_kv_blocks;
        if (this->is_stored) {
            this->settle();
            this->is_stored = false;
        }
        auto q = this->q;
        if (opens) {
            block = 0;
            q.next();
            this->cta.q.wait(q);
        }
        this->cta.k.wait(this->k);
        this->cta.v.wait(this->v);
        this->me.take_turn();
        ptx::pin(this->s);
        ptx::pin(before);
        ptx::wgmma_fence();
        multiply_qk<value_t, G::B_c>(this->s, this->cta.q.tile(q) + this->me.group * G::group_bytes, this->cta.k.tile(this->k));
        ptx::wgmma_commit();
        multiply_pv<value_t, G::B_c>(this->o, before, this->cta.v.tile(this->v));
        ptx::wgmma_commit();
        this->me.pass_turn();
        ptx::wgmma_wait<1>();
        this->take_s();
        ptx::pin(now);
        if (this->v_started) {
            this->cta.v.release(v_old);
        }
        v_old = this->v;
        v_started = true;
        this->v.next();
        weights(now, opens);
        --left;
    }
    bool v_started = false;
};

struct Flattened {
    template <typename Cta, typename Consumer>
    static __device__ __forceinline__ void run(const Cta &cta, Consumer &me) {
        static_assert(Cta::Kernel::v_stages >= 3, "a slot has two products under way");
        Unbroken<Cta, Consumer> group(cta, me);
        const int tiles = cta.args.n_q_blocks * cta.args.n_heads * cta.args.batch;
        const int mine = (tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
        group.left = mine * cta.args.n_kv_blocks - 1;
        group.first_slot();
#pragma unroll 1
        while (true) {
            if (group.left == 0) {
                break;
            }
            group.slot(group.p, group.p2);
            if (group.left == 0) {
                ptx::wgmma_wait<0>();
                for (int i = 0; i < Cta::G::B_c / 16 * 4; ++i) {
                    group.p[i / 4][i % 4] = group.p2[i / 4][i % 4];
                }
                break;
            }
            group.slot(group.p2, group.p);
        }
        cta.v.wait(group.v);
        group.hand_over();
        group.issue_pv();
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::pin(group.o);
        group.store(group.work.tile());
        Cta::Epilogue::settle();
    }
};

}  // namespace flashladder::hopper
