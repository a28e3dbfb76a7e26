// Operand `tiled` (iteration 4): the fragments of k-tile t are loaded right before the mma that use them.
//
// Loads and mma interleave, and the fragments need 1 / k_tiles of the registers; each k-tile still waits for its own
// ldmatrix (about 30 cycles), which the other warps of the SM have to cover. Q loaded this way is loaded again for
// every KV block.
#pragma once

#include <cstdint>

namespace flashladder {

template <int k_tiles, int x4s>
struct Tiled {
    static constexpr bool resident = false;
    std::uint32_t regs[x4s][4];

    template <typename Source>
    __device__ __forceinline__ void begin(const Source &) {}

    template <typename Source>
    __device__ __forceinline__ void step(const Source &source, int t) {
        source.load(regs, t);
    }

    __device__ __forceinline__ const std::uint32_t (&tile(int) const)[x4s][4] { return regs; }
};

}  // namespace flashladder
