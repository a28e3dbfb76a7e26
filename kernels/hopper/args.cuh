// What the host hands to a Hopper kernel: the one structure that both sides include.
//
// Plain C++17 without CUDA or torch headers, as host/args.cuh. A tensor (batch, seq_len, n_heads, d_head) is a map of
// five axes, innermost first: 64 elements, seq_len rows, the 2 halves of d_head, n_heads, batch. One copy of a box
// {64, rows, 2, 1, 1} then fills a tile [half][row][64 elements], whose rows of 128 bytes the copy engine swizzles.
// What lies outside of seq_len is read as zeros and never written.
//
// Packed sequences (rows, n_heads, d_head) have maps that end with any of them: 128 elements, kPackedEnd rows, n_heads,
// and two axes that move a box. One has the stride 2^34 - s, where s is the stride of rows: its coordinate is always
// kPackedEnd = 2^30 and takes 2^30 rows off, as addresses count modulo 2^64. The other one has the stride s, and its
// coordinate is the row after the sequence's last. Row i of n of a sequence then is row kPackedEnd - n + i of the map,
// and what lies behind the sequence lies outside of the map. A box is half of d_head wide.
#pragma once

#include <cstdint>

namespace flashladder {

constexpr std::int32_t kPackedEnd = 1 << 30;  // rows of a map of packed sequences

// CUtensorMap, which only the driver reads and writes; the kernel passes its address on.
struct alignas(128) TensorMap {
    std::uint64_t opaque[16];
};

struct HopperArgs {
    TensorMap q;               // boxes of B_r / n_consumers rows: a warpgroup's
    TensorMap k;               // boxes of B_c rows
    TensorMap v;               // boxes of B_c rows
    TensorMap o;               // boxes of as many rows as the epilogue stores at once
    float scale_log2;          // log2(e) / sqrt(d_head)
    std::int32_t seq_len;      // of keys, at least 1; of queries too up to iteration 28
    std::int32_t n_kv_blocks;  // seq_len / B_c, rounded up
    std::int32_t n_q_blocks;   // of queries / B_r, rounded up
    std::int32_t n_heads;      // of queries
    std::int32_t batch;
    // From iteration 29 on:
    std::int32_t q_len;         // queries, at least 1
    std::int32_t heads_per_kv;  // query heads that read one head of K and V
    float *lse;                 // log-sum-exp of each row, (batch, n_heads, q_len); null if nobody asked for it
    // Packed sequences, from iteration 33 on: `batch` of them one after another, q_len and seq_len are of all together.
    const std::int32_t *cu_q;   // batch + 1 numbers on the device: the row of Q at which a sequence begins, and the end
    const std::int32_t *cu_kv;  // the same of K and V
};

// Written by the host's compiler, read by nvcc's: both must lay it out alike.
static_assert(sizeof(TensorMap) == 128 && sizeof(HopperArgs) == 640, "the layout that kernels were compiled for");

}  // namespace flashladder
