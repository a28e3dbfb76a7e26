// One warp's product of fragments with the m-tiles forth and back: as matmul.cuh, in another order of the same mma.
#pragma once

#include "ptx/mma.cuh"

namespace flashladder {

// Whether a K order asks for it; its part says so.
template <typename KOrder>
inline constexpr bool kSerpentine = false;

// acc: (m_tiles, n_tiles, 4) fp32; a.tile(t): (m_tiles, 4) registers; b.tile(t): (n_tiles / 2, 4) registers.
template <typename value_t, typename Pairs, int k_tiles, typename A, typename ASource, typename B, typename BSource,
          int m_tiles, int n_tiles>
__device__ __forceinline__ void serpentine_matmul(A &a, const ASource &a_source, B &b, const BSource &b_source,
                                                  float (&acc)[m_tiles][n_tiles][4]) {
    if constexpr (!A::resident) {
        a.begin(a_source);
    }
    b.begin(b_source);
#pragma unroll
    for (int t = 0; t < k_tiles; ++t) {
        a.step(a_source, t);
        b.step(b_source, t);
#pragma unroll
        for (int i = 0; i < n_tiles * m_tiles; ++i) {
            const int n = i / m_tiles;
            const int m = n % 2 ? m_tiles - 1 - i % m_tiles : i % m_tiles;  // where n turns, A's fragment stays
            ptx::mma_m16n8k16<value_t>(acc[m][n], a.tile(t)[m], b.tile(t)[n / 2][Pairs::first(n)],
                                       b.tile(t)[n / 2][Pairs::second(n)]);
        }
    }
}

}  // namespace flashladder
