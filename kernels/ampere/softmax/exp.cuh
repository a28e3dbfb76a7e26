// Softmax `exp` (iteration 1): as the paper writes it.
//
// Per element of S: one FMUL for the scale, one FADD for s - m, one FMUL by log2(e) and one ex2, since the hardware
// only knows powers of two. The scale is applied before the maximum, so it cannot be folded into anything.
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder {

template <int d_head>
struct Exp {
    // softmax_scale = 1 / sqrt(d_head); rsqrt.approx in PTX, folded to a constant by ptxas
    static __device__ __forceinline__ float scale() { return rsqrtf(static_cast<float>(d_head)); }

    static __device__ __forceinline__ float exp(float x) { return ptx::ex2(x * kLog2E); }

    // S becomes P = exp(S scale - m); l and O are brought to the new maximum. `first_block` makes no difference here.
    template <bool first_block, int m_tiles, int s_tiles, int o_tiles>
    static __device__ __forceinline__ void update(float (&s)[m_tiles][s_tiles][4], float (&o)[m_tiles][o_tiles][4],
                                                  RowStats<m_tiles> &stats, int /* done */, int /* n_kv_blocks */) {
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                // __fmul_rn: the compiler must not contract scale and subtraction into an FFMA, which is iteration 6
#pragma unroll
                for (int n = 0; n < s_tiles; ++n) {
                    s[m][n][half * 2] = __fmul_rn(s[m][n][half * 2], scale());
                    s[m][n][half * 2 + 1] = __fmul_rn(s[m][n][half * 2 + 1], scale());
                }
                const float m_old = stats.m[m][half];
                const float m_new = fmaxf(m_old, row_max(s[m], half));
                const float correction = exp(m_old - m_new);
                stats.m[m][half] = m_new;
                stats.l[m][half] *= correction;
                scale_row(o[m], half, correction);
#pragma unroll
                for (int n = 0; n < s_tiles; ++n) {
                    s[m][n][half * 2] = exp(s[m][n][half * 2] - m_new);
                    s[m][n][half * 2 + 1] = exp(s[m][n][half * 2 + 1] - m_new);
                }
                stats.l[m][half] = row_sum(s[m], half, stats.l[m][half]);
            }
        }
    }
};

}  // namespace flashladder
