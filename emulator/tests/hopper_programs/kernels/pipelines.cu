// What it is: whole pipelines: TMA, mbarriers and wgmma together, from one stage to roles, rings and clusters.
// Why: this is how the pieces meet in real kernels; small shapes and small whole numbers keep every result exact.
// Run: pytest tests/nvcc/test_hopper_programs.py -k pipelines

#include "copies.cuh"
#include "wgmma.cuh"

constexpr int TILE_BYTES = 64 * 64 * 2;  // 64 rows of 64 halves

// C = A B^T, 64 x 64 per block: each k-block is loaded, waited for, multiplied and waited for again.
extern "C" __global__ void __launch_bounds__(128) one_stage(float *out, const __grid_constant__ TensorMap a,
                                                            const __grid_constant__ TensorMap b, int blocks) {
    __shared__ __align__(1024) unsigned char tile[2][TILE_BYTES];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
    }
    __syncthreads();
    float d[32] = {};
    for (int k = 0; k < blocks; ++k) {
        if (threadIdx.x == 0) {
            arrive_expect(&full, sizeof tile);
            tensor_load(tile[0], &a, &full, 64 * k, 64 * static_cast<int>(blockIdx.y));
            tensor_load(tile[1], &b, &full, 64 * k, 64 * static_cast<int>(blockIdx.x));
        }
        wait(&full, k % 2);
        pin(d);
        fence_registers();
        multiply(d, tile[0], tile[1], true);
        commit_products();
        wait_products<0>();
        pin(d);
        __syncthreads();
    }
    write_tile(out + blockIdx.y * 64 * 64 * gridDim.x + 64 * blockIdx.x, d, 64 * gridDim.x);
}

struct Ring {
    unsigned char a[3][2][TILE_BYTES], b[3][TILE_BYTES];
    uint64_t full[3], empty[3];
};

// The same with a producer warp, a ring of three stages and two consumer warpgroups of 64 rows each; a stage is given
// back one product late, when the wait has shown that it was read.
extern "C" __global__ void __launch_bounds__(384) ring(float *out, const __grid_constant__ TensorMap a,
                                                       const __grid_constant__ TensorMap b, int blocks) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Ring &ring = *reinterpret_cast<Ring *>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3; ++i) {
            init(&ring.full[i], 1);
            init(&ring.empty[i], 8);  // a thread of each consumer warp
        }
        fence_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        if (threadIdx.x == 0) {
            for (int k = 0; k < blocks; ++k) {
                wait(&ring.empty[k % 3], k / 3 % 2 ^ 1);
                arrive_expect(&ring.full[k % 3], 3 * TILE_BYTES);
                tensor_load(ring.a[k % 3][0], &a, &ring.full[k % 3], 64 * k, 128 * static_cast<int>(blockIdx.y));
                tensor_load(ring.a[k % 3][1], &a, &ring.full[k % 3], 64 * k, 128 * static_cast<int>(blockIdx.y) + 64);
                tensor_load(ring.b[k % 3], &b, &ring.full[k % 3], 64 * k, 64 * static_cast<int>(blockIdx.x));
            }
        }
        return;
    }
    const int group = threadIdx.x / 128 - 1;
    float d[32] = {};
    pin(d);
#pragma unroll 1
    for (int k = 0; k < blocks; ++k) {
        wait(&ring.full[k % 3], k / 3 % 2);
        fence_registers();
        multiply(d, ring.a[k % 3][group], ring.b[k % 3], true);
        commit_products();
        wait_products<0>();
        pin(d);
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            arrive(&ring.empty[k % 3]);
        }
    }
    write_tile(out + (2 * blockIdx.y + group) * 64 * 64 * gridDim.x + 64 * blockIdx.x, d, 64 * gridDim.x);
}

// One product; the tile goes out as halves through shared memory (stmatrix) and a tensor store, each warp by itself.
extern "C" __global__ void __launch_bounds__(128) stored_by_tma(const __grid_constant__ TensorMap a,
                                                                const __grid_constant__ TensorMap b,
                                                                const __grid_constant__ TensorMap out) {
    __shared__ __align__(1024) unsigned char tile[2][TILE_BYTES];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, sizeof tile);
        tensor_load(tile[0], &a, &full, 0, 64 * static_cast<int>(blockIdx.y));
        tensor_load(tile[1], &b, &full, 0, 64 * static_cast<int>(blockIdx.x));
    }
    __syncthreads();
    wait(&full, 0);
    float d[32] = {};
    pin(d);
    fence_registers();
    multiply(d, tile[0], tile[1], false);
    commit_products();
    wait_products<0>();
    pin(d);
    uint32_t packed[4][4];
    as_operand(packed, d);
    __syncthreads();  // the tiles were read by all four warps
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane % 16;
    unsigned char *mine = tile[0] + 2048 * warp;  // 16 rows of 128 bytes
    for (int k = 0; k < 4; ++k) {
        const int unit = 2 * k + lane / 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         shared_address(mine + 128 * row + ((unit ^ (row & 7)) << 4))),
                     "r"(packed[k][0]), "r"(packed[k][1]), "r"(packed[k][2]), "r"(packed[k][3])
                     : "memory");
    }
    fence_async();
    __syncwarp();
    if (lane == 0) {
        tensor_store(&out, mine, 64 * static_cast<int>(blockIdx.x), 64 * static_cast<int>(blockIdx.y) + 16 * warp);
        commit_stores();
        wait_stores<0>();
    }
}

// A pair of blocks shares B: each loads half of its rows for both. Each has rows of A of its own.
extern "C" __global__ void __launch_bounds__(160) shared_b(float *out, const __grid_constant__ TensorMap a,
                                                           const __grid_constant__ TensorMap half_b, int blocks) {
    __shared__ __align__(1024) unsigned char tile_a[2][TILE_BYTES], tile_b[2][TILE_BYTES];
    __shared__ uint64_t full[2], empty[2];
    const int rank = static_cast<int>(cluster_rank());
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            init(&full[i], 1);
            init(&empty[i], 8);  // four warps here, four there
        }
        fence_init();
    }
    cluster_sync();
    if (threadIdx.x >= 128) {
        if (elect_one()) {
            for (int k = 0; k < blocks; ++k) {
                wait_cluster(&empty[k % 2], k / 2 % 2 ^ 1);
                arrive_expect(&full[k % 2], 2 * TILE_BYTES);
                tensor_load(tile_a[k % 2], &a, &full[k % 2], 64 * k, 64 * static_cast<int>(blockIdx.x));
                tensor_load_multicast(tile_b[k % 2] + rank * TILE_BYTES / 2, &half_b, &full[k % 2], 64 * k, 32 * rank,
                                      3);
            }
        }
        __syncwarp();
    } else {
        float d[32] = {};
        pin(d);
#pragma unroll 1
        for (int k = 0; k < blocks; ++k) {
            wait(&full[k % 2], k / 2 % 2);
            fence_registers();
            multiply(d, tile_a[k % 2], tile_b[k % 2], true);
            commit_products();
            wait_products<0>();
            pin(d);
            __syncwarp();
            if (threadIdx.x % 32 < 2) {
                arrive_remote(in_block(&empty[k % 2], threadIdx.x % 32));
            }
        }
        write_tile(out + blockIdx.x * 64 * 64, d);
    }
    cluster_sync();
}

struct Attention {
    unsigned char q[2][TILE_BYTES], k[2][TILE_BYTES], v[2][TILE_BYTES];
    uint64_t full_q, full_k[2], full_v[2], empty_k[2], empty_v[2];
};

__device__ inline float largest_of_row(const float (&s)[32], int half) {
    float top = s[2 * half];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        if (i / 2 % 2 == half) {
            top = fmaxf(top, s[i]);
        }
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
    return fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
}

// Attention of 128 queries, d = 64: producer warp, two consumer warpgroups that take turns to issue their products.
extern "C" __global__ void __launch_bounds__(384, 1) attention(float *out, const __grid_constant__ TensorMap q,
                                                               const __grid_constant__ TensorMap k,
                                                               const __grid_constant__ TensorMap v, int blocks,
                                                               float scale) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Attention &at = *reinterpret_cast<Attention *>(memory);
    if (threadIdx.x == 0) {
        init(&at.full_q, 1);
        for (int i = 0; i < 2; ++i) {
            init(&at.full_k[i], 1);
            init(&at.full_v[i], 1);
            init(&at.empty_k[i], 8);
            init(&at.empty_v[i], 8);
        }
        fence_init();
    }
    __syncthreads();
    const int group = static_cast<int>(threadIdx.x) / 128 - 1;
    if (group < 0) {
        fewer_registers<40>();
        if (threadIdx.x == 0) {
            arrive_expect(&at.full_q, 2 * TILE_BYTES);
            tensor_load(at.q[0], &q, &at.full_q, 0, 0);
            tensor_load(at.q[1], &q, &at.full_q, 0, 64);
            for (int i = 0; i < blocks; ++i) {
                wait(&at.empty_k[i % 2], i / 2 % 2 ^ 1);
                arrive_expect(&at.full_k[i % 2], TILE_BYTES);
                tensor_load(at.k[i % 2], &k, &at.full_k[i % 2], 0, 64 * i);
                wait(&at.empty_v[i % 2], i / 2 % 2 ^ 1);
                arrive_expect(&at.full_v[i % 2], TILE_BYTES);
                tensor_load(at.v[i % 2], &v, &at.full_v[i % 2], 0, 64 * i);
            }
        }
        return;
    }
    more_registers<232>();
    float o[32] = {}, top[2] = {-1e30f, -1e30f}, sum[2] = {};
    pin(o);
    wait(&at.full_q, 0);
    if (group == 1) {
        barrier_arrive(1, 256);
    }
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
        float s[32] = {};
        wait(&at.full_k[i % 2], i / 2 % 2);
        barrier_sync(1 + group, 256);
        pin(s);
        fence_registers();
        multiply(s, at.q[group], at.k[i % 2], false);
        commit_products();
        if (i < blocks - 1 || group == 0) {
            barrier_arrive(2 - group, 256);
        }
        wait_products<0>();
        pin(s);
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            arrive(&at.empty_k[i % 2]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float larger = fmaxf(top[half], scale * largest_of_row(s, half));
            const float factor = exp2f(top[half] - larger);
            top[half] = larger;
            sum[half] *= factor;
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                if (j / 2 % 2 == half) {
                    o[j] *= factor;
                    s[j] = exp2f(scale * s[j] - larger);
                    sum[half] += s[j];
                }
            }
        }
        uint32_t p[4][4];
        as_operand(p, s);
        for (int j = 0; j < 4; ++j) {
            pin(p[j]);
        }
        wait(&at.full_v[i % 2], i / 2 % 2);
        pin(o);
        fence_registers();
        multiply_across(o, p, at.v[i % 2], true);
        commit_products();
        wait_products<0>();
        pin(o);
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            arrive(&at.empty_v[i % 2]);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
    }
#pragma unroll
    for (int j = 0; j < 32; ++j) {
        o[j] /= sum[j / 2 % 2];
    }
    write_tile(out + group * 64 * 64, o);
}
