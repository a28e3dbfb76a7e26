// Body of iterations 8 to 16: a lane computes its few shared-memory addresses once, before the main loop.
//
// Rows that a lane touches are equal modulo 8, so the XOR of a swizzled unit depends on the k-tile only, and only on
// its two low bits: four addresses per operand. Row group, 128-byte half and the operand's place are immediate offsets.
#pragma once

#include <cstdint>

#include "ampere/cta.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/logic.cuh"

namespace flashladder {

constexpr int kTilesPerHalf = 4;  // 16-element tiles in 128 bytes

// A lane's ldmatrix addresses within a tile of `rows` rows: lane -> (row, unit) by the order of the four matrices.
//
// One register per operand. The four XORs are taken in the loop (ptxas shares them between the ldmatrix of a k-tile):
// kept as twelve registers instead, they are spilled at (128, 64, 4), which costs iteration 16 3.7 points of FA2's
// speed on an H200 (2026-11-20; docs/decisions/007).
template <typename Layout, int rows>
struct LaneAddresses {
    std::uint32_t first;  // shared address at row group 0, column tile 0

    // row: 0 to 15 within a row group (plus a multiple of 8); unit: 0 or 1 within a column tile.
    __device__ __forceinline__ LaneAddresses(std::uint32_t tile, int row, int unit)
        : first(tile + Layout::template offset<rows>(row, unit)) {}

    // The same lanes of another tile, `distance` bytes (a multiple of 128) away from `other`'s.
    template <int other_rows>
    __device__ __forceinline__ LaneAddresses(const LaneAddresses<Layout, other_rows> &other, int distance)
        : first(other.first + distance) {}

    // Row group `group` (16 rows), column tile `tile` (16 columns): unit 2t + u is 2t ^ u, and tiles are 128-byte
    // aligned.
    __device__ __forceinline__ std::uint32_t at(int group, int tile) const {
        return ptx::xor_in_place(first, tile % kTilesPerHalf * 2 * kUnitBytes) +
               tile / kTilesPerHalf * Layout::half_bytes(rows) + group * 16 * Layout::row_bytes;
    }
};

// Fragments of k-tile t where k runs along d_head: A of Q (groups = m_tiles), B of K (groups = pairs of n-tiles).
template <typename Layout, int rows, int groups>
struct AlongColumns {
    const LaneAddresses<Layout, rows> &lane;

    __device__ __forceinline__ void load(std::uint32_t (&regs)[groups][4], int t) const {
#pragma unroll
        for (int group = 0; group < groups; ++group) {
            ptx::ldmatrix_x4(regs[group], lane.at(group, t));
        }
    }
};

// B fragments of k-tile t where k runs along the rows of V, transposed on the way.
template <typename Layout, int rows, int pairs>
struct AlongRows {
    const LaneAddresses<Layout, rows> &lane;

    __device__ __forceinline__ void load(std::uint32_t (&regs)[pairs][4], int t) const {
#pragma unroll
        for (int n = 0; n < pairs; ++n) {
            ptx::ldmatrix_x4_trans(regs[n], lane.at(t, n));
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
    static_assert(contract::kept<contract::StaticLayout, Layout>);
    static constexpr int copy_rows = G::n_threads / Layout::threads_per_row;  // rows that the CTA copies at a time
    static constexpr int copy_sides = G::units_per_row / Layout::threads_per_row;
    static_assert(G::smem_k % 128 == 0 && G::smem_v % 128 == 0 && G::rows_per_warp * Layout::row_bytes % 128 == 0,
                  "tiles and warps' rows start at multiples of 128 bytes, or LaneAddresses::at is wrong");
    static_assert(copy_sides * Layout::row_bytes == G::row_bytes, "the sides of a row are the row");
    static_assert(copy_rows % 8 == 0, "a thread's copy rows are equal modulo 8, so one offset serves all of them");
    static_assert(G::B_c % copy_rows == 0 && G::B_r % copy_rows == 0, "every thread copies as much as any other");

    const std::uint32_t copy_offset;  // of this thread's 16 bytes in any tile
    const LaneAddresses<Layout, G::B_c> k_lane;
    const LaneAddresses<Layout, G::B_c> v_lane;

    Gmem q_gmem;
    Gmem k_gmem;
    Gmem v_gmem;
    typename State::QOperand q;

    static __device__ __forceinline__ int copy_row() { return threadIdx.x / Layout::threads_per_row; }
    static __device__ __forceinline__ int copy_byte() { return threadIdx.x % Layout::threads_per_row * kUnitBytes; }

    __device__ __forceinline__ Cta(const FlashFwdArgs &args, std::uint32_t smem_address)
        : State(smem_address),
          copy_offset(Layout::template offset<G::B_c>(copy_row(), threadIdx.x % Layout::threads_per_row)),
          k_lane(smem_address + G::smem_k, KOrder::row(this->lane), KOrder::unit(this->lane)),
          v_lane(smem_address + G::smem_v, this->lane % 16, this->lane / 16),
          q_gmem(State::origin(args.q, args.q_strides, blockIdx.x * G::B_r), args.q_strides.seq, copy_row(),
                 copy_byte()),
          k_gmem(State::origin(args.k, args.k_strides, 0), args.k_strides.seq, copy_row(), copy_byte()),
          v_gmem(State::origin(args.v, args.v_strides, 0), args.v_strides.seq, copy_row(), copy_byte()) {}

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

    template <int rows>
    __device__ __forceinline__ void copy_tile(const Gmem &gmem, int tile) const {
        const std::uint32_t to = this->smem + tile + copy_offset;
        for_each_copy<rows>([&](int row, int smem_offset, int gmem_offset) {
            ptx::cp_async_16(to + smem_offset, gmem.at(row) + gmem_offset);
        });
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

    __device__ __forceinline__ void sync_q() const { __syncthreads(); }  // other warps copied parts of this warp's rows

    // Q's lanes are V's, moved to this warp's rows of Q: an addition where they are used instead of four registers kept
    // through the loop. At (128, 64, 4) those are spilled otherwise: on an H200 iteration 10 then runs at 106.6 % of
    // FA2 instead of 110.3 % (S = 4096, fp16, 2026-11-20).
    __device__ __forceinline__ LaneAddresses<Layout, G::B_r> q_lane() const {
        return {v_lane, this->warp * G::rows_per_warp * Layout::row_bytes + G::smem_q - G::smem_v};
    }

    using QSource = AlongColumns<Layout, G::B_r, G::m_tiles>;
    using KSource = AlongColumns<Layout, G::B_c, G::s_n_tiles / 2>;
    using VSource = AlongRows<Layout, G::B_c, G::o_n_tiles / 2>;

    __device__ __forceinline__ void load_q_fragments() {
        const auto lane = q_lane();
        q.begin(QSource{lane});
    }

    // S = Q K^T
    __device__ __forceinline__ void qk_matmul() {
        typename State::KOperand k;
        const auto lane = q_lane();
        this->clear(this->s);
        matmul<value_t, KOrder, G::s_k_tiles>(q, QSource{lane}, k, KSource{k_lane}, this->s);
    }

    // O += P V
    __device__ __forceinline__ void pv_matmul() {
        typename State::VOperand v;
        PackedScores<value_t, G::m_tiles, G::o_k_tiles> p(this->s);
        matmul<value_t, VPairs, G::o_k_tiles>(p, nullptr, v, VSource{v_lane}, this->o);
    }
};

}  // namespace flashladder
