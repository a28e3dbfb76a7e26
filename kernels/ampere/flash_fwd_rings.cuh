// Body of iterations 18 and 19: K and V lie in rings of two stages in shared memory.
//
// The parity of a block is its stage; which tile of K and V is copied there is the schedule's. One wait and one barrier
// a block are enough then: what the barrier frees is filled during the block that it begins (schedule/rings.cuh).
#pragma once

#include <cstdint>

#include "ampere/cta.cuh"
#include "ampere/lanes.cuh"
#include "ampere/serpentine.cuh"
#include "ptx/cp_async.cuh"

namespace flashladder {

// `Kernel` as `CtaState` counts its shared memory: one stage of K and of V. The body checks what the rings need.
template <typename Kernel>
struct OneStage : Kernel {
    static constexpr int smem_bytes = (Kernel::B_r + 2 * Kernel::B_c) * Kernel::d_head * 2;
};

template <typename Kernel>
struct Cta : CtaState<OneStage<Kernel>> {
    using State = CtaState<OneStage<Kernel>>;
    using G = typename State::G;
    using typename State::Gmem;
    using typename State::KOrder;
    using typename State::Layout;
    using typename State::value_t;
    static_assert(contract::kept<contract::StaticLayout, Layout>);
    static constexpr int copy_rows = G::n_threads / Layout::threads_per_row;  // rows that the CTA copies at a time
    static constexpr int copy_sides = G::units_per_row / Layout::threads_per_row;
    static_assert(copy_sides * Layout::row_bytes == G::row_bytes, "the sides of a row are the row");
    static_assert(copy_rows % 8 == 0, "a thread's copy rows are equal modulo 8, so one offset serves all of them");
    static_assert(G::B_c % copy_rows == 0 && G::B_r % copy_rows == 0, "every thread copies as much as any other");

    // Shared memory: Q (later O), two stages of K, two stages of V.
    static constexpr int stage_bytes = G::B_c * G::row_bytes;
    static constexpr int smem_v = G::smem_k + 2 * stage_bytes;
    static_assert(smem_v + 2 * stage_bytes == Kernel::smem_bytes, "what the host launches");

    const std::uint32_t copy_offset;  // of this thread's 16 bytes in any tile
    const std::uint32_t k_first;      // what this lane gives to ldmatrix, in stage 0
    const std::uint32_t v_first;
    const FlashFwdArgs &args;
    typename State::QOperand q;

    static __device__ __forceinline__ int copy_row() { return threadIdx.x / Layout::threads_per_row; }
    static __device__ __forceinline__ int copy_byte() { return threadIdx.x % Layout::threads_per_row * kUnitBytes; }
    static __device__ __forceinline__ int stage(int block) { return block % 2 * stage_bytes; }

    __device__ __forceinline__ Cta(const FlashFwdArgs &arguments, std::uint32_t smem_address)
        : State(smem_address),
          copy_offset(Layout::template offset<G::B_c>(copy_row(), threadIdx.x % Layout::threads_per_row)),
          k_first(smem_address + G::smem_k +
                  Layout::template offset<G::B_c>(KOrder::row(this->lane), KOrder::unit(this->lane))),
          v_first(smem_address + smem_v + Layout::template offset<G::B_c>(this->lane % 16, this->lane / 16)),
          args(arguments) {}

    // Calls copy(row, shared offset, global offset) for each 16 bytes that a thread moves of a tile of `rows` rows.
    template <int rows, typename Copy>
    static __device__ __forceinline__ void for_each_copy(Copy copy) {
#pragma unroll
        for (int side = 0; side < copy_sides; ++side) {
#pragma unroll
            for (int row = 0; row < rows; row += copy_rows) {
                copy(row, row * Layout::row_bytes + side * Layout::half_bytes(rows), side * 128);
            }
        }
    }

    // Rows `row` on of a tensor. The thread's place is added where a tile is copied: pointers into K and V that are
    // kept cost four registers through a loop that has none to spare.
    template <int rows>
    __device__ __forceinline__ void copy_tile(const void *tensor, const TensorStrides &strides, int row,
                                              int tile) const {
        const Gmem gmem(State::origin(tensor, strides, row), strides.seq, copy_row(), copy_byte());
        const std::uint32_t to = this->smem + tile + copy_offset;
        for_each_copy<rows>([&](int copied, int smem_offset, int gmem_offset) {
            ptx::cp_async_16(to + smem_offset, gmem.at(copied) + gmem_offset);
        });
    }

    __device__ __forceinline__ void load_q() {
        copy_tile<G::B_r>(args.q, args.q_strides, blockIdx.x * G::B_r, G::smem_q);
    }
    __device__ __forceinline__ void load_k(int block, int tile) {
        copy_tile<G::B_c>(args.k, args.k_strides, tile * G::B_c, G::smem_k + stage(block));
    }
    __device__ __forceinline__ void load_v(int block, int tile) {
        copy_tile<G::B_c>(args.v, args.v_strides, tile * G::B_c, smem_v + stage(block));
    }
    __device__ __forceinline__ void sync_q() const { __syncthreads(); }  // other warps copied parts of this warp's rows

    // Q's lanes are V's, moved to this warp's rows of Q: an addition where they are used instead of a register.
    using QSource = AlongColumns<Layout, G::B_r, G::m_tiles>;
    __device__ __forceinline__ QSource q_source() const {
        return {v_first + (this->warp * G::rows_per_warp * Layout::row_bytes + G::smem_q - smem_v)};
    }
    __device__ __forceinline__ void load_q_fragments() { q.begin(q_source()); }

    // S = Q K^T
    __device__ __forceinline__ void qk_matmul(int block) {
        typename State::KOperand k;
        const AlongColumns<Layout, G::B_c, G::s_n_tiles / 2> k_source{k_first + stage(block)};
        this->clear(this->s);
        if constexpr (kSerpentine<KOrder>) {
            serpentine_matmul<value_t, KOrder, G::s_k_tiles>(q, q_source(), k, k_source, this->s);
        } else {
            matmul<value_t, KOrder, G::s_k_tiles>(q, q_source(), k, k_source, this->s);
        }
    }

    // O += P V
    __device__ __forceinline__ void pv_matmul(int block) {
        typename State::VOperand v;
        PackedScores<value_t, G::m_tiles, G::o_k_tiles> p(this->s);
        const AlongRows<Layout, G::B_c, G::o_n_tiles / 2> v_source{v_first + stage(block)};
        matmul<value_t, VPairs, G::o_k_tiles>(p, nullptr, v, v_source, this->o);
    }

    __device__ __forceinline__ void write_o(const FlashFwdArgs &) {
        std::uint32_t packed[G::m_tiles][G::o_n_tiles][2];
        this->normalize_and_pack(packed);
        __syncwarp();  // this warp alone reads these rows of Q, and every lane of it has: O may take their place
        Kernel::Epilogue::write(*this, args, packed);
    }
};

}  // namespace flashladder
