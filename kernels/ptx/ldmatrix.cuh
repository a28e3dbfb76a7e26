// ldmatrix: four 8x8 matrices of 16-bit elements from shared memory, spread over the warp as mma expects them.
//
// Lane i gives the address of row i % 8 of matrix i / 8 and receives one 32-bit register of each matrix.
// A phase reads one matrix: eight 16-byte rows, conflict-free when they fall into eight different 16-byte bank groups.
// One function per instruction; PTX ISA 9.0, 9.7.14.5.15.
#pragma once

#include <cstdint>

namespace flashladder::ptx {

__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t shared_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address)
                 : "memory");
}

// As ldmatrix_x4, each matrix transposed on the way: for an operand whose k dimension runs along the rows (V).
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t shared_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address)
                 : "memory");
}

}  // namespace flashladder::ptx
