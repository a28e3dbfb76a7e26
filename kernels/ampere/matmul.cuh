// One warp's product of fragments: acc += A B, k-tile by k-tile.
//
// The operand types (operands/*.cuh) decide when their fragments leave shared memory; this loop only says
// "about to need k-tile t". The B operand says which two registers of an ldmatrix.x4 feed one mma.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"
#include "ptx/mma.cuh"

namespace flashladder {

// Which registers of V's ldmatrix.x4.trans (one k-tile by two n-tiles) hold k 0-7 and k 8-15 of n-tile `n`: matrices
// (k0,n0) (k1,n0) (k0,n1) (k1,n1). K's order is a part, k_order/*.cuh.
struct VPairs {
    static __device__ constexpr int first(int n) { return n % 2 * 2; }
    static __device__ constexpr int second(int n) { return n % 2 * 2 + 1; }
};

// P as the A operand of O += P V: the accumulators of S, rounded to 16 bits, already lie where an A fragment wants
// them.
template <typename value_t, int m_tiles, int k_tiles>
struct PackedScores {
    static constexpr bool resident = true;
    std::uint32_t regs[k_tiles][m_tiles][4];

    __device__ __forceinline__ explicit PackedScores(const float (&s)[m_tiles][k_tiles * 2][4]) {
#pragma unroll
        for (int t = 0; t < k_tiles; ++t) {
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {  // n-tile 2t: k 0-7, n-tile 2t + 1: k 8-15; rows g and g + 8
                    const float (&pair)[4] = s[m][2 * t + i / 2];
                    regs[t][m][i] = ptx::pack<value_t>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
                }
            }
        }
    }

    template <typename Source>
    __device__ __forceinline__ void step(const Source &, int) {}

    __device__ __forceinline__ const std::uint32_t (&tile(int t) const)[m_tiles][4] { return regs[t]; }
};

// acc: (m_tiles, n_tiles, 4) fp32; a.tile(t): (m_tiles, 4) registers; b.tile(t): (n_tiles / 2, 4) registers.
template <typename value_t, typename Pairs, int k_tiles, typename A, typename ASource, typename B, typename BSource,
          int m_tiles, int n_tiles>
__device__ __forceinline__ void matmul(A &a, const ASource &a_source, B &b, const BSource &b_source,
                                       float (&acc)[m_tiles][n_tiles][4]) {
    if constexpr (!A::resident) {  // a resident A was loaded once, before the first KV block
        a.begin(a_source);
    }
    b.begin(b_source);
#pragma unroll
    for (int t = 0; t < k_tiles; ++t) {
        a.step(a_source, t);
        b.step(b_source, t);
#pragma unroll
        for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                ptx::mma_m16n8k16<value_t>(acc[m][n], a.tile(t)[m], b.tile(t)[n / 2][Pairs::first(n)],
                                           b.tile(t)[n / 2][Pairs::second(n)]);
            }
        }
    }
}

}  // namespace flashladder
