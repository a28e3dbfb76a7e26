// Operand `whole` (iteration 1): every fragment of the block is loaded before the first mma.
//
// Simple, and long waits: the tensor cores idle while all the ldmatrix run, and the fragments of a whole K or V block
// want 128 registers at (64, 128). For Q it pays: loaded once, kept for all KV blocks (`resident`).
#pragma once

#include <cstdint>

namespace flashladder {

// k_tiles: steps of 16 along the product's inner dimension; x4s: ldmatrix.x4 a warp needs for one of them.
template <int k_tiles, int x4s>
struct Whole {
    static constexpr bool resident = true;
    std::uint32_t regs[k_tiles][x4s][4];

    template <typename Source>
    __device__ __forceinline__ void begin(const Source &source) {
#pragma unroll
        for (int t = 0; t < k_tiles; ++t) {
            source.load(regs[t], t);
        }
    }

    template <typename Source>
    __device__ __forceinline__ void step(const Source &, int) {}

    __device__ __forceinline__ const std::uint32_t (&tile(int t) const)[x4s][4] { return regs[t]; }
};

}  // namespace flashladder
