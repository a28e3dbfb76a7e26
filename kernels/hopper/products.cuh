// The two products of a consumer warpgroup as wgmma: S = Q K^T from shared memory, O += P V with P in registers.
//
// A descriptor is an address and how to step through a swizzled tile (PTX ISA 9.0, 9.7.15.5.1.2.2): bits 0-13 the
// address, 16-29 the step from one half of a row to the other where rows are the columns of B, 32-45 the step from
// eight rows to the next eight, all in units of 16 bytes; 62-63: swizzle of 128 bytes.
#pragma once

#include <cstdint>

#include "hopper/geometry.cuh"
#include "ptx/wgmma.cuh"

namespace flashladder::hopper {

__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t address, int half_bytes) {
    return static_cast<std::uint64_t>((address & 0x3ffff) >> 4) | static_cast<std::uint64_t>(half_bytes >> 4) << 16 |
           static_cast<std::uint64_t>(kSwizzled >> 4) << 32 | 1ull << 62;
}

// S = Q K^T: (64, B_c) over the warpgroup. k runs along the rows of both: 16 elements are 32 bytes, and after 64 comes
// the other half of the tile.
template <typename value_t, int B_c>
__device__ __forceinline__ void multiply_qk(float (&s)[1][B_c / 8][4], std::uint32_t q, std::uint32_t k) {
    const std::uint64_t a = descriptor(q, 0);
    const std::uint64_t b = descriptor(k, 0);
#pragma unroll
    for (int t = 0; t < 8; ++t) {
        const int within = t % 4 * 2;
        ptx::wgmma<value_t>(s[0], a + (t / 4 * 64 * kHalfRow >> 4) + within, b + (t / 4 * B_c * kHalfRow >> 4) + within,
                            t > 0);
    }
}

// O += P V: (64, 128) over the warpgroup. k runs down the rows of V: 16 rows are 2048 bytes.
template <typename value_t, int B_c>
__device__ __forceinline__ void multiply_pv(float (&o)[1][16][4], const std::uint32_t (&p)[B_c / 16][4],
                                            std::uint32_t v) {
    const std::uint64_t b = descriptor(v, B_c * kHalfRow);
#pragma unroll
    for (int t = 0; t < B_c / 16; ++t) {
        ptx::wgmma<value_t>(o[0], p[t], b + t * (2 * kSwizzled >> 4));
    }
}

}  // namespace flashladder::hopper
