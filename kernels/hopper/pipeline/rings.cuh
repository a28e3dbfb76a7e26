// Pipeline `rings` (iteration 20): tiles go round in stages, each with a full and an empty mbarrier.
//
// `full`: the producer's one arrival announces the tile's bytes, the copy engine counts them off. `empty`: one arrival
// of each warp that has read the tile. Nobody meets at a barrier of the whole CTA: a warp that is late delays the copy
// into the one stage that it still reads, and others run on with the next one.
#pragma once

#include <cstdint>

#include "hopper/geometry.cuh"
#include "ptx/mbarrier.cuh"

namespace flashladder::hopper {

struct Rings {
    // Where a warp stands in a ring. Parities begin at 0 and flip with each round.
    template <int stages>
    struct Place {
        int stage = 0;
        std::uint32_t parity = 0;

        // Of tile number `i`, from 0.
        static __device__ __forceinline__ Place of(int i) {
            return {i % stages, static_cast<std::uint32_t>(i / stages % 2)};
        }

        __device__ __forceinline__ void next() {
            if (++stage == stages) {
                stage = 0;
                parity ^= 1;
            }
        }

        __device__ __forceinline__ Place after() const {
            Place place = *this;
            place.next();
            return place;
        }
    };

    template <int n_stages, int tile_bytes>
    struct Ring {
        using Place = Rings::Place<n_stages>;
        static constexpr int bytes = n_stages * 16;  // of barriers

        const std::uint32_t tiles;     // shared address of stage 0
        const std::uint32_t barriers;  // full[n_stages], empty[n_stages]

        __device__ __forceinline__ std::uint32_t full(const Place &at) const { return barriers + 8 * at.stage; }
        __device__ __forceinline__ std::uint32_t empty(const Place &at) const {
            return barriers + 8 * (n_stages + at.stage);
        }

        // One thread, once.
        __device__ __forceinline__ void init(int readers) const {
#pragma unroll
            for (int stage = 0; stage < n_stages; ++stage) {
                ptx::mbarrier_init(barriers + 8 * stage, 1);
                ptx::mbarrier_init(barriers + 8 * (n_stages + stage), readers);
            }
        }

        // Producer: waits until the stage is free (in the first round it is: there the wait is for the phase before
        // the first, which counts as ended).
        __device__ __forceinline__ void reserve(const Place &at) const { ptx::mbarrier_wait(empty(at), at.parity ^ 1); }

        // Producer: announces a tile for a free stage. Copies to `tile` must signal the barrier returned.
        __device__ __forceinline__ std::uint32_t announce(const Place &at) const {
            ptx::mbarrier_arrive_expect(full(at), tile_bytes);
            return full(at);
        }

        // Both.
        __device__ __forceinline__ std::uint32_t claim(const Place &at) const {
            reserve(at);
            return announce(at);
        }

        // Consumer: the tile has landed after this.
        __device__ __forceinline__ void wait(const Place &at) const { ptx::mbarrier_wait(full(at), at.parity); }

        // Shared address of the tile.
        __device__ __forceinline__ std::uint32_t tile(const Place &at) const { return tiles + at.stage * tile_bytes; }

        // Consumer: this warp reads the tile no more; all of its lanes.
        __device__ __forceinline__ void release(const Place &at) const {
            if (threadIdx.x % kWarp == 0) {
                ptx::mbarrier_arrive(empty(at));
            }
        }
    };
};

}  // namespace flashladder::hopper
