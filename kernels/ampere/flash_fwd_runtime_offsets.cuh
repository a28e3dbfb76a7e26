// Body of iterations 1 to 7: shared-memory addresses are computed at run time, for every access.
//
// Every copy and every ldmatrix asks the layout for the offset of (row, 16-byte unit); what the compiler cannot hoist,
// it computes in the main loop.
#pragma once

#include <cstdint>

#include "ampere/cta.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"

namespace flashladder {

// A fragments of k-tile t (16 columns) of this warp's rows of Q.
template <typename Layout, int m_tiles>
struct QSource {
    std::uint32_t tile;  // shared address
    int first_row;       // of this warp
    int lane;

    __device__ __forceinline__ void load(std::uint32_t (&regs)[m_tiles][4], int t) const {
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
            // `|` where `+` would do: with it, ptxas spills 4 bytes at (128, 32, 4) on sm_90
            const int row = first_row + (m * kMmaM | lane % 16);
            ptx::ldmatrix_x4(regs[m], tile + Layout::offset(row, 2 * t + lane / 16));
        }
    }
};

// B fragments of k-tile t (16 columns of K) for all B_c columns of S, matrices in column-major order.
template <typename Layout, int n_pairs>
struct KSource {
    std::uint32_t tile;
    int lane;

    __device__ __forceinline__ void load(std::uint32_t (&regs)[n_pairs][4], int t) const {
#pragma unroll
        for (int n = 0; n < n_pairs; ++n) {
            ptx::ldmatrix_x4(regs[n], tile + Layout::offset(n * 2 * kMmaN + lane % 16, 2 * t + lane / 16));
        }
    }
};

// B fragments of k-tile t (16 rows of V) for all d_head columns of O, transposed on the way.
template <typename Layout, int n_pairs>
struct VSource {
    std::uint32_t tile;
    int lane;

    __device__ __forceinline__ void load(std::uint32_t (&regs)[n_pairs][4], int t) const {
#pragma unroll
        for (int n = 0; n < n_pairs; ++n) {
            ptx::ldmatrix_x4_trans(regs[n], tile + Layout::offset(t * kMmaK + lane % 16, 2 * n + lane / 16));
        }
    }
};

template <typename Kernel>
struct Cta : CtaState<Kernel> {
    using State = CtaState<Kernel>;
    using G = Geometry<Kernel>;
    using value_t = typename Kernel::value_t;
    using Layout = typename Kernel::Layout;
    using Gmem = typename Kernel::Gmem;
    using QOperand = typename Kernel::template QOperand<G::s_k_tiles, G::m_tiles>;
    using KOperand = typename Kernel::template KOperand<G::s_k_tiles, G::s_n_tiles / 2>;
    using VOperand = typename Kernel::template VOperand<G::o_k_tiles, G::o_n_tiles / 2>;
    static constexpr bool q_resident = QOperand::resident;
    static constexpr int kv_rows_per_warp = G::B_c / G::n_warps;  // copied by one warp
    static_assert(kv_rows_per_warp % 4 == 0, "a warp copies four rows at a time");
    static_assert(!Kernel::k_row_major, "row-major K fragments come with static offsets");

    Gmem q_gmem;
    Gmem k_gmem;
    Gmem v_gmem;
    QOperand q;

    __device__ __forceinline__ Cta(const FlashFwdArgs &args, std::uint32_t smem_address)
        : State(smem_address),
          q_gmem(State::origin(args.q, args.q_strides, blockIdx.x * G::B_r), args.q_strides.seq,
                 this->warp * G::rows_per_warp + this->lane / 8, this->lane % 8 * kUnitBytes),
          k_gmem(State::origin(args.k, args.k_strides, 0), args.k_strides.seq,
                 this->warp * kv_rows_per_warp + this->lane / 8, this->lane % 8 * kUnitBytes),
          v_gmem(State::origin(args.v, args.v_strides, 0), args.v_strides.seq,
                 this->warp * kv_rows_per_warp + this->lane / 8, this->lane % 8 * kUnitBytes) {}

    // This warp's `rows` rows of a tile, 128 bytes of four rows with each instruction.
    template <int rows>
    __device__ __forceinline__ void copy_rows(const Gmem &gmem, std::uint32_t tile) const {
#pragma unroll
        for (int i = 0; i < rows; i += 4) {
            const int row = this->warp * rows + i + this->lane / 8;
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                ptx::cp_async_16(tile + Layout::offset(row, side * 8 + this->lane % 8), gmem.at(i) + side * 128);
            }
        }
    }

    __device__ __forceinline__ void load_q() { copy_rows<G::rows_per_warp>(q_gmem, this->smem + G::smem_q); }

    __device__ __forceinline__ void load_k(int block) {
        k_gmem.template seek<G::B_c>(block);
        copy_rows<kv_rows_per_warp>(k_gmem, this->smem + G::smem_k);
        k_gmem.template next<G::B_c>();
    }

    __device__ __forceinline__ void load_v(int block) {
        v_gmem.template seek<G::B_c>(block);
        copy_rows<kv_rows_per_warp>(v_gmem, this->smem + G::smem_v);
        v_gmem.template next<G::B_c>();
    }

    __device__ __forceinline__ QSource<Layout, G::m_tiles> q_source() const {
        return {this->smem + G::smem_q, this->warp * G::rows_per_warp, this->lane};
    }

    __device__ __forceinline__ void sync_q() const { __syncwarp(); }  // a warp reads only rows that it copied itself

    __device__ __forceinline__ void keep_q() { q.begin(q_source()); }

    // S = Q K^T
    __device__ __forceinline__ void score() {
        KOperand k;
        this->clear(this->s);
        const KSource<Layout, G::s_n_tiles / 2> k_source{this->smem + G::smem_k, this->lane};
        matmul<value_t, ColumnMajorPairs, G::s_k_tiles>(q, q_source(), k, k_source, this->s);
    }

    // O += P V
    __device__ __forceinline__ void accumulate() {
        VOperand v;
        PackedScores<value_t, G::m_tiles, G::o_k_tiles> p(this->s);
        const VSource<Layout, G::o_n_tiles / 2> v_source{this->smem + G::smem_v, this->lane};
        matmul<value_t, RowMajorPairs, G::o_k_tiles>(p, nullptr, v, v_source, this->o);
    }

    template <int rows>
    static __device__ __forceinline__ std::uint32_t offset(int row, int unit) {
        return Layout::offset(row, unit);
    }

    __device__ __forceinline__ void write_o(const FlashFwdArgs &args) {
        std::uint32_t packed[G::m_tiles][G::o_n_tiles][2];
        this->finish(packed);
        Kernel::Epilogue::write(*this, args, packed);
    }
};

}  // namespace flashladder
