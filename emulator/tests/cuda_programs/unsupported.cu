// Ordinary CUDA that the emulator refuses: each kernel must end in one clear error, never in a wrong number.
// What each of them says is in test_cuda.py.
#include <mma.h>
#include <cstdio>

extern "C" __global__ void prints(int *out) {
    printf("thread %d\n", threadIdx.x);
    out[threadIdx.x] = 1;
}

__device__ __noinline__ int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

extern "C" __global__ void recursion(int *out) {
    out[threadIdx.x] = fibonacci(threadIdx.x);
}

extern "C" __global__ void allocates(int *out) {
    int *own = static_cast<int *>(malloc(4));
    out[threadIdx.x] = own != nullptr;
}

extern "C" __global__ void wmma_product(const half *a, const half *b, float *c) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, half, row_major> left;
    fragment<matrix_b, 16, 16, 16, half, row_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    load_matrix_sync(left, a, 16);
    load_matrix_sync(right, b, 16);
    mma_sync(sum, left, right, sum);
    store_matrix_sync(c, sum, 16, mem_row_major);
}
