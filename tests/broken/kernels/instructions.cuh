#pragma once

// What it is: the PTX instructions that the broken kernels need and CUDA C++ has no plain words for.

__device__ inline unsigned shared_address(const void *pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes from global to shared memory, asynchronously.
__device__ inline void copy_async(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}

__device__ inline void commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most N of the thread's latest groups are in flight.
template <int N>
__device__ inline void wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// One 8x8 matrix of 16-bit elements; lane i (of the first eight) names row i.
__device__ inline unsigned load_matrix(const void *row) {
    unsigned value;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(value) : "r"(shared_address(row)));
    return value;
}

// d += the number of differing bits of 8 x 128 and 128 x 8 matrices of single bits.
__device__ inline void multiply_bits(int &d0, int &d1, unsigned a, unsigned b) {
    asm volatile("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(d0), "+r"(d1)
                 : "r"(a), "r"(b));
}
