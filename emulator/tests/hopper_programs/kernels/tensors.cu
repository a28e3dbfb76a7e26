// What it is: copies of boxes of tensors (TMA): one to five axes, swizzles, edges, stores, reductions.
// Why: where an element lands is the map's business and the hardware's; an image of shared memory shows all of it.
// Run: pytest tests/nvcc/test_hopper_programs.py -k tensors

#include "copies.cuh"

// Loads one box and writes its image in shared memory, `bytes` long.
#define LOAD(NAME, ...)                                                                                                \
    extern "C" __global__ void NAME(uint4 *out, const __grid_constant__ TensorMap map, int bytes, int x, int y, int z, \
                                    int w, int v) {                                                                    \
        __shared__ __align__(1024) uint4 tile[2048];                                                                   \
        __shared__ uint64_t full;                                                                                      \
        if (threadIdx.x == 0) {                                                                                        \
            init(&full, 1);                                                                                            \
            fence_init();                                                                                              \
            arrive_expect(&full, bytes);                                                                               \
            tensor_load(tile, &map, &full, __VA_ARGS__);                                                               \
        }                                                                                                              \
        __syncthreads();                                                                                               \
        wait(&full, 0);                                                                                                \
        for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) {                                                   \
            out[i] = tile[i];                                                                                          \
        }                                                                                                              \
    }

LOAD(load_1d, x)
LOAD(load_2d, x, y)
LOAD(load_3d, x, y, z)
LOAD(load_4d, x, y, z, w)
LOAD(load_5d, x, y, z, w, v)

// The same over a tile that was written before: what the copy leaves alone shows.
extern "C" __global__ void load_2d_over(uint4 *out, const __grid_constant__ TensorMap map, int bytes, int x, int y) {
    __shared__ __align__(1024) uint4 tile[2048];
    __shared__ uint64_t full;
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) {
        tile[i] = make_uint4(i, i, i, i);
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, bytes);
        tensor_load(tile, &map, &full, x, y);
    }
    __syncthreads();
    wait(&full, 0);
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) {
        out[i] = tile[i];
    }
}

// Each block fills shared memory with an image and stores it as a box; blocks step through the tensor.
extern "C" __global__ void store_2d(const __grid_constant__ TensorMap map, const uint4 *image, int bytes, int x, int y,
                                    int step) {
    __shared__ __align__(1024) uint4 tile[2048];
    for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
        tile[i] = image[i];
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        tensor_store(&map, tile, x, y + step * static_cast<int>(blockIdx.x));
        commit_stores();
        wait_stores<0>();
    }
}

extern "C" __global__ void store_3d(const __grid_constant__ TensorMap map, const uint4 *image, int bytes) {
    __shared__ __align__(1024) uint4 tile[2048];
    for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
        tile[i] = image[i];
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        tensor_store(&map, tile, 0, 2, static_cast<int>(blockIdx.x));
        commit_stores();
        wait_stores<0>();
    }
}

// All blocks combine their images with the same box.
#define REDUCTION(NAME, OP)                                                                                      \
    extern "C" __global__ void NAME(const __grid_constant__ TensorMap map, const uint4 *image, int bytes, int x, \
                                    int y) {                                                                     \
        __shared__ __align__(1024) uint4 tile[2048];                                                             \
        for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) {                                             \
            tile[i] = image[blockIdx.x * bytes / 16 + i];                                                        \
        }                                                                                                        \
        fence_async();                                                                                           \
        __syncthreads();                                                                                         \
        if (threadIdx.x == 0) {                                                                                  \
            TENSOR_REDUCE(OP, &map, tile, x, y);                                                                 \
            commit_stores();                                                                                     \
            wait_stores<0>();                                                                                    \
        }                                                                                                        \
    }

REDUCTION(add_2d, "add")
REDUCTION(max_2d, "max")
REDUCTION(xor_2d, "xor")

// Moves a matrix tile by tile from one tensor to another, tiles mirrored; two boxes are in flight at a time.
extern "C" __global__ void mirror(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to,
                                  int wide, int high) {
    __shared__ __align__(128) unsigned char tile[2][32 * 16 * 2];
    __shared__ uint64_t full[2];
    if (threadIdx.x != 0) {
        return;
    }
    init(&full[0], 1);
    init(&full[1], 1);
    fence_init();
    for (int i = 0; i < wide * high; ++i) {
        const int x = i % wide, y = i / wide;
        wait_reads<1>();
        arrive_expect(&full[i % 2], sizeof tile[0]);
        tensor_load(tile[i % 2], &from, &full[i % 2], 32 * x, 16 * y);
        wait(&full[i % 2], i / 2 % 2);
        tensor_store(&to, tile[i % 2], 32 * (wide - 1 - x), 16 * (high - 1 - y));
        commit_stores();
    }
    wait_stores<0>();
}

// Four boxes, one beside the other, on one barrier: the map is prefetched, the boxes too.
extern "C" __global__ void four_boxes(uint4 *out, const __grid_constant__ TensorMap map) {
    __shared__ __align__(1024) uint4 tile[4][64];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
        asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(0), "r"(0)
                     : "memory");
        init(&full, 1);
        fence_init();
        for (int i = 0; i < 4; ++i) {
            expect(&full, sizeof tile[0]);
            tensor_load(tile[i], &map, &full, 32 * i, 8 * i);
        }
        arrive(&full);
    }
    __syncthreads();
    wait(&full, 0);
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        out[i] = tile[i / 64][i % 64];
    }
}
