// What it is: kernels that take instructions at which the lanes of a warp meet for fences between their accesses.
// Why: shfl, vote and ldmatrix make lanes wait for each other and order no memory; only __syncwarp (bar.warp.sync) and
// barriers do. BROKEN marks the access that comes second, FIRST the one before it. FIXED = true is the same kernel done
// right. Run: pytest tests/broken

#include "instructions.cuh"
#include "pair.cuh"

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

// A vote in the same place: all lanes have found something, which says nothing about where they left it.
template <bool FIXED>
__global__ void vote_as_fence(float *out, const float *in) {
    __shared__ float tile[32];
    const int i = threadIdx.x;
    const float mine = in[i];
    tile[i] = mine;  // FIRST vote_as_fence
    const int found = __popc(__ballot_sync(ALL, mine >= 0));
    if (FIXED) {
        __syncwarp();
    }
    out[i] = tile[i ^ 1] + found;  // BROKEN vote_as_fence
}
PAIR(vote_as_fence);

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
