// stmatrix: ldmatrix's way back, four 8x8 matrices of 16-bit elements from the warp's registers to shared memory.
//
// Lane i gives the address of row i % 8 of matrix i / 8 and one register of each matrix: accumulators, rounded to 16
// bits in pairs, lie as it wants them. One function per instruction; PTX ISA 9.0, 9.7.14.5.16 (sm_90).
#pragma once

#include <cstdint>

namespace flashladder::ptx {

__device__ __forceinline__ void stmatrix_x4(std::uint32_t shared_address, const std::uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

}  // namespace flashladder::ptx
