// What it is: kernels whose threads do not all come to a barrier.
// Why: a GPU hangs, or goes on by the rules of one architecture, and either way the program has no meaning.
// FIXED = true is the same kernel done right. Run: pytest tests/broken

#include "instructions.cuh"
#include "pair.cuh"

// The barrier stands inside a branch that half of the warp takes.
template <bool FIXED>
__global__ void barrier_in_a_branch(float *out, const float *in) {
    __shared__ float tile[16];
    const int i = threadIdx.x;
    if (i < 16) {
        tile[i] = in[i];
        if (!FIXED) {
            __syncthreads();  // BROKEN barrier_in_a_branch
        }
    }
    if (FIXED) {
        __syncthreads();
    }
    out[i] = tile[i % 16];
}
PAIR(barrier_in_a_branch);

// Threads without an element leave early: part of a warp, or whole warps, depending on n.
template <bool FIXED>
__global__ void exit_before_barrier(float *out, const float *in, int n) {
    __shared__ float tile[64];
    const int i = threadIdx.x;
    if (!FIXED && i >= n) {
        return;
    }
    if (i < n) {
        tile[i] = in[i];
    }
    __syncthreads();  // BROKEN exit_before_barrier
    if (i < n) {
        out[i] = tile[n - 1 - i];
    }
}
PAIR(exit_before_barrier);

// Each warp waits at a barrier of its own for 64 threads.
template <bool FIXED>
__global__ void two_barriers(int *out) {
    __shared__ int tile[64];
    const int i = threadIdx.x;
    tile[i] = i;
    named_barrier(FIXED ? 1 : 1 + i / 32, 64);  // BROKEN two_barriers
    out[i] = tile[63 - i];
}
PAIR(two_barriers);

// The barrier counts on 96 threads in a block of 64.
template <bool FIXED>
__global__ void too_few_threads(int *out, int threads) {
    __shared__ int tile[64];
    const int i = threadIdx.x;
    tile[i] = i;
    named_barrier(2, FIXED ? blockDim.x : threads);  // BROKEN too_few_threads
    out[i] = tile[63 - i];
}
PAIR(too_few_threads);

// Warp w makes w + 1 rounds, each with a barrier: the last warp's last barrier is its own.
template <bool FIXED>
__global__ void unequal_rounds(int *out) {
    const int warp = threadIdx.x / 32;
    const int rounds = FIXED ? blockDim.x / 32 : warp + 1;
    int sum = 0;
#pragma unroll 1
    for (int k = 0; k < rounds; ++k) {
        sum += k;
        __syncthreads();  // BROKEN unequal_rounds
    }
    out[threadIdx.x] = sum;
}
PAIR(unequal_rounds);
