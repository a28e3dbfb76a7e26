// What the host hands to a kernel: the one structure that both sides include.
//
// Plain C++17 without CUDA or torch headers, so that the launcher (kernels/host/launch.cpp) and every kernel share it.
// Tensors are (batch, seq_len, n_heads, d_head) of 16-bit elements; the last dimension is contiguous, the other strides
// are in bytes and multiples of 16, so that every row starts where a 16-byte access may.
#pragma once

#include <cstdint>

namespace flashladder {

struct TensorStrides {
    std::int64_t batch;  // bytes from one sample to the next
    std::int64_t head;   // bytes from one head to the next
    std::int32_t seq;    // bytes from one position to the next: the row stride of a tile, one 32-bit multiplier
};

struct FlashFwdArgs {
    const void *q;  // (batch, seq_len, n_heads, d_head), 16-byte aligned
    const void *k;  // as q
    const void *v;  // as q
    void *o;        // as q
    TensorStrides q_strides;
    TensorStrides k_strides;
    TensorStrides v_strides;
    TensorStrides o_strides;
    int n_kv_blocks;  // seq_len / B_c, at least 1
};

// Written by the host's compiler, read by nvcc's: both must lay it out alike.
static_assert(sizeof(TensorStrides) == 24 && sizeof(FlashFwdArgs) == 136, "the layout that kernels were compiled for");

}  // namespace flashladder
