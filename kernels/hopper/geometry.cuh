// Tile shapes and shared memory that follow from a configuration, with a static assert for every assumption.
//
// n_consumers warpgroups own B_r rows of Q and O, `rows` of them each, and all walk over K and V in blocks of B_c rows.
// Tiles of Q, K, V and O are [half][row][64 elements]: rows of 128 bytes, in which 16-byte unit u of row r lies at
// u ^ (r % 8). That is what the copy engine writes, and the layout `xor_tiled` of iteration 15.
#pragma once

#include <cstdint>

#include "hopper/contracts.cuh"

namespace flashladder::hopper {

constexpr int kWarp = 32;        // threads
constexpr int kWarpgroup = 128;  // threads, four warps: what issues a wgmma
constexpr int kHalfRow = 128;    // bytes: 64 elements, the span of the swizzle
constexpr int kSwizzled = 1024;  // bytes: eight rows, after which the swizzle repeats; tiles begin at multiples of it

template <typename Kernel>
struct Geometry {
    static constexpr int B_r = Kernel::B_r;
    static constexpr int B_c = Kernel::B_c;
    static constexpr int n_consumers = Kernel::n_consumers;
    static constexpr int rows = B_r / n_consumers;           // of Q and O, per consumer warpgroup
    static constexpr int m_tiles = rows / (kWarpgroup / 2);  // of 16 rows, per warp
    static constexpr int s_n_tiles = B_c / 8;                // of S
    static constexpr int o_n_tiles = Kernel::d_head / 8;     // of O
    static constexpr int consumer_warps = n_consumers * kWarpgroup / kWarp;

    // Shared memory, in bytes from its start: Q (whose place O takes), K, V, barriers, m and l of rows that are merged.
    static constexpr int group_bytes = rows * 2 * kHalfRow;  // a warpgroup's Q, or O
    static constexpr int q_bytes = B_r * 2 * kHalfRow;
    static constexpr int kv_bytes = B_c * 2 * kHalfRow;
    static constexpr int smem_q = 0;
    static constexpr int smem_k = smem_q + Kernel::q_stages * q_bytes;
    static constexpr int smem_v = smem_k + Kernel::k_stages * kv_bytes;
    static constexpr int smem_barriers = smem_v + Kernel::v_stages * kv_bytes;
    static constexpr int barrier_bytes = 16;  // of a stage: full and empty
    static constexpr int smem_stats =
        smem_barriers + barrier_bytes * (Kernel::q_stages + Kernel::k_stages + Kernel::v_stages);
    static constexpr int smem_records =
        smem_stats + (contract::Epilogue<typename Kernel::Epilogue>::merges ? B_r * 2 * 4 : 0);
    static constexpr bool told = Kernel::causal || contract::Scheduler<typename Kernel::Scheduler>::packed;
    static constexpr int record_bytes = told ? 32 : 0;  // of a stage of Q: a WorkTile
    static constexpr int smem_bytes = smem_records + Kernel::q_stages * record_bytes;

    static_assert(sizeof(typename Kernel::value_t) == 2, "inputs are 16-bit");
    static_assert(Kernel::d_head == 128, "a row is two halves of 64 elements");
    static_assert(B_r % (n_consumers * kWarpgroup / 2) == 0, "a warp owns whole m16 tiles");
    static_assert(B_c % 16 == 0 && B_c <= 256, "a block is whole k16 tiles of P V and one box of a tensor map");
    static_assert(group_bytes % kSwizzled == 0 && kv_bytes / 2 % kSwizzled == 0, "halves begin where the swizzle does");
    static_assert(smem_bytes <= 227 * 1024, "227 KiB is the most shared memory that sm_90 gives a CTA");
    static_assert(smem_bytes == Kernel::smem_bytes, "what the host launches");
    static_assert(Kernel::Roles::n_threads(n_consumers) == Kernel::n_threads, "what the host launches");
};

}  // namespace flashladder::hopper
