// What it is: kernels that never end.
// Why: a GPU hangs until a watchdog ends it. Here an error ends it, and names a line of the loop.
// FIXED = true is the same kernel done right. Run: pytest tests/broken

#include "pair.cuh"

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
