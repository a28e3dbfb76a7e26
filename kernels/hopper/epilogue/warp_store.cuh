// Epilogue `warp_store` (iteration 25): each warp sends its 16 rows of O itself, and waits for nobody's store.
//
// O goes out through the place of the warpgroup's Q, as before, but as a tile of 16 rows per warp: a warp that has
// written its own asks for its own copy, and begins the next tile while the copy engine reads. The one meeting that is
// left is in front: the four warps' products all read the Q that is overwritten. Its stage is the producer's again when
// the copies have read it, which is asked a block later (`settle`).
#pragma once

#include <cstdint>

#include "ampere/softmax/rows.cuh"
#include "hopper/accumulators.cuh"
#include "hopper/geometry.cuh"
#include "hopper/tile.cuh"
#include "ptx/roles.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"

namespace flashladder::hopper {

struct WarpStore {
    static constexpr int box_rows = 16;  // of the map of O: a warp's

    // The warp's first row of the map of O.
    template <typename Cta, typename Consumer>
    static __device__ __forceinline__ int first_row(const Cta &, const Consumer &me, const Tile &tile) {
        using G = typename Cta::G;
        return (Cta::packed ? tile.q_block : tile.q_block * G::B_r) + me.group * G::rows + me.warp * box_rows;
    }

    // `smem`: of the warpgroup's Q.
    template <typename Cta, typename Consumer, int m_tiles, int n_tiles>
    static __device__ __forceinline__ void write(const Cta &cta, const Consumer &me, const Tile &tile,
                                                 std::uint32_t smem, float (&o)[m_tiles][n_tiles][4],
                                                 RowStats<m_tiles> &stats) {
        using G = typename Cta::G;
        static_assert(m_tiles == 1, "a warp has 16 rows");
        const std::uint32_t own = smem + me.warp * (box_rows * 2 * kHalfRow);
        normalize<Cta::told>(o, stats);
        if constexpr (Cta::Problem::writes_lse) {
            if (cta.args.lse != nullptr) {
                const std::int64_t head =
                    static_cast<std::int64_t>(Cta::packed ? 0 : tile.batch) * cta.args.n_heads + tile.head;
                const int end = Cta::packed ? kPackedEnd : cta.args.q_len;  // of the tile's rows
                write_lse(cta.args.lse + head * cta.args.q_len + (Cta::packed ? tile.batch - kPackedEnd : 0),
                          first_row(cta, me, tile), end, me.lane, stats);
            }
        }
        ptx::barrier_sync(me.own_barrier(), kWarpgroup);  // all four warps have read Q for the last time
#pragma unroll
        for (int t = 0; t < n_tiles / 2; ++t) {
            std::uint32_t packed[4];
            pack_columns<typename Cta::value_t>(packed, o[0], t);
            ptx::stmatrix_x4(own + swizzled<box_rows>(me.lane % 16, 2 * t + me.lane / 16), packed);
        }
        ptx::fence_proxy_async();
        __syncwarp();  // the warp's rows are whole, and the copy engine will see them
        if (ptx::elect_one()) {
            if constexpr (Cta::packed) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    ptx::tma_store_packed(cta.args.o, own + half * box_rows * kHalfRow, half * kHalfRow / 2,
                                          first_row(cta, me, tile), tile.head, tile.batch);
                }
            } else {
                ptx::tma_store(cta.args.o, own, first_row(cta, me, tile), tile.head, tile.batch);
            }
            ptx::tma_store_commit();
        }
    }

    // The copy engine has read what this thread asked it to store: the place may be overwritten, or end with the CTA.
    static __device__ __forceinline__ void settle() { ptx::tma_store_wait_read<0>(); }
};

}  // namespace flashladder::hopper
