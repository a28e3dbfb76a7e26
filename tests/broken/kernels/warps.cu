// What it is: kernels whose threads miss each other, never end, or execute what the emulator does not know.
// The line marked BROKEN is the one that the emulator names.
// FIXED = true is the same kernel done right. Run: pytest tests/broken

#include "instructions.cuh"
#include "pair.cuh"

// Kernels that use warp-wide instructions without the whole warp, or at an address that they cannot take.
// A GPU gives some value, or hangs, or stops without naming a line.

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

// Kernels whose threads do not all come to a barrier.
// A GPU hangs, or goes on by the rules of one architecture, and either way the program has no meaning.

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

// Kernels that never end.
// A GPU hangs until a watchdog ends it. Here an error ends it, and names a line of the loop.

// Integer division makes the stride 0 in a block of 32 threads.
template <bool FIXED>
__global__ void stride_of_zero(int *out, int n) {
    const int stride = FIXED ? blockDim.x : blockDim.x / 64;
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += stride) {  // BROKEN stride_of_zero
        out[i] = i;                                  // BROKEN stride_of_zero
    }
}
PAIR(stride_of_zero);

// Block 1 waits for a flag of block 0, which waits for block 1's: neither may assume that the other runs first.
template <bool FIXED>
__global__ void spin_on_a_flag(int *out, volatile int *flags) {
    const int me = blockIdx.x;
    if (FIXED) {
        flags[me] = 1;
    }
    if (!FIXED) {
        while (flags[1 - me] == 0) {  // BROKEN spin_on_a_flag
        }
    }
    flags[me] = 1;
    out[me * blockDim.x + threadIdx.x] = me;
}
PAIR(spin_on_a_flag);

// A kernel with an unsupported instruction. emulator/tests/nvcc/test_cuda.py covers calls, recursion and assert.

// A product of single bits on the tensor cores, which the emulator does not have; the twin counts bits.
template <bool FIXED>
__global__ void binary_mma(int *out) {
    int d0 = 0, d1 = 0;
    const unsigned a = 0x0000ffff, b = 0xffffffff;
    if (FIXED) {
        for (int k = 0; k < 4; ++k) {
            d0 += __popc(a ^ b);
        }
    } else {
        multiply_bits(d0, d1, a, b);  // BROKEN binary_mma
    }
    out[threadIdx.x] = d0;
}
PAIR(binary_mma);
