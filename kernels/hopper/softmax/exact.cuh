// Softmax `exact` (iteration 20): every block has its true running maximum, O follows it every time.
//
// The arithmetic of iteration 10: P = 2^(c S - c m) is one FFMA and one ex2 an element, the first block starts m and l
// instead of correcting them. S and O are apart: what O has to be multiplied by is handed out, because O may be the
// accumulator of products that are still under way.
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder::hopper {

struct Exact {
    // S becomes P = 2^(scale (S - m)); `factor` brings what was summed under the old m to the new one.
    template <bool first_block, int m_tiles, int n_tiles>
    static __device__ __forceinline__ void weights(float (&s)[m_tiles][n_tiles][4], RowStats<m_tiles> &stats,
                                                   float scale, float (&factor)[m_tiles][2]) {
#pragma unroll
        for (int i = 0; i < m_tiles * 2; ++i) {
            const int m = i / 2, half = i % 2;
            const float block_max = row_max(s[m], half);
            float l = 0.0f;
            if constexpr (first_block) {
                stats.m[m][half] = block_max;
            } else {
                const float m_old = stats.m[m][half];
                stats.m[m][half] = fmaxf(m_old, block_max);
                factor[m][half] = ptx::ex2((m_old - stats.m[m][half]) * scale);
                l = stats.l[m][half] * factor[m][half];
            }
            const float m_scaled = stats.m[m][half] * scale;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                s[m][n][half * 2] = ptx::ex2(fmaf(s[m][n][half * 2], scale, -m_scaled));
                s[m][n][half * 2 + 1] = ptx::ex2(fmaf(s[m][n][half * 2 + 1], scale, -m_scaled));
            }
            stats.l[m][half] = row_sum(s[m], half, l);
        }
    }

    // O under the new maximum.
    template <int m_tiles, int n_tiles>
    static __device__ __forceinline__ void rescale(float (&o)[m_tiles][n_tiles][4], const float (&factor)[m_tiles][2]) {
#pragma unroll
        for (int i = 0; i < m_tiles * 2; ++i) {
            scale_row(o[i / 2], i % 2, factor[i / 2][i % 2]);
        }
    }
};

}  // namespace flashladder::hopper
