// Softmax `exp2_folded` (iteration 6): scale and log2(e) become one constant inside one FFMA per element.
//
// exp(s scale - m scale) = 2^(s c - m c) with c = scale log2(e): an FFMA and an ex2. The maximum is taken over the
// unscaled S (c > 0 keeps the order), so the FMUL per element of `exp` is gone, and so is its FADD.
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder {

template <int d_head>
struct Exp2Folded {
    // c = log2(e) / sqrt(d_head); rsqrt.approx in PTX, folded to a constant by ptxas
    static __device__ __forceinline__ float scale() { return rsqrtf(static_cast<float>(d_head)) * kLog2E; }

    // S becomes P = 2^(c (S - m)); l and O are brought to the new maximum. `first_block` makes no difference here.
    template <bool first_block, int m_tiles, int s_tiles, int o_tiles>
    static __device__ __forceinline__ void update(float (&s)[m_tiles][s_tiles][4], float (&o)[m_tiles][o_tiles][4],
                                                  RowStats<m_tiles> &stats, int /* done */, int /* n_kv_blocks */) {
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float m_old = stats.m[m][half];
                const float m_new = fmaxf(m_old, row_max(s[m], half));
                const float correction = ptx::ex2((m_old - m_new) * scale());
                const float m_scaled = m_new * scale();
                stats.m[m][half] = m_new;
                stats.l[m][half] *= correction;
                scale_row(o[m], half, correction);
#pragma unroll
                for (int n = 0; n < s_tiles; ++n) {
                    s[m][n][half * 2] = ptx::ex2(fmaf(s[m][n][half * 2], scale(), -m_scaled));
                    s[m][n][half * 2 + 1] = ptx::ex2(fmaf(s[m][n][half * 2 + 1], scale(), -m_scaled));
                }
                stats.l[m][half] = row_sum(s[m], half, stats.l[m][half]);
            }
        }
    }
};

}  // namespace flashladder
