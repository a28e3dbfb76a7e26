// Roles `together` (iteration 20): every warp multiplies, and one thread of the first also starts the copies.
//
// The main loop says when: where the next tile is asked for, its stage was read in the block before by all warps but
// those that are late, for which the first warp then waits.
#pragma once

#include "hopper/tile.cuh"
#include "hopper/warp.cuh"

namespace flashladder::hopper {

struct Together {
    static constexpr int n_threads(int n_consumers) { return n_consumers * kWarpgroup; }

    template <typename Cta>
    struct Consumer : Warp {
        const Cta &cta;
        static_assert(!Cta::Scheduler::several, "blocks are counted from the tile's first");

        __device__ __forceinline__ explicit Consumer(const Cta &cta_) : Warp(0), cta(cta_) {}

        __device__ __forceinline__ bool first_warp() const { return group == 0 && warp == 0; }

        __device__ __forceinline__ void fetch_q(const Tile &tile) {
            if (first_warp() && ptx::elect_one()) {
                cta.load_q(tile, {});
            }
        }

        // The block visited as number `i`, if there is one.
        __device__ __forceinline__ void fetch_k(const Tile &tile, int i) {
            if (first_warp() && i < cta.args.n_kv_blocks && ptx::elect_one()) {
                cta.load_k(tile, i, Cta::KRing::Place::of(i));
            }
        }

        __device__ __forceinline__ void fetch_v(const Tile &tile, int i) {
            if (first_warp() && i < cta.args.n_kv_blocks && ptx::elect_one()) {
                cta.load_v(tile, i, Cta::VRing::Place::of(i));
            }
        }

        __device__ __forceinline__ void take_turn() const {}
        __device__ __forceinline__ void pass_turn() const {}
    };

    template <typename Cta>
    static __device__ __forceinline__ void run(const Cta &cta) {
        Consumer<Cta> me(cta);
        Cta::Kernel::Mainloop::run(cta, me);
    }
};

}  // namespace flashladder::hopper
