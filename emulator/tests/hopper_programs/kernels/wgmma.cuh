#pragma once

// What it is: wgmma as CUDA functions: the tile's registers, descriptors of operands in shared memory, commit and wait.
// Why: an instruction of up to 128 registers is written once per shape here; the layouts are the callers' business.
// Run: pytest tests/nvcc/test_hopper_programs.py

#include <cuda_fp16.h>

#include "barriers.cuh"

// A matrix in shared memory: `leading` and `stride` in bytes; swizzle 0: none, 1: 128 bytes, 2: 64, 3: 32.
__device__ inline uint64_t descriptor(uint32_t address, int leading, int stride, int swizzle) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(swizzle) << 62;
}

__device__ inline void fence_registers() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most N of the warpgroup's latest groups are in flight.
template <int N>
__device__ inline void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps the compiler from moving what defines or uses a tile's registers across fences and waits.
template <int COUNT>
__device__ inline void pin(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

template <typename T, int COUNT>
__device__ inline void pin(T (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        asm volatile("" : "+r"(d[i])::"memory");
    }
}

// Registers of a tile in an instruction's text, and as operands; R: how the type is bound, "+f" or "+r".
#define NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define NAMES_104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define NAMES_120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define BOUND_4(R, d, i) R(d[i]), R(d[i + 1]), R(d[i + 2]), R(d[i + 3])
#define BOUND_8(R, d, i) BOUND_4(R, d, i), BOUND_4(R, d, i + 4)
#define BOUND_12(R, d, i) BOUND_8(R, d, i), BOUND_4(R, d, i + 8)
#define BOUND_16(R, d, i) BOUND_8(R, d, i), BOUND_8(R, d, i + 8)
#define BOUND_32(R, d, i) BOUND_16(R, d, i), BOUND_16(R, d, i + 16)
#define BOUND_64(R, d, i) BOUND_32(R, d, i), BOUND_32(R, d, i + 32)
#define BOUND_128(R, d, i) BOUND_64(R, d, i), BOUND_64(R, d, i + 64)
#define NAMES_TO_16 NAMES_0 ", " NAMES_8
#define NAMES_TO_32 NAMES_0 ", " NAMES_8 ", " NAMES_16 ", " NAMES_24
#define NAMES_TO_64 \
    NAMES_0 ", " NAMES_8 ", " NAMES_16 ", " NAMES_24 ", " NAMES_32 ", " NAMES_40 ", " NAMES_48 ", " NAMES_56
#define NAMES_TO_128                                                                                            \
    NAMES_0 ", " NAMES_8 ", " NAMES_16 ", " NAMES_24 ", " NAMES_32 ", " NAMES_40 ", " NAMES_48 ", " NAMES_56    \
            ", " NAMES_64 ", " NAMES_72 ", " NAMES_80 ", " NAMES_88 ", " NAMES_96 ", " NAMES_104 ", " NAMES_112 \
            ", " NAMES_120

// Both operands in shared memory. TEXT: shape and types, "m64n64k16.f32.f16.f16"; REST: sign and transposition
// immediates; A, B, P: the operands' numbers, that is how many registers the tile has, and the next two.
#define WGMMA_SS(TEXT, NAMES, A, B, P, REST, BOUND, a, b, scale)                                                      \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #P ", 0; wgmma.mma_async.sync.aligned." TEXT " {" NAMES "}, %" #A \
                 ", %" #B ", p" REST "; }"                                                                            \
                 : BOUND                                                                                              \
                 : "l"(a), "l"(b), "r"(static_cast<int>(scale))                                                       \
                 : "memory")

// The first operand in four registers.
#define WGMMA_RS(TEXT, NAMES, A0, A1, A2, A3, B, P, REST, BOUND, a, b, scale)                               \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #P ", 0; wgmma.mma_async.sync.aligned." TEXT " {" NAMES \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p" REST "; }"                       \
                 : BOUND                                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(scale))         \
                 : "memory")

// WGMMA_SS for tiles of so many registers.
#define PRODUCT_R4(TEXT, REST, R, d, a, b, scale) \
    WGMMA_SS(TEXT, "%0, %1, %2, %3", 4, 5, 6, REST, BOUND_4(R, d, 0), a, b, scale)
#define PRODUCT_R12(TEXT, REST, R, d, a, b, scale) \
    WGMMA_SS(TEXT, NAMES_0 ", %8, %9, %10, %11", 12, 13, 14, REST, BOUND_12(R, d, 0), a, b, scale)
#define PRODUCT_R16(TEXT, REST, R, d, a, b, scale) \
    WGMMA_SS(TEXT, NAMES_TO_16, 16, 17, 18, REST, BOUND_16(R, d, 0), a, b, scale)
#define PRODUCT_R32(TEXT, REST, R, d, a, b, scale) \
    WGMMA_SS(TEXT, NAMES_TO_32, 32, 33, 34, REST, BOUND_32(R, d, 0), a, b, scale)
#define PRODUCT_R64(TEXT, REST, R, d, a, b, scale) \
    WGMMA_SS(TEXT, NAMES_TO_64, 64, 65, 66, REST, BOUND_64(R, d, 0), a, b, scale)
#define PRODUCT_R128(TEXT, REST, R, d, a, b, scale) \
    WGMMA_SS(TEXT, NAMES_TO_128, 128, 129, 130, REST, BOUND_128(R, d, 0), a, b, scale)

// WGMMA_RS likewise.
#define PRODUCT_A_R32(TEXT, REST, R, d, a, b, scale) \
    WGMMA_RS(TEXT, NAMES_TO_32, 32, 33, 34, 35, 36, 37, REST, BOUND_32(R, d, 0), a, b, scale)
#define PRODUCT_A_R64(TEXT, REST, R, d, a, b, scale) \
    WGMMA_RS(TEXT, NAMES_TO_64, 64, 65, 66, 67, 68, 69, REST, BOUND_64(R, d, 0), a, b, scale)

// Writes a tile of 64 x N 32-bit elements, N = 2 * REGISTERS, row by row.
template <int REGISTERS, typename T>
__device__ inline void write_tile(T *out, const T (&d)[REGISTERS], int pitch = 2 * REGISTERS) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < REGISTERS; ++i) {
        out[(row + i / 2 % 2 * 8) * pitch + i / 4 * 8 + column + i % 2] = d[i];
    }
}

// Copies `bytes` (a multiple of 16) to shared memory as they are; all threads of the block.
__device__ inline void copy_image(void *shared, const void *global, int bytes) {
    for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
        static_cast<uint4 *>(shared)[i] = static_cast<const uint4 *>(global)[i];
    }
}

// Places in a tile of rows of 64 halves with 128-byte swizzle, which begins at a multiple of 1024 bytes: the k-step'th
// 16 columns of every row (K-major), or the k-step'th 16 rows of every column (across).
__device__ inline uint64_t along(const void *tile, int step) {
    return descriptor(shared_address(tile) + 32 * step, 16, 1024, 1);
}

__device__ inline uint64_t across(const void *tile, int step) {
    return descriptor(shared_address(tile) + 2048 * step, 64 * 128, 1024, 1);
}

// d (+)= A B^T, of such tiles of 64 rows each.
__device__ inline void multiply(float (&d)[32], const void *a, const void *b, bool add) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        PRODUCT_R32("m64n64k16.f32.f16.f16", ", 1, 1, 0, 0", "+f", d, along(a, k), along(b, k), k > 0 || add);
    }
}

// d (+)= A B, with A in registers.
__device__ inline void multiply_across(float (&d)[32], const uint32_t (&a)[4][4], const void *b, bool add) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        PRODUCT_A_R32("m64n64k16.f32.f16.f16", ", 1, 1, 1", "+f", d, a[k], across(b, k), k > 0 || add);
    }
}

// The tile of an earlier product, rounded to halves: the first operand of a later one.
__device__ inline void as_operand(uint32_t (&a)[4][4], const float (&d)[32]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const __half2 pair = __floats2half2_rn(d[2 * i], d[2 * i + 1]);
        a[i / 4][i % 4] = *reinterpret_cast<const uint32_t *>(&pair);
    }
}
