// Softmax `exp2_peeled` (iteration 10): the first KV block is known to be the first at compile time.
//
// O is still zero there, so it needs no rescaling (128 FMUL a lane at B_r / n_warps = 32). With `optimized` the block
// also starts m and l instead of correcting -inf and 0: no exponential, no multiplication for them.
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder {

template <int d_head, bool optimized>
struct Exp2Peeled {
    // c = log2(e) / sqrt(d_head); rsqrt.approx in PTX, folded to a constant by ptxas
    static __device__ __forceinline__ float scale() { return rsqrtf(static_cast<float>(d_head)) * kLog2E; }

    // S becomes P = 2^(c (S - m)); l and O are brought to the new maximum, or started by the first block.
    template <bool first_block, int m_tiles, int s_tiles, int o_tiles>
    static __device__ __forceinline__ void update(float (&s)[m_tiles][s_tiles][4], float (&o)[m_tiles][o_tiles][4],
                                                  RowStats<m_tiles> &stats, int /* done */, int /* n_kv_blocks */) {
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float block_max = row_max(s[m], half);
                float l = 0.0f;
                if constexpr (first_block && optimized) {
                    stats.m[m][half] = block_max;
                } else {
                    const float m_old = stats.m[m][half];
                    stats.m[m][half] = fmaxf(m_old, block_max);
                    const float correction = ptx::ex2((m_old - stats.m[m][half]) * scale());
                    l = stats.l[m][half] * correction;
                    if constexpr (!first_block) {
                        scale_row(o[m], half, correction);
                    }
                }
                const float m_scaled = stats.m[m][half] * scale();
#pragma unroll
                for (int n = 0; n < s_tiles; ++n) {
                    s[m][n][half * 2] = ptx::ex2(fmaf(s[m][n][half * 2], scale(), -m_scaled));
                    s[m][n][half * 2 + 1] = ptx::ex2(fmaf(s[m][n][half * 2 + 1], scale(), -m_scaled));
                }
                stats.l[m][half] = row_sum(s[m], half, l);
            }
        }
    }
};

}  // namespace flashladder
