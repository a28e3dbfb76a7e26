// What it is: warps with different parts: registers handed over, an elected thread, named barriers, early exit.
// Why: kernels of this kind live on it, and every rule about who takes part can be broken.
// Run: pytest tests/nvcc/test_hopper_programs.py -k roles

#include "copies.cuh"

// A producer warpgroup gives registers away, two consumer warpgroups take them.
extern "C" __global__ void __launch_bounds__(384, 1) registers(float *out, const float *in, int tiles) {
    __shared__ __align__(128) float tile[2][256];
    __shared__ uint64_t full[2], empty[2];
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            init(&full[i], 1);
            init(&empty[i], 8);
        }
        fence_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x < 32 && elect_one()) {
            for (int i = 0; i < tiles; ++i) {
                wait(&empty[i % 2], i / 2 % 2 ^ 1);
                arrive_expect(&full[i % 2], sizeof tile[0]);
                bulk_load(tile[i % 2], in + 256 * i, sizeof tile[0], &full[i % 2]);
            }
        }
    } else {
        more_registers<240>();
        float sum = 0;
        for (int i = 0; i < tiles; ++i) {
            wait(&full[i % 2], i / 2 % 2);
            sum += tile[i % 2][threadIdx.x - 128];
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                arrive(&empty[i % 2]);
            }
        }
        out[threadIdx.x - 128] = sum;
    }
}

// Two warpgroups take turns on one array: each waits at its own barrier, at which the other arrives.
extern "C" __global__ void __launch_bounds__(256) turns(int *out, int rounds) {
    __shared__ int value[128];
    const int group = threadIdx.x / 128, i = threadIdx.x % 128;
    if (group == 0) {
        value[i] = i;
    } else {
        barrier_arrive(1, 256);  // the first turn is the first warpgroup's
    }
    for (int round = 0; round < rounds; ++round) {
        barrier_sync(1 + group, 256);
        if (group == 0) {
            const int next = value[(i + 1) % 128];
            barrier_sync(3, 128);
            value[i] = next * 2 % 10007;
        } else {
            ++value[i];
        }
        barrier_arrive(2 - group, 256);
    }
    if (group == 0) {
        barrier_sync(1, 256);
        out[i] = value[i];
    }
}

// Barriers that count: how many threads, whether all, whether any; of two questions one has the answer no each time.
extern "C" __global__ void votes(int *out) {
    const int i = threadIdx.x;
#pragma unroll 1
    for (int round = 0; round < 2; ++round) {
        int count, all, any;
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; barrier.cta.red.popc.aligned.u32 %0, 1, 64, p; }"
                     : "=r"(count)
                     : "r"((i + round) % 3)
                     : "memory");
        asm volatile(
            "{ .reg .pred p, q; setp.lt.s32 p, %1, 64; barrier.cta.red.and.aligned.pred q, 1, 64, p; "
            "selp.s32 %0, 1, 0, q; }"
            : "=r"(all)
            : "r"(i + round)
            : "memory");
        asm volatile(
            "{ .reg .pred p, q; setp.eq.s32 p, %1, 64; barrier.cta.red.or.aligned.pred q, 1, 64, p; "
            "selp.s32 %0, 1, 0, q; }"
            : "=r"(any)
            : "r"(i + round)
            : "memory");
        out[64 * round + i] = count + 100 * all + 1000 * any;
    }
}

// Three of four warps leave early; the last one goes on with a barrier of its own.
extern "C" __global__ void early_exit(int *out) {
    __shared__ int value[128];
    __shared__ uint64_t ready;
    if (threadIdx.x == 0) {
        init(&ready, 96);
    }
    __syncthreads();
    if (threadIdx.x < 96) {
        value[threadIdx.x] = threadIdx.x * threadIdx.x;
        arrive(&ready);
        return;
    }
    wait(&ready, 0);
    value[threadIdx.x] = value[threadIdx.x - 96] + value[threadIdx.x - 64] + value[threadIdx.x - 32];
    barrier_sync(1, 32);
    out[threadIdx.x - 96] = value[223 - threadIdx.x];
}

// One thread of each warp, whichever is elected among those that are there.
extern "C" __global__ void elected(int *out) {
    if (threadIdx.x % 32 >= 5) {
        uint32_t chosen, leader;
        asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffffe0; selp.u32 %1, 1, 0, p; }"
                     : "=r"(leader), "=r"(chosen));
        atomicAdd(&out[threadIdx.x / 32], chosen);
        if (chosen) {
            out[4 + threadIdx.x / 32] = leader == threadIdx.x % 32;
        }
    }
}

// A grid that depends on another one, launched as one that does not: the wait has nothing to wait for.
extern "C" __global__ void dependents(int *out, const int *in) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i] + 1;
}

// A matrix in registers goes to shared memory row by row (stmatrix), plain and transposed, and comes back transposed
// within the warp (movmatrix).
extern "C" __global__ void matrices(uint32_t *out) {
    __shared__ __align__(16) uint32_t tile[4][8][4], turned[2][8][4];
    const int lane = threadIdx.x;
    uint32_t part[4], moved;
    for (int i = 0; i < 4; ++i) {
        part[i] = 1000 * i + 2 * lane + ((1000 * i + 2 * lane + 1) << 16);
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(tile[lane / 8][lane % 8])),
                 "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3])
                 : "memory");
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(
                     shared_address(turned[lane / 8 % 2][lane % 8])),
                 "r"(part[0]), "r"(part[1])
                 : "memory");
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(moved) : "r"(part[2]));
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        out[32 * i + lane] = tile[i][lane / 4][lane % 4];
    }
    out[128 + lane] = turned[0][lane / 4][lane % 4];
    out[160 + lane] = turned[1][lane / 4][lane % 4];
    out[192 + lane] = moved;
    out[224 + lane] = __reduce_add_sync(0xffffffff, lane * lane) + __reduce_max_sync(0xffffffff, lane ^ 21u);
}
