// Roles `ping_pong` (iteration 23): two consumer warpgroups take turns to issue their products.
//
// Without an order both come to their softmax together, and the tensor cores idle: at d_head 128 the exponentials alone
// take half as long as the products. With turns one warpgroup's products stand between the other's, and so its softmax
// lies under them. A turn ends when the products are issued, not when they are done.
#pragma once

#include "hopper/roles/specialised.cuh"

namespace flashladder::hopper {

struct PingPong {
    static constexpr int n_threads(int n_consumers) { return Specialised::n_threads(n_consumers); }

    template <typename Cta>
    struct Consumer : Specialised::Consumer<Cta> {
        static_assert(Cta::G::n_consumers == 2, "turns are between two");
        static constexpr int both = 2 * kWarpgroup;

        __device__ __forceinline__ explicit Consumer(const Cta &cta) : Specialised::Consumer<Cta>(cta) {
            if (this->group == 1) {
                pass_turn();  // the first turn is warpgroup 0's
            }
        }

        // Barrier 1 is where warpgroup 0 waits, 2 where 1 does; the other one only arrives.
        __device__ __forceinline__ void take_turn() const { ptx::barrier_sync(1 + this->group, both); }
        __device__ __forceinline__ void pass_turn() const { ptx::barrier_arrive(2 - this->group, both); }
    };

    template <typename Cta>
    static __device__ __forceinline__ void run(const Cta &cta) {
        Specialised::split<Consumer>(cta);
    }
};

}  // namespace flashladder::hopper
