// What it is: kernels that use warp-wide instructions without the whole warp, or at an address that they cannot take.
// Why: a GPU gives some value, or hangs, or stops without naming a line.
// FIXED = true is the same kernel done right. Run: pytest tests/broken

#include "instructions.cuh"
#include "pair.cuh"

// The mask names all lanes, half of them are not there.
template <bool FIXED>
__global__ void absent_lanes(int *out) {
    const int i = threadIdx.x;
    int sum = i;
    if (i % 32 < 16) {
        sum += __shfl_xor_sync(FIXED ? 0x0000ffff : 0xffffffff, sum, 8);  // BROKEN absent_lanes
    }
    out[i] = sum;
}
PAIR(absent_lanes);

// Rows of ten 16-bit elements: every second row begins at an odd multiple of four bytes.
template <bool FIXED>
__global__ void misaligned_row(unsigned *out) {
    constexpr int PITCH = FIXED ? 16 : 10;  // elements of 2 bytes
    __shared__ __align__(16) unsigned short tile[8 * PITCH];
    const int i = threadIdx.x;
    for (int k = i; k < 8 * PITCH; k += 32) {
        tile[k] = k / PITCH;
    }
    __syncthreads();
    out[i] = load_matrix(&tile[i % 8 * PITCH]);  // BROKEN misaligned_row
}
PAIR(misaligned_row);

// ldmatrix is .aligned: all 32 lanes execute it, though only eight of them name rows.
template <bool FIXED>
__global__ void matrix_in_a_branch(unsigned *out) {
    __shared__ __align__(16) unsigned short tile[64];
    const int i = threadIdx.x;
    tile[i] = tile[i + 32] = i;
    __syncwarp();
    unsigned value = 0;
    if (FIXED || i < 8) {
        value = load_matrix(&tile[i % 8 * 8]);  // BROKEN matrix_in_a_branch
    }
    out[i] = value;
}
PAIR(matrix_in_a_branch);
