// What: the smallest kernel with everything the readers of machine code must tell apart: a loop without HMMA, the main
// loop with HMMA, shared memory of both kinds, a predicated exit. Why: test data whose counts can be checked by hand.
// Made by: nvcc -ptx -arch=compute_80 -std=c++17 --use_fast_math tiny.cu; ptxas -arch=sm_XX tiny.ptx -o tiny.sm_XX.cubin;
// nvdisasm -c -g of a cubin made with -lineinfo, with this file's path shortened, is tiny.sm_80.sass.
extern "C" __global__ void flash_fwd_kernel(float* out, const unsigned* in, int n_blocks) {
  __shared__ unsigned seen[128];
  extern __shared__ float dynamic[];
  unsigned sum = 0;
#pragma unroll 1
  for (int i = 0; i < n_blocks; ++i) sum ^= in[i];
  seen[threadIdx.x] = sum;
  __syncthreads();
  if (sum == 7) return;
  float d[4] = {0, 0, 0, 0};
#pragma unroll 1
  for (int i = 0; i < n_blocks; ++i) {
    const unsigned a = in[i * 128 + threadIdx.x], b = seen[(threadIdx.x + i) & 127];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %4, %5}, {%5, %4}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a), "r"(b));
    }
  }
  dynamic[threadIdx.x] = d[0];
  __syncthreads();
  out[threadIdx.x] = dynamic[threadIdx.x ^ 1] + d[1] * d[2] + d[3];
}
