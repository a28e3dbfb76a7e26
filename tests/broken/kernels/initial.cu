// What it is: kernels that read what nobody wrote.
// Why: a GPU returns what an earlier kernel left there, often the right numbers of the previous launch.
// FIXED = true is the same kernel done right. Run: pytest tests/broken

#include "pair.cuh"

// Half of the tile is filled, all of it is read.
template <bool FIXED>
__global__ void half_filled_tile(float *out, const float *in) {
    __shared__ float tile[64];
    const int i = threadIdx.x;
    if (FIXED || i < 32) {
        tile[i] = in[i];
    }
    __syncthreads();
    out[i] = tile[63 - i];  // BROKEN half_filled_tile
}
PAIR(half_filled_tile);

// A thread's own array, of which `n` elements are set. No error: the others read as all bits set, -1 or NaN.
template <bool FIXED>
__global__ void local_hole(int *out, const int *pick, int n) {
    int table[8];
#pragma unroll 1
    for (int k = 0; k < (FIXED ? 8 : n); ++k) {
        table[k] = 100 + k;
    }
    out[threadIdx.x] = table[pick[threadIdx.x] & 7];  // BROKEN local_hole
}
PAIR(local_hole);
