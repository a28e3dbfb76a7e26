// What it is: bulk copies and tensor copies without what makes them safe: fences, waits, alignment, a map.
// Why: the async proxy reads late and writes late; here it does so as late as the program allows.
// BROKEN marks the instruction that is reported. FIXED = true is the same kernel done right.
// Run: pytest tests/broken/hopper

#include "../../../../emulator/tests/hopper_programs/kernels/copies.cuh"
#include "../../kernels/pair.cuh"

template <bool FIXED>
__global__ void no_proxy_fence(float *out) {
    __shared__ __align__(128) float tile[64];
    tile[threadIdx.x] = threadIdx.x;
    if (FIXED) {
        fence_async();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out, tile, sizeof tile);  // BROKEN no_proxy_fence
        commit_stores();
        wait_stores<0>();
    }
}
PAIR(no_proxy_fence);

template <bool FIXED>
__global__ void no_barrier_after_fence(float *out) {
    __shared__ __align__(128) float tile[64];
    tile[threadIdx.x] = threadIdx.x;
    fence_async();
    if (FIXED) {
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        bulk_store(out, tile, sizeof tile);  // BROKEN no_barrier_after_fence
        commit_stores();
        wait_stores<0>();
    }
}
PAIR(no_barrier_after_fence);

template <bool FIXED>
__global__ void source_overwritten(float *out, int rounds) {
    __shared__ __align__(128) float tile[64];
    for (int i = 0; i < rounds; ++i) {
        tile[threadIdx.x] = 100 * i + threadIdx.x;  // BROKEN source_overwritten
        fence_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_store(out + 64 * i, tile, sizeof tile);
            commit_stores();
            if (FIXED) {
                wait_reads<0>();
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        wait_stores<0>();
    }
}
PAIR(source_overwritten);

template <bool FIXED>
__global__ void one_group_too_many(float *out, int rounds) {
    __shared__ __align__(128) float tile[2][64];
    for (int i = 0; i < rounds; ++i) {
        if (threadIdx.x == 0) {
            if (FIXED) {
                wait_reads<1>();
            } else {
                wait_reads<2>();  // of two buffers
            }
        }
        __syncthreads();
        tile[i % 2][threadIdx.x] = 100 * i + threadIdx.x;  // BROKEN one_group_too_many
        fence_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_store(out + 64 * i, tile[i % 2], sizeof tile[0]);
            commit_stores();
        }
    }
    if (threadIdx.x == 0) {
        wait_stores<0>();
    }
}
PAIR(one_group_too_many);

// The block's memory is gone before the copy has read it.
template <bool FIXED>
__global__ void exits_before_reading(float *out) {
    __shared__ __align__(128) float tile[64];
    tile[threadIdx.x] = threadIdx.x;
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out, tile, sizeof tile);  // BROKEN exits_before_reading
        commit_stores();
        if (FIXED) {
            wait_stores<0>();
        }
    }
}
PAIR(exits_before_reading);

template <bool FIXED>
__global__ void read_before_it_landed(float *out, const float *in) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t full;
    tile[threadIdx.x] = -1;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        arrive_expect(&full, sizeof tile);
        bulk_load(tile, in, sizeof tile, &full);
    }
    if (FIXED) {
        wait(&full, 0);
    }
    out[threadIdx.x] = tile[63 - threadIdx.x];  // BROKEN read_before_it_landed
    wait(&full, 0);
}
PAIR(read_before_it_landed);

template <bool FIXED>
__global__ void misaligned_tile(float *out, const float *in) {
    __shared__ __align__(128) float tile[72];
    __shared__ uint64_t full;
    float *begin = tile + (FIXED ? 4 : 2);
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, 256);
        bulk_load(begin, in, 256, &full);  // BROKEN misaligned_tile
    }
    __syncthreads();
    wait(&full, 0);
    out[threadIdx.x] = begin[threadIdx.x];
}
PAIR(misaligned_tile);

template <bool FIXED>
__global__ void odd_size(float *out, const float *in) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t full;
    const int bytes = FIXED ? 256 : 250;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, bytes);
        bulk_load(tile, in, bytes, &full);  // BROKEN odd_size
    }
    __syncthreads();
    wait(&full, 0);
    out[threadIdx.x] = tile[threadIdx.x];
}
PAIR(odd_size);

// 128 bytes of numbers in the place of a map.
template <bool FIXED>
__global__ void no_map(float *out, const __grid_constant__ TensorMap map, const TensorMap *other) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, sizeof tile);
        tensor_load(tile, FIXED ? &map : other, &full, 0);  // BROKEN no_map
    }
    __syncthreads();
    wait(&full, 0);
    out[threadIdx.x] = tile[threadIdx.x];
}
PAIR(no_map);

template <bool FIXED>
__global__ void another_rank(float *out, const __grid_constant__ TensorMap map) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, sizeof tile);
        if (FIXED) {
            tensor_load(tile, &map, &full, 0);
        } else {
            tensor_load(tile, &map, &full, 0, 0);  // BROKEN another_rank
        }
    }
    __syncthreads();
    wait(&full, 0);
    out[threadIdx.x] = tile[threadIdx.x];
}
PAIR(another_rank);

// A tile with 128-byte swizzle begins where the pattern does not.
template <bool FIXED>
__global__ void swizzle_misplaced(float *out, const __grid_constant__ TensorMap map) {
    __shared__ __align__(1024) float tile[32 * 12];
    __shared__ uint64_t full;
    float *begin = tile + (FIXED ? 0 : 32);
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, 1024);
        tensor_load(begin, &map, &full, 0, 0);  // BROKEN swizzle_misplaced
    }
    __syncthreads();
    wait(&full, 0);
    const int row = threadIdx.x / 8, unit = threadIdx.x % 8;
    out[threadIdx.x] = begin[32 * row + 4 * (unit ^ row)];
}
PAIR(swizzle_misplaced);

// Two blocks store boxes that share a row.
template <bool FIXED>
__global__ void overlapping_stores(const __grid_constant__ TensorMap map) {
    __shared__ __align__(128) float tile[64];
    tile[threadIdx.x] = 100 * (blockIdx.x + 1) + threadIdx.x;
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        tensor_store(&map, tile, 0, (FIXED ? 4 : 3) * static_cast<int>(blockIdx.x));  // BROKEN overlapping_stores
        commit_stores();
        wait_stores<0>();
    }
}
PAIR(overlapping_stores);
