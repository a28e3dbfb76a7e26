// Loop `plain` (iteration 20): a warp per query row; key by key, four elements of a head in each lane.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"
#include "rows/args.cuh"

namespace rows {

constexpr unsigned all_lanes = 0xffffffff;
constexpr float scale_log2e = 0.08838834764831845f * 1.4426950408889634f;  // 1 / sqrt(128), for powers of two

template <typename value_t>
__device__ __forceinline__ float widen(std::uint32_t low_half);

template <>
__device__ __forceinline__ float widen<flashladder::fp16>(std::uint32_t low_half) {
    float value;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(value) : "r"(low_half));
    return value;
}

template <>
__device__ __forceinline__ float widen<flashladder::bf16>(std::uint32_t low_half) {
    return __uint_as_float(low_half << 16);
}

struct Four {
    float x[4];
};

template <typename value_t>
__device__ __forceinline__ Four load(const void *tensor, std::int64_t offset) {
    const uint2 bits = *reinterpret_cast<const uint2 *>(static_cast<const char *>(tensor) + offset);
    return {
        {widen<value_t>(bits.x), widen<value_t>(bits.x >> 16), widen<value_t>(bits.y), widen<value_t>(bits.y >> 16)}};
}

template <typename value_t>
__device__ __forceinline__ void attend(const Args &args, int row) {
    const int lane = threadIdx.x % 32;
    const int position = row % args.seq_len, head = row / args.seq_len % args.n_heads;
    const int sample = row / args.seq_len / args.n_heads;
    const auto origin = [&](int tensor) {
        return sample * args.strides[tensor][0] + head * args.strides[tensor][2] + lane * 8;
    };
    const Four q = load<value_t>(args.q, origin(0) + position * args.strides[0][1]);
    Four o{};
    float m = -INFINITY, l = 0.0f;
    for (int key = 0; key < args.seq_len; ++key) {
        const Four k = load<value_t>(args.k, origin(1) + key * args.strides[1][1]);
        const Four v = load<value_t>(args.v, origin(2) + key * args.strides[2][1]);
        float s = q.x[0] * k.x[0] + q.x[1] * k.x[1] + q.x[2] * k.x[2] + q.x[3] * k.x[3];
        for (int mask = 16; mask > 0; mask /= 2)
            s += __shfl_xor_sync(all_lanes, s, mask);
        s *= scale_log2e;
        const float next = fmaxf(m, s), correction = flashladder::ptx::ex2(m - next);
        const float p = flashladder::ptx::ex2(s - next);
        l = l * correction + p;
        for (int i = 0; i < 4; ++i)
            o.x[i] = o.x[i] * correction + p * v.x[i];
        m = next;
    }
    uint2 bits;
    bits.x = flashladder::ptx::pack<value_t>(o.x[0] / l, o.x[1] / l);
    bits.y = flashladder::ptx::pack<value_t>(o.x[2] / l, o.x[3] / l);
    *reinterpret_cast<uint2 *>(static_cast<char *>(args.o) + origin(3) + position * args.strides[3][1]) = bits;
}

}  // namespace rows

extern "C" __global__ void __launch_bounds__(32 * Kernel::n_warps) flash_fwd_kernel(
    const __grid_constant__ rows::Args args) {
    rows::attend<Kernel::value_t>(args, blockIdx.x * Kernel::n_warps + threadIdx.x / 32);
}
