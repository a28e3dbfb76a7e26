// Epilogue `offsets` (iteration 1): O through shared memory, the swizzled address of every access computed at run time.
//
// The detour turns 4-byte fragments into 16-byte stores of whole rows. A warp writes and reads only its own rows of the
// region that held its rows of Q (whoever copied those, it was long before), so a warp barrier is enough.
#pragma once

#include <cstdint>

#include "ampere/geometry.cuh"
#include "host/args.cuh"
#include "ptx/store.cuh"

namespace flashladder {

struct Offsets {
    // o: (m_tiles, o_n_tiles, 2) packed pairs of this warp's rows, g and g + 8 of each m-tile.
    template <typename Cta, int m_tiles, int n_tiles>
    static __device__ __forceinline__ void write(const Cta &cta, const FlashFwdArgs &args,
                                                 const std::uint32_t (&o)[m_tiles][n_tiles][2]) {
        const std::uint32_t tile = cta.smem + Cta::smem_q;
        const int first_row = cta.warp * Cta::rows_per_warp;
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = first_row + m * kMmaM + half * 8 + cta.lane / 4;
#pragma unroll
                for (int n = 0; n < n_tiles; ++n) {
                    ptx::store_shared_4(tile + Cta::template offset<Cta::B_r>(row, n) + cta.lane % 4 * 4,
                                        o[m][n][half]);
                }
            }
        }
        __syncwarp();  // the rows that this warp reads next are the rows that it wrote
        const int thread_row = first_row + cta.lane / 16;
        const int unit = cta.lane % 16;
        const auto rows = Cta::o_gmem(args, thread_row, unit * kUnitBytes);
#pragma unroll
        for (int i = 0; i < Cta::rows_per_warp; i += 2) {
            const uint4 value = ptx::load_shared_16(tile + Cta::template offset<Cta::B_r>(thread_row + i, unit));
            Cta::store_global(rows.at(i), value);
        }
    }
};

}  // namespace flashladder
