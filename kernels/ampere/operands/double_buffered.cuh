// Operand `double_buffered` (iteration 5): while the mma of k-tile t run, the fragments of k-tile t + 1 arrive.
//
// Twice the fragment registers of `tiled` for one ldmatrix latency hidden per k-tile. ptxas reorders loads across mma
// by itself, so the gain is small and, where registers are short, negative.
#pragma once

#include <cstdint>

namespace flashladder {

template <int k_tiles, int x4s>
struct DoubleBuffered {
    static_assert(k_tiles > 1, "with one k-tile there is nothing to load ahead");
    static constexpr bool resident = false;
    std::uint32_t regs[2][x4s][4];

    template <typename Source>
    __device__ __forceinline__ void begin(const Source &source) {
        source.load(regs[0], 0);
    }

    template <typename Source>
    __device__ __forceinline__ void step(const Source &source, int t) {
        if (t + 1 < k_tiles) {
            source.load(regs[(t + 1) % 2], t + 1);
        }
    }

    __device__ __forceinline__ const std::uint32_t (&tile(int t) const)[x4s][4] { return regs[t % 2]; }
};

}  // namespace flashladder
