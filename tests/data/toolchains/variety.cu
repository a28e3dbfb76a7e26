// What: one kernel with what a log and a listing can hold beside tiny.cu: a call, a stack, spills (with few registers),
// constants, several named barriers, static shared memory, a switch. Why: test data of the readers of tools' output.
// Made by: python -m tests.data.toolchains.record
__constant__ float table[64];

__device__ __noinline__ float often(float x, int n) {
  float kept[8];
  for (int i = 0; i < 8; ++i) kept[i] = x * i;
  return kept[n & 7];
}

extern "C" __global__ void flash_fwd_kernel(float* out, const float4* in, int n) {
  __shared__ float seen[256];
  float4 all[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) all[i] = in[i * blockDim.x + threadIdx.x];
  seen[threadIdx.x] = all[0].x;
  asm volatile("bar.sync 1, 128;" ::: "memory");
  asm volatile("bar.sync 2, 128;" ::: "memory");
  float sum = table[threadIdx.x & 63] + seen[threadIdx.x ^ 1];
  switch (n & 7) {
    case 0: sum += 1; break;
    case 1: sum *= 3; break;
    case 2: sum = often(sum, n); break;
    case 3: sum -= __cosf(sum); break;
    case 4: sum = sqrtf(sum); break;
    default: sum = exp2f(sum);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) sum += all[i].x * all[15 - i].y - all[i].z * all[15 - i].w;
  out[threadIdx.x] = sum;
}
