// Tile shapes that follow from a configuration, with a static assert for every assumption the kernels make.
//
// A CTA of n_warps warps owns B_r rows of Q and O and walks over K and V in blocks of B_c rows. A warp owns
// B_r / n_warps rows and multiplies them with every column of the block: no exchange between warps is ever needed.
#pragma once

#include <cstdint>

namespace flashladder {

constexpr int kWarpSize = 32;   // lanes
constexpr int kUnitBytes = 16;  // one cp.async, one row of an 8x8 matrix: eight 16-bit elements
constexpr int kMmaM = 16;       // mma.m16n8k16
constexpr int kMmaN = 8;
constexpr int kMmaK = 16;

template <typename Kernel>
struct Geometry {
    static constexpr int B_r = Kernel::B_r;
    static constexpr int B_c = Kernel::B_c;
    static constexpr int d_head = Kernel::d_head;
    static constexpr int n_warps = Kernel::n_warps;
    static constexpr int n_threads = n_warps * kWarpSize;

    static constexpr int row_bytes = d_head * 2;                  // of a tile in global memory
    static constexpr int units_per_row = row_bytes / kUnitBytes;  // 16-byte units
    static constexpr int rows_per_warp = B_r / n_warps;           // of Q and O

    static constexpr int m_tiles = rows_per_warp / kMmaM;  // of S and O, per warp
    static constexpr int s_n_tiles = B_c / kMmaN;
    static constexpr int s_k_tiles = d_head / kMmaK;
    static constexpr int o_n_tiles = d_head / kMmaN;
    static constexpr int o_k_tiles = B_c / kMmaK;

    // Shared memory, in bytes from its start: Q (later O), K, V.
    static constexpr int smem_q = 0;
    static constexpr int smem_k = smem_q + B_r * row_bytes;
    static constexpr int smem_v = smem_k + B_c * row_bytes;
    static constexpr int smem_bytes = smem_v + B_c * row_bytes;

    static_assert(sizeof(typename Kernel::value_t) == 2, "inputs are 16-bit");
    static_assert(d_head == 128, "the swizzles and the fragment offsets assume 256-byte rows");
    static_assert(B_r % (n_warps * kMmaM) == 0, "a warp owns whole m16 tiles");
    static_assert(B_c % kMmaK == 0, "a KV block is whole k16 tiles of P V, hence whole pairs of n8 tiles of S");
    static_assert(B_r * units_per_row % n_threads == 0, "every thread copies the same number of 16-byte units of Q");
    static_assert(B_c * units_per_row % n_threads == 0, "every thread copies the same number of 16-byte units of K");
    static_assert(smem_bytes <= 227 * 1024, "227 KiB is the most shared memory that any supported GPU gives a CTA");
};

}  // namespace flashladder
