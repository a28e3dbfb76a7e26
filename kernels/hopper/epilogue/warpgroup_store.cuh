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
    static constexpr bool in_place_of_q = true;

    template <typename Cta, typename Consumer, int m_tiles, int n_tiles>
    static __device__ __forceinline__ void write(const Cta &cta, const Consumer &me, const Tile &tile,
                                                 float (&o)[m_tiles][n_tiles][4], RowStats<m_tiles> &stats) {
        using G = typename Cta::G;
        const std::uint32_t smem = cta.smem + G::smem_q + me.group * G::group_bytes;
        normalize(o, stats);
        ptx::barrier_sync(me.own_barrier(), kWarpgroup);  // all four warps have read Q for the last time
        const int row = me.warp * m_tiles * 16 + me.lane % 16;
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
            for (int t = 0; t < n_tiles / 2; ++t) {  // 16 columns: rows 0-7, 8-15 of the left eight, then of the right
                const std::uint32_t packed[4] = {
                    ptx::pack<typename Cta::value_t>(o[m][2 * t][0], o[m][2 * t][1]),
                    ptx::pack<typename Cta::value_t>(o[m][2 * t][2], o[m][2 * t][3]),
                    ptx::pack<typename Cta::value_t>(o[m][2 * t + 1][0], o[m][2 * t + 1][1]),
                    ptx::pack<typename Cta::value_t>(o[m][2 * t + 1][2], o[m][2 * t + 1][3])};
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

    // Before a consumer ends: shared memory lives no longer than the CTA, and the copy engine may still read it.
    static __device__ __forceinline__ void finish() { ptx::tma_store_wait_read<0>(); }
};

}  // namespace flashladder::hopper
