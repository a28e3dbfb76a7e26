// Epilogue `merged_store` (iteration 28): O of a tile whose blocks several CTAs have computed is put together.
//
// Each CTA of the cluster has O, m and l of all rows over its part of the keys. It leaves O as it is, in fp32, where Q
// was (in both stages: with a cluster there is no other tile), and m and l behind the barriers. Then the CTA of rank r
// merges the r-th part of the rows: a warp reads a row of all parts out of their shared memory, weighs each by
// 2^(m - largest m), and divides by the sum of their l so weighed. Rows are summed in the order of ranks: the same bits
// in every run. Without a cluster, as in large grids, this is `warp_store`.
#pragma once

#include <cstdint>

#include "hopper/epilogue/warp_store.cuh"
#include "ptx/cluster.cuh"

namespace flashladder::hopper {

struct MergedStore : WarpStore {
    static constexpr int most_parts = 8;   // CTAs of a cluster, which every GPU with clusters has
    static constexpr int stats_bytes = 8;  // of a row: m and l

    // Shared addresses of a row's O, 16 columns to 64 bytes, and of its m and l.
    template <typename Cta>
    static __device__ __forceinline__ std::uint32_t row_of_o(const Cta &cta, int row) {
        using G = typename Cta::G;
        static_assert(Cta::Kernel::q_stages == 2 && 4 * Cta::Kernel::d_head * G::rows == 2 * G::group_bytes,
                      "a warpgroup's O takes its place in both stages of Q");
        constexpr int half = G::rows / 2;
        return cta.smem + G::smem_q + row % G::rows / half * G::q_bytes + row / G::rows * G::group_bytes +
               row % half * (4 * Cta::Kernel::d_head);
    }
    template <typename Cta>
    static __device__ __forceinline__ std::uint32_t row_of_stats(const Cta &cta, int row) {
        return cta.smem + Cta::G::smem_stats + row * stats_bytes;
    }

    // Byte offset in a row of the eight columns `group`: four rows that a quad each writes are in all banks.
    static __device__ __forceinline__ std::uint32_t columns(int row, int group) { return (group ^ row % 4) * 32; }

    // This CTA's part, where the others read it.
    template <typename Cta, typename Consumer, int n_tiles>
    static __device__ __forceinline__ void put(const Cta &cta, const Consumer &me, const float (&o)[1][n_tiles][4],
                                               const RowStats<1> &stats) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = me.group * Cta::G::rows + me.warp * 16 + half * 8 + me.lane / 4;
            const std::uint32_t at = row_of_o(cta, row) + me.lane % 4 * 8;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                ptx::store_shared_8(at + columns(row, n), o[0][n][half * 2], o[0][n][half * 2 + 1]);
            }
            if (me.lane % 4 == 0) {
                ptx::store_shared_8(row_of_stats(cta, row), stats.m[0][half], stats.l[0][half]);
            }
        }
    }

    // A warp: row `row` of O, rounded, to `to`. Each group of eight lanes has what every part says of the row.
    template <typename Cta>
    static __device__ __forceinline__ void merge_row(const Cta &cta, int row, int lane, int parts, std::uint32_t to) {
        const std::uint32_t mine = row_of_o(cta, row) + columns(row, lane / 2) + lane % 2 * 16;
        const int part = lane % most_parts;
        float2 stats = {kNegInf, 0.0f};  // m, l
        if (part < parts) {
            stats = ptx::load_cluster_8(ptx::cluster_map(row_of_stats(cta, row), part));
        }
        float4 o[most_parts];
#pragma unroll
        for (int i = 0; i < most_parts; ++i) {
            if (i < parts) {
                o[i] = ptx::load_cluster_16(ptx::cluster_map(mine, i));
            }
        }
        float most = stats.x;
#pragma unroll
        for (int step = most_parts / 2; step > 0; step /= 2) {
            most = fmaxf(most, ptx::shuffle_xor(most, step));
        }
        const float weight = ptx::ex2(stats.x - most);
        float sum = weight * stats.y;
#pragma unroll
        for (int step = most_parts / 2; step > 0; step /= 2) {
            sum += ptx::shuffle_xor(sum, step);
        }
        const float share = weight * ptx::rcp(sum);
        float4 merged = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < most_parts; ++i) {
            if (i < parts) {
                const float factor = __shfl_sync(0xffffffffu, share, i);
                merged.x = fmaf(factor, o[i].x, merged.x);
                merged.y = fmaf(factor, o[i].y, merged.y);
                merged.z = fmaf(factor, o[i].z, merged.z);
                merged.w = fmaf(factor, o[i].w, merged.w);
            }
        }
        using value_t = typename Cta::value_t;
        ptx::store_shared_8(to, ptx::pack<value_t>(merged.x, merged.y), ptx::pack<value_t>(merged.z, merged.w));
    }

    // The CTA's only tile, of whose blocks others of the cluster have theirs.
    template <typename Cta, typename Consumer, int n_tiles>
    static __device__ __forceinline__ void merge(const Cta &cta, const Consumer &me, const Tile &tile,
                                                 const float (&o)[1][n_tiles][4], RowStats<1> &stats) {
        using G = typename Cta::G;
        constexpr int boxes = G::B_r / box_rows, box_bytes = box_rows * 2 * kHalfRow;
        static_assert((boxes / 2 + 1) * box_bytes <= Cta::Kernel::k_stages * G::kv_bytes, "merged rows take K's place");
        stats.reduce_l();
        ptx::barrier_sync(me.own_barrier(), kWarpgroup);  // all four warps have read Q for the last time
        put(cta, me, o, stats);
        ptx::cluster_arrive();
        ptx::cluster_wait();  // all parts are there, and no warp of this CTA reads K any more
        const int parts = ptx::cluster_size();
        const int rank = ptx::cluster_rank();
        const int first = boxes * rank / parts;
        const int end = boxes * (rank + 1) / parts;
        const int warp = me.group * (kWarpgroup / kWarp) + me.warp;
        const std::uint32_t merged = cta.smem + G::smem_k;
#pragma unroll 1
        for (int row = first * box_rows + warp; row < end * box_rows; row += G::consumer_warps) {
            const std::uint32_t box = merged + (row / box_rows - first) * box_bytes;
            merge_row(cta, row, me.lane, parts,
                      box + swizzled<box_rows>(row % box_rows, me.lane / 2) + me.lane % 2 * 8);
        }
        ptx::fence_proxy_async();
        ptx::barrier_sync(me.consumers_barrier(G::n_consumers), G::n_consumers * kWarpgroup);  // the rows are whole
        if (warp == 0 && ptx::elect_one()) {
#pragma unroll 1
            for (int box = first; box < end; ++box) {
                ptx::tma_store(cta.args.o, merged + (box - first) * box_bytes, tile.q_block * G::B_r + box * box_rows,
                               tile.head, tile.batch);
            }
            ptx::tma_store_commit();
        }
        __syncwarp();           // whoever asked for the copies is back: a warp arrives as one
        ptx::cluster_arrive();  // of other CTAs this warp reads nothing any more
        ptx::cluster_wait();    // nor does anybody read this CTA's: it may end
    }
};

}  // namespace flashladder::hopper
