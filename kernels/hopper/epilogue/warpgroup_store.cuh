// Epilogue `warpgroup_store` (iteration 20): O goes out through the place of Q, one tensor store a warpgroup.
//
// O / l, rounded to 16 bits, is written where the warpgroup's Q was, swizzled as the map of O says; then one thread has
// the copy engine write all rows. Rows beyond seq_len are outside of the map, and are not written.
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

struct WarpgroupStore {
    // `smem`: of the warpgroup's Q.
    template <typename Cta, typename Consumer, int m_tiles, int n_tiles>
    static __device__ __forceinline__ void write(const Cta &cta, const Consumer &me, const Tile &tile,
                                                 std::uint32_t smem, float (&o)[m_tiles][n_tiles][4],
                                                 RowStats<m_tiles> &stats) {
        using G = typename Cta::G;
        normalize<Cta::causal>(o, stats);
        ptx::barrier_sync(me.own_barrier(), kWarpgroup);  // all four warps have read Q for the last time
        const int row = me.warp * m_tiles * 16 + me.lane % 16;
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
            for (int t = 0; t < n_tiles / 2; ++t) {
                std::uint32_t packed[4];
                pack_columns<typename Cta::value_t>(packed, o[m], t);
                ptx::stmatrix_x4(smem + swizzled<G::rows>(row + 16 * m, 2 * t + me.lane / 16), packed);
            }
        }
        ptx::fence_proxy_async();
        ptx::barrier_sync(me.own_barrier(), kWarpgroup);  // O is whole, and the copy engine will see it
        if (me.warp == 0 && ptx::elect_one()) {
            ptx::tma_store(cta.args.o, smem, tile.q_block * G::B_r + me.group * G::rows, tile.head, tile.batch);
            ptx::tma_store_commit();
        }
    }

    // The copy engine has read what this thread asked it to store: the place may be overwritten, or end with the CTA.
    static __device__ __forceinline__ void settle() { ptx::tma_store_wait_read<0>(); }
};

}  // namespace flashladder::hopper
