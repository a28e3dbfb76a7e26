// What every body shares: who this CTA is, its accumulators, and how O is finished.
//
// One CTA computes B_r rows of O for one head of one sample: S = Q K^T, online softmax, O += P V, block by block of B_c
// rows of K and V. The schedule part is the main loop, a body (flash_fwd_*.cuh) says how its steps reach memory.
// `Kernel` is the generated translation unit's list of parts and sizes (flashladder/ladder/compose.py).
//
// Copies and matmuls stand in both bodies although they read alike: called through this base, iteration 12 gets other
// machine code and 4 to 6 another order of operands in PTX (nvcc 13.0.88).
#pragma once

#include <cstdint>

#include "ampere/contracts.cuh"
#include "ampere/geometry.cuh"
#include "ampere/matmul.cuh"
#include "ampere/softmax/rows.cuh"
#include "host/args.cuh"
#include "ptx/math.cuh"
#include "ptx/store.cuh"

namespace flashladder {

template <typename Kernel>
struct Cta;  // the body's

template <typename Kernel>
struct CtaState : Geometry<Kernel> {
    using G = Geometry<Kernel>;
    using value_t = typename Kernel::value_t;
    using Layout = typename Kernel::Layout;
    using Gmem = typename Kernel::Gmem;
    using KOrder = typename Kernel::KOrder;
    using QOperand = typename Kernel::template QOperand<G::s_k_tiles, G::m_tiles>;
    using KOperand = typename Kernel::template KOperand<G::s_k_tiles, G::s_n_tiles / 2>;
    using VOperand = typename Kernel::template VOperand<G::o_k_tiles, G::o_n_tiles / 2>;
    static_assert(contract::kept<contract::Schedule, typename Kernel::Schedule>);
    static_assert(contract::kept<contract::Layout, Layout>);
    static_assert(contract::kept<contract::Gmem, Gmem>);
    static_assert(contract::kept<contract::KOrder, KOrder>);
    static_assert(contract::kept<contract::Operand, QOperand>);
    static_assert(contract::kept<contract::Operand, KOperand>);
    static_assert(contract::kept<contract::Operand, VOperand>);
    static_assert(contract::kept<contract::Softmax, typename Kernel::Softmax>);
    static_assert(contract::kept<contract::Normalize, typename Kernel::Normalize>);
    static_assert(contract::kept<contract::Epilogue, typename Kernel::Epilogue>);
    static_assert(contract::kept<contract::StorePolicy, typename Kernel::StorePolicy>);
    static constexpr bool q_resident = QOperand::resident;
    static_assert(G::n_threads == Kernel::n_threads && G::smem_bytes == Kernel::smem_bytes, "what the host launches");

    const int lane;
    const int warp;
    const std::uint32_t smem;              // shared address of the CTA's tiles
    float s[G::m_tiles][G::s_n_tiles][4];  // S, then P: (rows_per_warp, B_c) over the warp
    float o[G::m_tiles][G::o_n_tiles][4];  // O: (rows_per_warp, d_head) over the warp
    RowStats<G::m_tiles> stats;

    __device__ __forceinline__ explicit CtaState(std::uint32_t smem_address)
        : lane(threadIdx.x % kWarpSize), warp(threadIdx.x / kWarpSize), smem(smem_address) {}

    // The body, which derives from this: it knows how a tile is copied and where fragments lie.
    __device__ __forceinline__ Cta<Kernel> &body() { return static_cast<Cta<Kernel> &>(*this); }

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

    // Byte offset in a tile of `rows` rows.
    template <int rows>
    static __device__ __forceinline__ std::uint32_t offset(int row, int unit) {
        return Layout::template offset<rows>(row, unit);
    }

    __device__ __forceinline__ void reset_row_stats() { stats.clear(); }

    __device__ __forceinline__ void clear_o() { clear(o); }

    // S becomes P; O and the row statistics follow the new maximum. `done` of `n_kv_blocks` blocks came before.
    template <bool first_block>
    __device__ __forceinline__ void softmax(int done, int n_kv_blocks) {
        Kernel::Softmax::template update<first_block>(s, o, stats, done, n_kv_blocks);
    }

    // O / l in 16 bits: (m_tiles, o_n_tiles, 2) registers, rows g and g + 8.
    __device__ __forceinline__ void normalize_and_pack(std::uint32_t (&packed)[G::m_tiles][G::o_n_tiles][2]) {
        stats.reduce_l();
#pragma unroll
        for (int m = 0; m < G::m_tiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                Kernel::Normalize::row(o[m], half, stats.l[m][half]);
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
        Kernel::StorePolicy::store(const_cast<char *>(pointer), value);
    }

    __device__ __forceinline__ void write_o(const FlashFwdArgs &args) {
        std::uint32_t packed[G::m_tiles][G::o_n_tiles][2];
        normalize_and_pack(packed);
        Kernel::Epilogue::write(body(), args, packed);
    }
};

}  // namespace flashladder
