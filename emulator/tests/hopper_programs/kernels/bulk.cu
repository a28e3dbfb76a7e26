// What it is: bulk copies without a tensor map: loads that signal an mbarrier, stores and reductions in groups.
// Why: bytes are counted on the barrier, sources are read late, and the async proxy sees what a fence made visible.
// Run: pytest tests/nvcc/test_hopper_programs.py -k bulk

#include "copies.cuh"

// One load, waited for by all threads.
extern "C" __global__ void load(float *out, const float *in) {
    __shared__ __align__(128) float tile[1024];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, sizeof tile);
        bulk_load(tile, in, sizeof tile, &full);
    }
    __syncthreads();
    wait(&full, 0);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
        out[i] = tile[1023 - i];
    }
}

// Many loads of unequal length on one barrier, some issued before anything is expected: the count goes below zero.
extern "C" __global__ void pieces(float *out, const float *in) {
    __shared__ __align__(128) float tile[1024];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        for (int i = 0, begin = 0; i < 7; ++i) {
            const int count = i < 6 ? 4 << i : 1024 - begin;  // 4, 8, ... 128 floats, and the rest
            bulk_load(tile + begin, in + begin, 4 * count, &full);
            begin += count;
        }
        arrive_expect(&full, sizeof tile);
    }
    __syncthreads();
    wait(&full, 0);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
        out[i] = 2 * tile[i];
    }
}

// All threads fill a tile, one stores it.
extern "C" __global__ void store(float *out, const float *in) {
    __shared__ __align__(128) float tile[512];
    for (int i = threadIdx.x; i < 512; i += blockDim.x) {
        tile[i] = in[i] + 1;
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out + 512 * blockIdx.x, tile, sizeof tile);
        commit_stores();
        wait_stores<0>();
    }
}

// Two buffers: one is filled while the other may still be read.
extern "C" __global__ void store_in_turn(float *out, const float *in, int rounds) {
    __shared__ __align__(128) float tile[2][128];
    for (int round = 0; round < rounds; ++round) {
        if (threadIdx.x == 0) {
            wait_reads<1>();
        }
        __syncthreads();
        tile[round % 2][threadIdx.x] = in[128 * round + threadIdx.x] * round;
        fence_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_store(out + 128 * round, tile[round % 2], sizeof tile[0]);
            commit_stores();
        }
    }
    if (threadIdx.x == 0) {
        wait_stores<0>();
    }
}

// Each block adds its tile, or combines it otherwise, with what is there.
#define REDUCTION(NAME, T, OP)                                         \
    extern "C" __global__ void NAME(T *out, const T *in) {             \
        __shared__ __align__(128) T tile[256];                         \
        tile[threadIdx.x] = in[256 * blockIdx.x + threadIdx.x];        \
        fence_async();                                                 \
        __syncthreads();                                               \
        if (threadIdx.x == 0) {                                        \
            BULK_REDUCE(OP, out, tile, static_cast<int>(sizeof tile)); \
            commit_stores();                                           \
            wait_stores<0>();                                          \
        }                                                              \
    }

REDUCTION(add_f32, float, "add.f32")
REDUCTION(add_u64, unsigned long long, "add.u64")
REDUCTION(min_s32, int, "min.s32")
REDUCTION(xor_b32, unsigned, "xor.b32")
REDUCTION(add_f16, unsigned short, "add.noftz.f16")
REDUCTION(max_bf16, unsigned short, "max.bf16")

// A ring of three stages: one warp loads, three add up.
extern "C" __global__ void __launch_bounds__(128) ring(float *out, const float *in, int tiles) {
    constexpr int STAGES = 3;
    __shared__ __align__(128) float stage[STAGES][96];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            init(&full[i], 1);
            init(&empty[i], 96);
        }
        fence_init();
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < tiles; ++i) {
                wait(&empty[i % STAGES], i / STAGES % 2 ^ 1);
                arrive_expect(&full[i % STAGES], sizeof stage[0]);
                bulk_load(stage[i % STAGES], in + 96 * i, sizeof stage[0], &full[i % STAGES]);
            }
        }
        return;
    }
    const int mine = threadIdx.x - 32;
    float sum = 0;
    for (int i = 0; i < tiles; ++i) {
        wait(&full[i % STAGES], i / STAGES % 2);
        sum = 2 * sum + stage[i % STAGES][95 - mine];
        arrive(&empty[i % STAGES]);
    }
    out[mine] = sum;
}

// Load, work in place, store: both proxies take turns on one tile.
extern "C" __global__ void in_place(float *data, int tiles) {
    __shared__ __align__(128) float tile[256];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
    }
    __syncthreads();
    for (int i = 0; i < tiles; ++i) {
        if (threadIdx.x == 0) {
            arrive_expect(&full, sizeof tile);
            bulk_load(tile, data + 256 * i, sizeof tile, &full);
        }
        wait(&full, i % 2);
        tile[threadIdx.x] = tile[threadIdx.x] * tile[threadIdx.x];
        fence_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_store(data + 256 * i, tile, sizeof tile);
            commit_stores();
            wait_reads<0>();
        }
    }
    if (threadIdx.x == 0) {
        wait_stores<0>();
    }
}

// Prefetches into the L2 cache and hints at how to keep lines there: neither changes a value.
extern "C" __global__ void hints(float *out, const float *in) {
    __shared__ __align__(128) float tile[256];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        uint64_t policy;
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(in), "r"(1024) : "memory");
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        init(&full, 1);
        fence_init();
        arrive_expect(&full, sizeof tile);
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
            "%4;" ::"r"(shared_address(tile)),
            "l"(in), "r"(1024), "r"(shared_address(&full)), "l"(policy)
            : "memory");
    }
    __syncthreads();
    wait(&full, 0);
    out[threadIdx.x] = tile[threadIdx.x] + 3;
}
