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
#include "ptx/store.cuh"
#include "ptx/tma.cuh"

namespace flashladder::hopper {

template <typename Kernel_>
struct Cta {
    using Kernel = Kernel_;
    static_assert(contract::kept<contract::Problem, typename Kernel::Problem>);
    static_assert(contract::kept<contract::Pipeline, typename Kernel::Pipeline>);
    static_assert(contract::kept<contract::Roles, typename Kernel::Roles>);
    static_assert(contract::kept<contract::Mainloop, typename Kernel::Mainloop>);
    static_assert(contract::kept<contract::Softmax, typename Kernel::Softmax>);
    static_assert(contract::kept<contract::Scheduler, typename Kernel::Scheduler>);
    static_assert(contract::kept<contract::Epilogue, typename Kernel::Epilogue>);
    using G = Geometry<Kernel>;
    using value_t = typename Kernel::value_t;
    using Epilogue = typename Kernel::Epilogue;
    using Problem = typename Kernel::Problem;
    using Scheduler = typename Kernel::Scheduler;
    using Softmax = typename Kernel::Softmax;
    using QRing = typename Kernel::Pipeline::template Ring<Kernel::q_stages, G::q_bytes>;
    using KRing = typename Kernel::Pipeline::template Ring<Kernel::k_stages, G::kv_bytes>;
    using VRing = typename Kernel::Pipeline::template Ring<Kernel::v_stages, G::kv_bytes>;
    static_assert(QRing::bytes + KRing::bytes + VRing::bytes == G::smem_stats - G::smem_barriers);
    static constexpr bool splits = contract::Scheduler<Scheduler>::splits;
    static_assert(splits == contract::Epilogue<Epilogue>::merges, "what is split is merged");
    static constexpr bool causal = Kernel::causal;
    static constexpr bool packed = contract::Scheduler<Scheduler>::packed;
    static constexpr bool told = G::record_bytes > 0;  // tiles differ, and the producer tells consumers of each
    static_assert(told == (causal || packed) && !(told && splits), "the blocks of a tile are not known to all");

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
        copy_q(tile, at, q.claim(at));
    }

    // The same, and what consumers have to know of the tile besides.
    __device__ __forceinline__ void load_q(const WorkTile &work, const typename QRing::Place &at) const {
        q.reserve(at);
        const std::uint32_t to = record(at);
        const Tile &tile = work.tile;
        ptx::store_shared_16(to, tile.q_block, tile.head, tile.batch, work.blocks);
        ptx::store_shared_16(to + 16, work.reach, work.is_last, work.valid, 0);
        copy_q(tile, at, q.announce(at));
    }

    // One thread, in place of a first tile: there is none.
    __device__ __forceinline__ void tell_none(const typename QRing::Place &at) const {
        ptx::store_shared_16(record(at), 0, 0, 0, 0);
        ptx::mbarrier_arrive(q.full(at));
    }

    // Consumers, once Q is there: what the producer has told of its tile.
    __device__ __forceinline__ WorkTile work_at(const typename QRing::Place &at) const {
        const uint4 first = ptx::load_shared_16(record(at));
        const uint4 second = ptx::load_shared_16(record(at) + 16);
        return {{static_cast<int>(first.x), static_cast<int>(first.y), static_cast<int>(first.z)},
                static_cast<int>(first.w),
                static_cast<int>(second.x),
                static_cast<int>(second.y),
                static_cast<int>(second.z)};
    }

    __device__ __forceinline__ int blocks_at(const typename QRing::Place &at) const {
        return static_cast<int>(ptx::load_shared_16(record(at)).w);
    }

    __device__ __forceinline__ std::uint32_t record(const typename QRing::Place &at) const {
        return smem + G::smem_records + at.stage * G::record_bytes;
    }

    __device__ __forceinline__ void copy_q(const Tile &tile, const typename QRing::Place &at,
                                           std::uint32_t full) const {
#pragma unroll
        for (int group = 0; group < G::n_consumers; ++group) {
            if constexpr (packed) {
                copy_rows<G::rows>(q.tile(at) + group * G::group_bytes, args.q, full, tile, group * G::rows);
            } else {
                ptx::tma_load(q.tile(at) + group * G::group_bytes, args.q, full,
                              tile.q_block * G::B_r + group * G::rows, tile.head, tile.batch);
            }
        }
    }

    // One thread: rows of a packed sequence from `row` of its tile on, as two halves of d_head.
    template <int rows>
    static __device__ __forceinline__ void copy_rows(std::uint32_t to, const TensorMap &map, std::uint32_t full,
                                                     const Tile &tile, int row) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            ptx::tma_load_packed(to + half * rows * kHalfRow, map, full, half * kHalfRow / 2, tile.q_block + row,
                                 tile.head, tile.batch);
        }
    }

    // One thread: the block of K, or V, that begins at a row of its sequence's map.
    __device__ __forceinline__ void copy_k(const Tile &kv, const typename KRing::Place &at) const {
        copy_rows<G::B_c>(k.tile(at), args.k, k.claim(at), kv, 0);
    }
    __device__ __forceinline__ void copy_v(const Tile &kv, const typename VRing::Place &at) const {
        copy_rows<G::B_c>(v.tile(at), args.v, v.claim(at), kv, 0);
    }

    // One thread: the block of K, or V, that is visited as number `i`, of head `kv.head` of them.
    __device__ __forceinline__ void load_k(const Tile &kv, int i, const typename KRing::Place &at) const {
        ptx::tma_load(k.tile(at), args.k, k.claim(at), first_row(i), kv.head, kv.batch);
    }
    __device__ __forceinline__ void load_v(const Tile &kv, int i, const typename VRing::Place &at) const {
        ptx::tma_load(v.tile(at), args.v, v.claim(at), first_row(i), kv.head, kv.batch);
    }

    // First row of the block that is visited as number `i`.
    __device__ __forceinline__ int first_row(int i) const { return (causal ? i : args.n_kv_blocks - 1 - i) * G::B_c; }

    // What a tile's rows see: row r of Q the keys up to r + seq_len - q_len, so that the last row sees all.
    __device__ __forceinline__ WorkTile work_of(const Tile &tile, bool is_last) const {
        const int reach = tile.q_block * G::B_r + args.seq_len - args.q_len + 1;
        const int keys = min(reach + G::B_r - 1, args.seq_len);  // of the last row
        return {tile, max((keys + G::B_c - 1) / G::B_c, 1), reach, is_last};
    }

    // Without a mask all rows see all keys of their sequence, and the block that may be ragged is visited first.
    static __device__ __forceinline__ WorkTile work_of(const SequenceTile &one, bool is_last) {
        const int reach = one.q_block * G::B_r + one.kv_len - one.q_len + 1;
        const int keys = causal ? min(reach + G::B_r - 1, one.kv_len) : one.kv_len;
        const int blocks = max((keys + G::B_c - 1) / G::B_c, 1);
        return {one.tile, blocks, reach, is_last, keys - (blocks - 1) * G::B_c};
    }

    // Which blocks of a tile this CTA visits.
    __device__ __forceinline__ auto visits() const { return visits_of<typename Kernel::Scheduler, splits>(args); }

    // Rows of the block that this CTA visits first: 1 to B_c.
    __device__ __forceinline__ int ragged_rows() const { return opening_rows<splits>(*this); }

    // Rows of a tile's last block, which is visited first: 1 to B_c.
    __device__ __forceinline__ int last_rows() const { return args.seq_len - first_row(0); }
};

}  // namespace flashladder::hopper
