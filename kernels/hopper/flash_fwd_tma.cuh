// Body of the Hopper kernels: rings of tiles in shared memory, and how the copy engine fills them.
//
// A CTA computes B_r rows of O for one head of one sample: S = Q K^T, online softmax, O += P V, block by block of B_c
// rows of K and V. Who copies and who multiplies is the roles' part, how is the main loop's. Blocks are visited from
// the last to the first: the one that may be ragged comes first, and is masked outside of the steady loop.
#pragma once

#include <cstdint>

#include "hopper/args.cuh"
#include "hopper/contracts.cuh"
#include "hopper/geometry.cuh"
#include "hopper/tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace flashladder::hopper {

template <typename Kernel_>
struct Cta {
    using Kernel = Kernel_;
    static_assert(contract::kept<contract::Pipeline, typename Kernel::Pipeline>);
    static_assert(contract::kept<contract::Roles, typename Kernel::Roles>);
    static_assert(contract::kept<contract::Mainloop, typename Kernel::Mainloop>);
    static_assert(contract::kept<contract::Softmax, typename Kernel::Softmax>);
    static_assert(contract::kept<contract::Scheduler, typename Kernel::Scheduler>);
    static_assert(contract::kept<contract::Epilogue, typename Kernel::Epilogue>);
    using G = Geometry<Kernel>;
    using value_t = typename Kernel::value_t;
    using Epilogue = typename Kernel::Epilogue;
    using Scheduler = typename Kernel::Scheduler;
    using Softmax = typename Kernel::Softmax;
    using QRing = typename Kernel::Pipeline::template Ring<Kernel::q_stages, G::q_bytes>;
    using KRing = typename Kernel::Pipeline::template Ring<Kernel::k_stages, G::kv_bytes>;
    using VRing = typename Kernel::Pipeline::template Ring<Kernel::v_stages, G::kv_bytes>;
    static_assert(QRing::bytes + KRing::bytes + VRing::bytes == G::smem_stats - G::smem_barriers);
    static constexpr bool splits = contract::Scheduler<Scheduler>::splits;
    static_assert(splits == contract::Epilogue<Epilogue>::merges, "what is split is merged");

    const HopperArgs &args;
    const std::uint32_t smem;  // shared address of the CTA's tiles
    const QRing q;
    const KRing k;
    const VRing v;

    __device__ __forceinline__ Cta(const HopperArgs &arguments, std::uint32_t smem_address)
        : args(arguments),
          smem(smem_address),
          q{smem + G::smem_q, smem + G::smem_barriers},
          k{smem + G::smem_k, q.barriers + QRing::bytes},
          v{smem + G::smem_v, k.barriers + KRing::bytes} {}

    // All threads, before anything else.
    __device__ __forceinline__ void begin() const {
        if (threadIdx.x == 0) {
            ptx::prefetch_map(args.q);
            ptx::prefetch_map(args.k);
            ptx::prefetch_map(args.v);
            q.init(G::consumer_warps);
            k.init(G::consumer_warps);
            v.init(G::consumer_warps);
            ptx::mbarrier_fence_init();
        }
        __syncthreads();  // nobody waits for a barrier that is none yet
    }

    // One thread: a tile of Q, each warpgroup's rows as a tile of their own.
    __device__ __forceinline__ void load_q(const Tile &tile, const typename QRing::Place &at) const {
        const std::uint32_t full = q.claim(at);
#pragma unroll
        for (int group = 0; group < G::n_consumers; ++group) {
            ptx::tma_load(q.tile(at) + group * G::group_bytes, args.q, full, tile.q_block * G::B_r + group * G::rows,
                          tile.head, tile.batch);
        }
    }

    // One thread: the block of K, or V, that is visited as number `i`.
    __device__ __forceinline__ void load_k(const Tile &tile, int i, const typename KRing::Place &at) const {
        ptx::tma_load(k.tile(at), args.k, k.claim(at), first_row(i), tile.head, tile.batch);
    }
    __device__ __forceinline__ void load_v(const Tile &tile, int i, const typename VRing::Place &at) const {
        ptx::tma_load(v.tile(at), args.v, v.claim(at), first_row(i), tile.head, tile.batch);
    }

    // First row of the block that is visited as number `i`.
    __device__ __forceinline__ int first_row(int i) const { return (args.n_kv_blocks - 1 - i) * G::B_c; }

    // Which blocks of a tile this CTA visits.
    __device__ __forceinline__ auto visits() const { return visits_of<typename Kernel::Scheduler, splits>(args); }

    // Rows of the block that this CTA visits first: 1 to B_c.
    __device__ __forceinline__ int ragged_rows() const { return opening_rows<splits>(*this); }

    // Rows of a tile's last block, which is visited first: 1 to B_c.
    __device__ __forceinline__ int last_rows() const { return args.seq_len - first_row(0); }
};

}  // namespace flashladder::hopper
