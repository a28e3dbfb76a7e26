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
template <typename Layout, int rows, int m_tiles>
struct QSource {
    std::uint32_t tile;  // shared address
    int first_row;       // of this warp
    int lane;

    __device__ __forceinline__ void load(std::uint32_t (&regs)[m_tiles][4], int t) const {
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
            // `|` where `+` would do: with it, ptxas spills 4 bytes at (128, 32, 4) on sm_90
            const int row = first_row + (m * kMmaM | lane % 16);
            ptx::ldmatrix_x4(regs[m], tile + Layout::template offset<rows>(row, 2 * t + lane / 16));
        }
    }
};

// B fragments of k-tile t (16 columns of K) for all B_c columns of S.
template <typename Layout, typename KOrder, int rows, int n_pairs>
struct KSource {
    std::uint32_t tile;
    int lane;

    __device__ __forceinline__ void load(std::uint32_t (&regs)[n_pairs][4], int t) const {
#pragma unroll
        for (int n = 0; n < n_pairs; ++n) {
            ptx::ldmatrix_x4(regs[n], tile + Layout::template offset<rows>(n * 2 * kMmaN + KOrder::row(lane),
                                                                           2 * t + KOrder::unit(lane)));
        }
    }
};

// B fragments of k-tile t (16 rows of V) for all d_head columns of O, transposed on the way.
template <typename Layout, int rows, int n_pairs>
struct VSource {
    std::uint32_t tile;
    int lane;

    __device__ __forceinline__ void load(std::uint32_t (&regs)[n_pairs][4], int t) const {
#pragma unroll
        for (int n = 0; n < n_pairs; ++n) {
            ptx::ldmatrix_x4_trans(regs[n],
                                   tile + Layout::template offset<rows>(t * kMmaK + lane % 16, 2 * n + lane / 16));
        }
    }
};

template <typename Kernel>
struct Cta : CtaState<Kernel> {
    using State = CtaState<Kernel>;
    using typename State::G;
    using typename State::Gmem;
    using typename State::KOrder;
    using typename State::Layout;
    using typename State::value_t;
    static constexpr int kv_rows_per_warp = G::B_c / G::n_warps;  // copied by one warp
    static_assert(kv_rows_per_warp % 4 == 0, "a warp copies four rows at a time");

    Gmem q_gmem;
    Gmem k_gmem;
    Gmem v_gmem;
    typename State::QOperand q;

    __device__ __forceinline__ Cta(const FlashFwdArgs &args, std::uint32_t smem_address)
        : State(smem_address),
          q_gmem(State::origin(args.q, args.q_strides, blockIdx.x * G::B_r), args.q_strides.seq,
                 this->warp * G::rows_per_warp + this->lane / 8, this->lane % 8 * kUnitBytes),
          k_gmem(State::origin(args.k, args.k_strides, 0), args.k_strides.seq,
                 this->warp * kv_rows_per_warp + this->lane / 8, this->lane % 8 * kUnitBytes),
          v_gmem(State::origin(args.v, args.v_strides, 0), args.v_strides.seq,
                 this->warp * kv_rows_per_warp + this->lane / 8, this->lane % 8 * kUnitBytes) {}

    // This warp's rows of a tile of `rows` rows, 128 bytes of four rows with each instruction.
    template <int rows>
    __device__ __forceinline__ void copy_tile(const Gmem &gmem, int tile) const {
        constexpr int warp_rows = rows / G::n_warps;
#pragma unroll
        for (int i = 0; i < warp_rows; i += 4) {
            const int row = this->warp * warp_rows + i + this->lane / 8;
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                ptx::cp_async_16(this->smem + tile + Layout::template offset<rows>(row, side * 8 + this->lane % 8),
                                 gmem.at(i) + side * 128);
            }
        }
    }

    __device__ __forceinline__ void load_q() { copy_tile<G::B_r>(q_gmem, G::smem_q); }

    __device__ __forceinline__ void load_k(int block) {
        k_gmem.template seek<G::B_c>(block);
        copy_tile<G::B_c>(k_gmem, G::smem_k);
        k_gmem.template next<G::B_c>();
    }

    __device__ __forceinline__ void load_v(int block) {
        v_gmem.template seek<G::B_c>(block);
        copy_tile<G::B_c>(v_gmem, G::smem_v);
        v_gmem.template next<G::B_c>();
    }

    __device__ __forceinline__ QSource<Layout, G::B_r, G::m_tiles> q_source() const {
        return {this->smem + G::smem_q, this->warp * G::rows_per_warp, this->lane};
    }

    __device__ __forceinline__ void sync_q() const { __syncwarp(); }  // a warp reads only rows that it copied itself

    __device__ __forceinline__ void load_q_fragments() { q.begin(q_source()); }

    // S = Q K^T
    __device__ __forceinline__ void qk_matmul() {
        typename State::KOperand k;
        this->clear(this->s);
        const KSource<Layout, KOrder, G::B_c, G::s_n_tiles / 2> k_source{this->smem + G::smem_k, this->lane};
        matmul<value_t, KOrder, G::s_k_tiles>(q, q_source(), k, k_source, this->s);
    }

    // O += P V
    __device__ __forceinline__ void pv_matmul() {
        typename State::VOperand v;
        PackedScores<value_t, G::m_tiles, G::o_k_tiles> p(this->s);
        const VSource<Layout, G::B_c, G::o_n_tiles / 2> v_source{this->smem + G::smem_v, this->lane};
        matmul<value_t, VPairs, G::o_k_tiles>(p, nullptr, v, v_source, this->o);
    }
};

}  // namespace flashladder
