// What it is: kernels in which nothing orders two accesses of the same byte.
// BROKEN marks the access that comes second, FIRST the one before it.
// FIXED = true is the same kernel done right. Run: pytest tests/broken

#include "instructions.cuh"
#include "pair.cuh"

// Kernels in which nothing orders two threads that touch the same byte of shared memory.
// A GPU usually gives the right numbers, so does the emulator's order of execution; the race detector does not
// care. BROKEN marks the access that comes second, FIRST the one before it.

// Read after write: no barrier between the store and another warp's load.
template <bool FIXED>
__global__ void read_too_early(float *out, const float *in) {
    __shared__ float tile[64];
    const int i = threadIdx.x;
    tile[i] = in[i];  // FIRST read_too_early
    if (FIXED) {
        __syncthreads();
    }
    out[i] = tile[63 - i];  // BROKEN read_too_early
}
PAIR(read_too_early);

// Write after read: the next tile overwrites the one that others may still read.
template <bool FIXED>
__global__ void overwritten_too_early(float *out, const float *in, int tiles) {
    __shared__ float tile[64];
    const int i = threadIdx.x;
    float sum = 0;
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
        tile[i] = in[64 * t + i];  // BROKEN overwritten_too_early
        __syncthreads();
        sum += tile[63 - i];  // FIRST overwritten_too_early
        if (FIXED) {
            __syncthreads();
        }
    }
    out[i] = sum;
}
PAIR(overwritten_too_early);

// Write after write: both warps leave their sum in the same element.
template <bool FIXED>
__global__ void two_writers(int *out) {
    __shared__ int last[2];
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
        last[FIXED ? warp : 0] = 10 + warp;  // BROKEN two_writers, FIRST two_writers
    }
    __syncthreads();
    out[threadIdx.x] = last[FIXED ? 1 : 0];
}
PAIR(two_writers);

// Lanes of one warp exchange values through shared memory without __syncwarp: since Volta they need not run together.
template <bool FIXED>
__global__ void no_syncwarp(float *out, const float *in) {
    __shared__ float tile[32];
    const int i = threadIdx.x;
    tile[i] = in[i];  // FIRST no_syncwarp
    if (FIXED) {
        __syncwarp();
    }
    out[i] = tile[i ^ 1];  // BROKEN no_syncwarp
}
PAIR(no_syncwarp);

// All lanes store to one element: which of them wins is not defined.
template <bool FIXED>
__global__ void lanes_collide(int *out, const int *in) {
    __shared__ int found;
    const int i = threadIdx.x;
    if (FIXED ? in[i] == 3 : in[i] >= 3) {
        found = i;  // BROKEN lanes_collide, FIRST lanes_collide
    }
    __syncthreads();
    out[i] = found;
}
PAIR(lanes_collide);

// Kernels that take instructions at which the lanes of a warp meet for fences between their accesses.
// Shfl, vote and ldmatrix make lanes wait for each other and order no memory; only __syncwarp (bar.warp.sync) and
// barriers do. BROKEN marks the access that comes second, FIRST the one before it.

constexpr unsigned ALL = 0xffffffff;

// A shuffle between the store and the neighbour's load.
template <bool FIXED>
__global__ void shuffle_as_fence(float *out, const float *in) {
    __shared__ float tile[32];
    const int i = threadIdx.x;
    const float mine = in[i];
    tile[i] = mine;  // FIRST shuffle_as_fence
    const float theirs = __shfl_xor_sync(ALL, mine, 1);
    if (FIXED) {
        __syncwarp();
    }
    out[i] = tile[i ^ 1] + theirs;  // BROKEN shuffle_as_fence
}
PAIR(shuffle_as_fence);

// ldmatrix reads rows of which other lanes wrote a part.
template <bool FIXED>
__global__ void matrix_of_others(unsigned *out, const unsigned *in) {
    __shared__ __align__(16) unsigned tile[32];
    const int i = threadIdx.x;
    tile[i] = in[i];  // FIRST matrix_of_others
    if (FIXED) {
        __syncwarp();
    }
    out[i] = load_matrix(&tile[i % 8 * 4]);  // BROKEN matrix_of_others
}
PAIR(matrix_of_others);

// The next matrix is written over one that other lanes have only just asked for.
template <bool FIXED>
__global__ void matrix_overwritten(unsigned *out, const unsigned *in) {
    __shared__ __align__(16) unsigned tile[32];
    const int i = threadIdx.x;
    tile[i] = in[i];
    __syncwarp();
    const unsigned first = load_matrix(&tile[i % 8 * 4]);  // FIRST matrix_overwritten
    if (FIXED) {
        __syncwarp();
    }
    tile[i] = first + 1;  // BROKEN matrix_overwritten
    __syncwarp();
    out[i] = load_matrix(&tile[i % 8 * 4]);
}
PAIR(matrix_overwritten);

// Kernels that use asynchronous copies without what makes them safe.
// On a GPU a copy has usually landed long before anybody looks; here it lands as late as the program allows.

// Nobody waits: the barrier orders threads, not copies. Nothing was in the tile before.
template <bool FIXED>
__global__ void no_wait(float *out, const float *in) {
    __shared__ __align__(16) float tile[256];
    const int i = threadIdx.x;
    copy_async(&tile[4 * i], &in[4 * i]);
    commit();
    if (FIXED) {
        wait_group<0>();
    }
    __syncthreads();
    out[i] = tile[255 - i];  // BROKEN no_wait
}
PAIR(no_wait);

// The same with an old value in the tile: the numbers are those of before the copy.
template <bool FIXED>
__global__ void stale_tile(float *out, const float *in) {
    __shared__ __align__(16) float tile[256];
    const int i = threadIdx.x;
    for (int k = 0; k < 4; ++k) {
        tile[64 * k + i] = 0;
    }
    __syncthreads();
    copy_async(&tile[4 * i], &in[4 * i]);  // FIRST stale_tile
    commit();
    if (FIXED) {
        wait_group<0>();
    } else {
        wait_group<1>();  // one group may stay in flight, and it is this one
    }
    __syncthreads();
    out[i] = tile[255 - i];  // BROKEN stale_tile
}
PAIR(stale_tile);

// Each thread waits for its own copies, and then reads another thread's: a barrier is missing.
template <bool FIXED>
__global__ void wait_without_barrier(float *out, const float *in) {
    __shared__ __align__(16) float tile[256];
    const int i = threadIdx.x;
    copy_async(&tile[4 * i], &in[4 * i]);  // FIRST wait_without_barrier
    commit();
    wait_group<0>();
    if (FIXED) {
        __syncthreads();
    }
    out[i] = tile[255 - i];  // BROKEN wait_without_barrier
}
PAIR(wait_without_barrier);

// The copy of the next tile begins while other warps may still read this one.
template <bool FIXED>
__global__ void prefetch_too_early(float *out, const float *in, int tiles) {
    __shared__ __align__(16) float tile[256];
    const int i = threadIdx.x;
    float sum = 0;
    copy_async(&tile[4 * i], &in[4 * i]);
    commit();
#pragma unroll 1
    for (int t = 1; t <= tiles; ++t) {
        wait_group<0>();
        __syncthreads();
        sum += tile[255 - i];  // FIRST prefetch_too_early
        if (FIXED) {
            __syncthreads();
        }
        if (t < tiles) {
            copy_async(&tile[4 * i], &in[256 * t + 4 * i]);  // BROKEN prefetch_too_early
        }
        commit();
    }
    out[i] = sum;
}
PAIR(prefetch_too_early);

// Kernels whose blocks touch the same bytes of global memory.
// Blocks run in any order, and together: what one writes no other may touch without atomics.

// Every block adds to one element: a lost update.
template <bool FIXED>
__global__ void lost_update(int *out) {
    if (threadIdx.x == 0) {
        if (FIXED) {
            atomicAdd(out, 1 + blockIdx.x);
        } else {
            out[0] = 1 + blockIdx.x;  // BROKEN lost_update, FIRST lost_update
        }
    }
}
PAIR(lost_update);

// A block reads its neighbour's result of the same launch.
template <bool FIXED>
__global__ void neighbours_result(int *out, int *partial) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int n = gridDim.x * blockDim.x;
    partial[i] = 2 * i;  // FIRST neighbours_result
    const int other = (i + blockDim.x) % n;
    out[i] = FIXED ? 2 * other : partial[other];  // BROKEN neighbours_result
}
PAIR(neighbours_result);
