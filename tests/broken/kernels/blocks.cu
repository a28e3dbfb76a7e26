// What it is: kernels whose blocks touch the same bytes of global memory.
// Why: blocks run in any order, and together: what one writes no other may touch without atomics.
// BROKEN marks the access that comes second, FIRST the one before it. FIXED = true is the same kernel done right.
// Run: pytest tests/broken

#include "pair.cuh"

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
