// What it is: kernels in which nothing orders two threads that touch the same byte of shared memory.
// Why: a GPU usually gives the right numbers, so does the emulator's order of execution; the race detector does not
// care. BROKEN marks the access that comes second, FIRST the one before it. FIXED = true is the same kernel done right.
// Run: pytest tests/broken

#include "pair.cuh"

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
