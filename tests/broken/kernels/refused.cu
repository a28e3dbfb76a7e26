// What it is: kernels that end themselves, or that hold what the emulator does not know.
// Why: nothing is skipped silently; the message names the instruction and says what to do.
// FIXED = true is the same kernel done right. Run: pytest tests/broken

#include <cassert>
#include <cstdio>

#include "instructions.cuh"
#include "pair.cuh"

// Recursion: the emulator copies the functions that a kernel calls into it, which a function that calls itself
// prevents.
__device__ __noinline__ int fibonacci(int n) {
    if (n < 2) {
        return n;
    }
    return fibonacci(n - 1) + fibonacci(n - 2);  // BROKEN recurses
}
__device__ __noinline__ int fibonacci_loop(int n) {
    int a = 0, b = 1;
    for (int k = 0; k < n; ++k) {
        const int c = a + b;
        a = b;
        b = c;
    }
    return a;
}
template <bool FIXED>
__global__ void recurses(int *out) {
    out[threadIdx.x] = FIXED ? fibonacci_loop(threadIdx.x) : fibonacci(threadIdx.x);
}
PAIR(recurses);

// printf is a call of vprintf.
template <bool FIXED>
__global__ void prints(int *out) {
    const int i = threadIdx.x;
    if (!FIXED) {
        printf("thread %d\n", i);  // BROKEN prints
    }
    out[i] = i;
}
PAIR(prints);

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

// A thread finds something impossible and stops the grid.
template <bool FIXED>
__global__ void traps(int *out, int n) {
    const int i = threadIdx.x;
    if (!FIXED && i >= n) {
        __trap();  // BROKEN traps
    }
    out[i] = i;
}
PAIR(traps);

// An assertion that does not hold for the last threads.
template <bool FIXED>
__global__ void asserts(int *out, int n) {
    const int i = threadIdx.x;
    assert(FIXED || i < n);  // BROKEN asserts
    out[i] = i;
}
PAIR(asserts);
