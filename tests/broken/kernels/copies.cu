// What it is: kernels that use asynchronous copies without what makes them safe.
// Why: on a GPU a copy has usually landed long before anybody looks; here it lands as late as the program allows.
// BROKEN marks the access that comes second, FIRST the one before it. FIXED = true is the same kernel done right.
// Run: pytest tests/broken

#include "instructions.cuh"
#include "pair.cuh"

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
