// What it is: attention forward as Hopper kernels are built: a producer warp that copies tiles by TMA into rings of two
// stages, two consumer warpgroups of 64 queries each, d = 128, PV of one block under the softmax of the next.
// Why: the emulator's speed is measured on it (emulator/docs/speed.md), with counters and hazards.
// Run: pytest tests/nvcc/test_hopper_loop.py

#include <cuda_fp16.h>

#include <cstdint>

#ifndef RELEASED_EARLY
#define RELEASED_EARLY false  // true: a stage of keys is given back before the products that read it have ended
#endif

constexpr int TILE = 128;  // queries and keys of a tile, and d
constexpr int TILE_BYTES = 2 * TILE * TILE;
constexpr int HALF_BYTES = TILE_BYTES / 2;  // 64 columns of all rows: 128 bytes a row, swizzled
constexpr int STAGES = 2;
constexpr int CONSUMERS = 2;

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

struct Shared {
    char q[TILE_BYTES], k[STAGES][TILE_BYTES], v[STAGES][TILE_BYTES];
    uint64_t q_full, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

__device__ __forceinline__ uint32_t at(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void init(uint64_t *barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(barrier)), "r"(count));
}

__device__ __forceinline__ void expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(barrier)) : "memory");
}

__device__ __forceinline__ void wait(uint64_t *barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::
            "r"(at(barrier)),
        "r"(parity)
        : "memory");
}

// 128 rows of a matrix of 128 columns, from row `row` on, as two halves of 64 columns.
__device__ __forceinline__ void load(char *to, const TensorMap *map, int row, uint64_t *barrier) {
    expect(barrier, TILE_BYTES);
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %2}], [%4];" ::
            "r"(at(to)),
        "l"(map), "r"(0), "r"(row), "r"(at(barrier))
        : "memory");
}

// A matrix in shared memory with the swizzle of 128 bytes.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, int leading) {
    return (address & 0x3ffff) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(d, i) FOUR(d, i), FOUR(d, i + 4), FOUR(d, i + 8), FOUR(d, i + 12)
#define D64(d) SIXTEEN(d, 0), SIXTEEN(d, 16), SIXTEEN(d, 32), SIXTEEN(d, 48)
#define NAMES                                                                                               \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "  \
    "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
    "%62, %63}"
#define MMA "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " NAMES

// d = a b^T (+ d), both matrices in shared memory.
__device__ __forceinline__ void scores(float (&d)[64], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" MMA ", %64, %65, p, 1, 1, 0, 0;\n}"
                 : D64(d)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// d += a b, a in registers, b with its columns contiguous.
__device__ __forceinline__ void values(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n" MMA ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
                 : D64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
    const __half2 both = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t &>(both);
}

__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

__device__ void produce(Shared &s, const TensorMap *q, const TensorMap *k, const TensorMap *v, int blocks) {
    load(s.q, q, blockIdx.x * TILE, &s.q_full);
#pragma unroll 1
    for (int j = 0; j < blocks; ++j) {
        const int stage = j % STAGES, parity = j / STAGES % 2 ^ 1;
        wait(&s.k_empty[stage], parity);
        load(s.k[stage], k, j * TILE, &s.k_full[stage]);
        wait(&s.v_empty[stage], parity);
        load(s.v[stage], v, j * TILE, &s.v_full[stage]);
    }
}

// The weights of one block from its scores; the factors by which earlier sums shrink.
__device__ __forceinline__ void softmax(float (&s)[64], float (&m)[2], float (&l)[2], float (&f)[2], float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float most = m[half];
#pragma unroll
        for (int i = 2 * half; i < 64; i += 4) {
            most = fmaxf(most, fmaxf(s[i], s[i + 1]));
        }
        most = row_max(most);
        f[half] = exp2f((m[half] - most) * scale);
        m[half] = most;
        l[half] *= f[half];
#pragma unroll
        for (int i = 2 * half; i < 64; i += 4) {
            s[i] = exp2f((s[i] - most) * scale);
            s[i + 1] = exp2f((s[i + 1] - most) * scale);
            l[half] += s[i] + s[i + 1];
        }
    }
}

__device__ __forceinline__ void issue_values(float (&o)[64], const uint32_t (&p)[8][4], uint32_t v) {
    fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        values(o, p[step], descriptor(v + 2048 * step, HALF_BYTES));
    }
    commit();
}

__device__ __forceinline__ void rescale(float (&o)[64], const float (&f)[2]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        o[i] *= f[i / 2 % 2];
    }
}

__device__ void consume(Shared &s, float *out, int blocks, float scale) {
    const int warpgroup = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    float o[64] = {}, x[64] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {}, f[2];
    uint32_t p[8][4];
    const uint32_t q = at(s.q) + 64 * 128 * warpgroup;
    wait(&s.q_full, 0);
#pragma unroll 1
    for (int j = 0; j < blocks; ++j) {
        const int stage = j % STAGES, before = (j + STAGES - 1) % STAGES;
        wait(&s.k_full[stage], j / STAGES % 2);
        fence();
#pragma unroll
        for (int step = 0; step < 8; ++step) {
            const int place = step / 4 * HALF_BYTES + step % 4 * 32;
            scores(x, descriptor(q + place, 16), descriptor(at(s.k[stage]) + place, 16), step > 0);
        }
        commit();
        if (RELEASED_EARLY && lane == 0) {
            arrive(&s.k_empty[stage]);
        }
        if (j > 0) {
            wait(&s.v_full[before], (j - 1) / STAGES % 2);
            issue_values(o, p, at(s.v[before]));
            wait_products<1>();
        } else {
            wait_products<0>();
        }
        if (!RELEASED_EARLY && lane == 0) {
            arrive(&s.k_empty[stage]);
        }
        softmax(x, m, l, f, scale);
        wait_products<0>();
        if (j > 0 && lane == 0) {
            arrive(&s.v_empty[before]);
        }
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            p[i / 4][i % 4] = pack(x[2 * i], x[2 * i + 1]);
        }
        rescale(o, f);
    }
    const int last = (blocks - 1) % STAGES;
    wait(&s.v_full[last], (blocks - 1) / STAGES % 2);
    issue_values(o, p, at(s.v[last]));
    wait_products<0>();
    const float inverse[2] = {1 / row_sum(l[0]), 1 / row_sum(l[1])};
    const int row = blockIdx.x * TILE + 64 * warpgroup + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const int half = i / 2 % 2;
        float2 *to = reinterpret_cast<float2 *>(out + (row + 8 * half) * TILE + i / 4 * 8 + lane % 4 * 2);
        *to = make_float2(o[i] * inverse[half], o[i + 1] * inverse[half]);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) attention(float *out, const __grid_constant__ TensorMap q,
                                                               const __grid_constant__ TensorMap k,
                                                               const __grid_constant__ TensorMap v, int blocks,
                                                               float scale) {
    extern __shared__ __align__(1024) char memory[];
    Shared &s = *reinterpret_cast<Shared *>(memory);
    if (threadIdx.x == 0) {
        init(&s.q_full, 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            init(&s.k_full[stage], 1);
            init(&s.v_full[stage], 1);
            init(&s.k_empty[stage], 4 * CONSUMERS);
            init(&s.v_empty[stage], 4 * CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            produce(s, &q, &k, &v, blocks);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume(s, out, blocks, scale);
    }
}
