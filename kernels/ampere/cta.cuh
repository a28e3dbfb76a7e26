// What every body shares: who this CTA is, its accumulators, and how O is finished.
//
// One CTA computes B_r rows of O for one head of one sample: S = Q K^T, online softmax, O += P V, block by block of B_c
// rows of K and V. The schedule part is the main loop, a body (flash_fwd_*.cuh) says how its steps reach memory.
// `Kernel` is the generated translation unit's list of parts and sizes (flashladder/ladder/compose.py).
#pragma once

#include <cstdint>

#include "ampere/geometry.cuh"
#include "ampere/matmul.cuh"
#include "ampere/softmax/rows.cuh"
#include "host/args.cuh"
#include "ptx/math.cuh"
#include "ptx/store.cuh"

namespace flashladder {

template <typename Kernel>
struct CtaState : Geometry<Kernel> {
    using G = Geometry<Kernel>;
    using value_t = typename Kernel::value_t;
    using Gmem = typename Kernel::Gmem;
    static_assert(G::n_threads == Kernel::n_threads && G::smem_bytes == Kernel::smem_bytes, "what the host launches");

    const int lane;
    const int warp;
    const std::uint32_t smem;              // shared address of the CTA's tiles
    float s[G::m_tiles][G::s_n_tiles][4];  // S, then P: (rows_per_warp, B_c) over the warp
    float o[G::m_tiles][G::o_n_tiles][4];  // O: (rows_per_warp, d_head) over the warp
    RowStats<G::m_tiles> stats;

    __device__ __forceinline__ explicit CtaState(std::uint32_t smem_address)
        : lane(threadIdx.x % kWarpSize), warp(threadIdx.x / kWarpSize), smem(smem_address) {}

    // First byte of row `row` of this CTA's head. Grid: (seq_len / B_r, n_heads, batch).
    static __device__ __forceinline__ const char *origin(const void *tensor, const TensorStrides &strides, int row) {
        return static_cast<const char *>(tensor) + blockIdx.z * strides.batch + blockIdx.y * strides.head +
               static_cast<std::int64_t>(row) * strides.seq;
    }

    // This CTA's rows of O for a thread that starts at (thread_row, thread_byte); asked for at the end, not kept.
    static __device__ __forceinline__ Gmem o_gmem(const FlashFwdArgs &args, int thread_row, int thread_byte) {
        return Gmem(origin(args.o, args.o_strides, blockIdx.x * G::B_r), args.o_strides.seq, thread_row, thread_byte);
    }

    template <int n_tiles>
    static __device__ __forceinline__ void clear(float (&acc)[G::m_tiles][n_tiles][4]) {
#pragma unroll
        for (int i = 0; i < G::m_tiles * n_tiles * 4; ++i) {
            acc[i / (n_tiles * 4)][i / 4 % n_tiles][i % 4] = 0.0f;
        }
    }

    __device__ __forceinline__ void start() { stats.clear(); }

    __device__ __forceinline__ void clear_o() { clear(o); }

    // S becomes P; O and the row statistics follow the new maximum.
    template <bool first_block>
    __device__ __forceinline__ void softmax() {
        Kernel::Softmax::template update<first_block>(s, o, stats);
    }

    // O / l, row `half` of one m-tile. __fdividef is MUFU.RCP and FMUL whatever the flags; l <= seq_len keeps it exact
    // enough.
    static __device__ __forceinline__ void normalize(float (&o_tile)[G::o_n_tiles][4], int half, float l) {
        if constexpr (Kernel::reciprocal) {
            scale_row(o_tile, half, ptx::rcp(l));
        } else {
#pragma unroll
            for (int n = 0; n < G::o_n_tiles; ++n) {
                o_tile[n][half * 2] = __fdividef(o_tile[n][half * 2], l);
                o_tile[n][half * 2 + 1] = __fdividef(o_tile[n][half * 2 + 1], l);
            }
        }
    }

    // O to 16 bits, normalized: (m_tiles, o_n_tiles, 2) registers, rows g and g + 8.
    __device__ __forceinline__ void finish(std::uint32_t (&packed)[G::m_tiles][G::o_n_tiles][2]) {
        stats.finish();
#pragma unroll
        for (int m = 0; m < G::m_tiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                normalize(o[m], half, stats.l[m][half]);
#pragma unroll
                for (int n = 0; n < G::o_n_tiles; ++n) {
                    packed[m][n][half] = ptx::pack<value_t>(o[m][n][half * 2], o[m][n][half * 2 + 1]);
                }
            }
        }
    }

    // 16 bytes of O to global memory, under the kernel's store policy. Gmem's pointers are const for the sake of Q, K,
    // V.
    static __device__ __forceinline__ void store_global(const char *pointer, uint4 value) {
        if constexpr (Kernel::store_no_allocate) {
            ptx::store_global_16_no_allocate(const_cast<char *>(pointer), value);
        } else {
            ptx::store_global_16(const_cast<char *>(pointer), value);
        }
    }
};

}  // namespace flashladder
