// wgmma.m64nNk16: D(64xN) += A(64x16) B(16xN) by a warpgroup, 16-bit inputs, fp32 accumulators, asynchronous.
//
// Warp w of the warpgroup has rows 16 w to 16 w + 15 of D, in n8 tiles as mma.m16n8k16 has them: d[j][0..1] row g,
// d[j][2..3] row g + 8, columns 8 j + 2 t, + 1 (lane = 4 g + t). B, and A if it is not in registers, are read from
// shared memory as a 64-bit descriptor says. Between an instruction and the wait for its group nothing may touch its
// registers or overwrite its tiles. PTX ISA 9.0, 9.7.15.5.
#pragma once

#include <cstdint>

#include "ptx/value_types.cuh"

namespace flashladder::ptx {

// Before the first wgmma after anything else wrote accumulators or A registers.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes the group of wgmma issued since the last commit.
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `pending` groups are under way; they end in order.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Registers of wgmma under way: neither their definition nor their use crosses this line in the compiler's mind.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void pin(float (&d)[m_tiles][n_tiles][4]) {
#pragma unroll
    for (int i = 0; i < m_tiles * n_tiles * 4; ++i) {
        asm volatile("" : "+f"(d[i / (n_tiles * 4)][i / 4 % n_tiles][i % 4])::"memory");
    }
}

template <int k_tiles>
__device__ __forceinline__ void pin(std::uint32_t (&a)[k_tiles][4]) {
#pragma unroll
    for (int i = 0; i < k_tiles * 4; ++i) {
        asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
    }
}

// D (+)= A B, both in shared memory with k along their rows; `add` false ignores what D held.
template <typename value_t, int n_tiles>
__device__ __forceinline__ void wgmma(float (&d)[n_tiles][4], std::uint64_t a, std::uint64_t b, bool add);

// D += A B, A in registers, B with k across its rows.
template <typename value_t, int n_tiles>
__device__ __forceinline__ void wgmma(float (&d)[n_tiles][4], const std::uint32_t (&a)[4], std::uint64_t b);

// N columns are N / 2 registers: their names in the instruction, and the operands they stand for.
#define FL_NAMES_32                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FL_NAMES_40 FL_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FL_NAMES_48 FL_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FL_NAMES_56 FL_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FL_NAMES_64 FL_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FL_NAMES_72 FL_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FL_NAMES_80 FL_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define FL_NAMES_88 FL_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define FL_NAMES_96 FL_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FL_TILE(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define FL_PAIR(j) FL_TILE(j), FL_TILE(j + 1)
#define FL_BOUND_32 FL_PAIR(0), FL_PAIR(2), FL_PAIR(4), FL_PAIR(6)
#define FL_BOUND_40 FL_BOUND_32, FL_PAIR(8)
#define FL_BOUND_48 FL_BOUND_40, FL_PAIR(10)
#define FL_BOUND_56 FL_BOUND_48, FL_PAIR(12)
#define FL_BOUND_64 FL_BOUND_56, FL_PAIR(14)
#define FL_BOUND_72 FL_BOUND_64, FL_PAIR(16)
#define FL_BOUND_80 FL_BOUND_72, FL_PAIR(18)
#define FL_BOUND_88 FL_BOUND_80, FL_PAIR(20)
#define FL_BOUND_96 FL_BOUND_88, FL_PAIR(22)

// `registers` = n / 2; a, b, p: the numbers of the operands behind them.
#define FL_WGMMA_SS(value_t, type, n, registers, a_, b_, p_)                                                           \
    template <>                                                                                                        \
    __device__ __forceinline__ void wgmma<value_t>(float (&d)[n / 8][4], std::uint64_t a, std::uint64_t b, bool add) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p_ ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n             \
                     "k16.f32." type "." type " {" FL_NAMES_##registers "}, %" #a_ ", %" #b_ ", p, 1, 1, 0, 0;\n}"     \
                     : FL_BOUND_##registers                                                                            \
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                    \
    }
#define FL_WGMMA_RS(value_t, type)                                                                                    \
    template <>                                                                                                       \
    __device__ __forceinline__ void wgmma<value_t>(float (&d)[16][4], const std::uint32_t (&a)[4], std::uint64_t b) { \
        asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." type      \
                     "." type " {" FL_NAMES_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"                         \
                     : FL_BOUND_64                                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                           \
    }
#define FL_WGMMA_OF(value_t, type)                  \
    FL_WGMMA_SS(value_t, type, 64, 32, 32, 33, 34)  \
    FL_WGMMA_SS(value_t, type, 80, 40, 40, 41, 42)  \
    FL_WGMMA_SS(value_t, type, 96, 48, 48, 49, 50)  \
    FL_WGMMA_SS(value_t, type, 112, 56, 56, 57, 58) \
    FL_WGMMA_SS(value_t, type, 128, 64, 64, 65, 66) \
    FL_WGMMA_SS(value_t, type, 144, 72, 72, 73, 74) \
    FL_WGMMA_SS(value_t, type, 160, 80, 80, 81, 82) \
    FL_WGMMA_SS(value_t, type, 176, 88, 88, 89, 90) \
    FL_WGMMA_SS(value_t, type, 192, 96, 96, 97, 98) \
    FL_WGMMA_RS(value_t, type)
FL_WGMMA_OF(fp16, "f16")
FL_WGMMA_OF(bf16, "bf16")

}  // namespace flashladder::ptx
