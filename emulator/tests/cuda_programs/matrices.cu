// Matrices: transposes, tiled products in fp32, fp64 and half, tensor cores, asynchronous copies into a pipeline.
// One kernel per idiom; matrices.py holds the launches and the NumPy references.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

constexpr int side = 32;

// out = transpose of in (n x n) through a tile in shared memory; `padding` words keep columns out of one bank.
template <int padding>
__device__ void transpose(const float *in, float *out, int n) {
    __shared__ float tile[side][side + padding];
    int x = blockIdx.x * side + threadIdx.x, y = blockIdx.y * side + threadIdx.y;
    for (int row = 0; row < side; row += blockDim.y) {
        tile[threadIdx.y + row][threadIdx.x] = in[(y + row) * n + x];
    }
    __syncthreads();
    x = blockIdx.y * side + threadIdx.x;
    y = blockIdx.x * side + threadIdx.y;
    for (int row = 0; row < side; row += blockDim.y) {
        out[(y + row) * n + x] = tile[threadIdx.x][threadIdx.y + row];
    }
}

extern "C" __global__ void transpose_plain(const float *in, float *out, int n) {
    transpose<0>(in, out, n);
}

extern "C" __global__ void transpose_padded(const float *in, float *out, int n) {
    transpose<1>(in, out, n);
}

// c (m x n) = a (m x k) @ b (k x n), row-major, any sizes: tiles of 16 x 16, the edges filled with zeros.
template <typename T>
__device__ void product(const T *a, const T *b, T *c, int m, int n, int k) {
    __shared__ T tile_a[16][16], tile_b[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    T sum = 0;
    for (int start = 0; start < k; start += 16) {
        int i = start + threadIdx.x, j = start + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < m && i < k ? a[row * k + i] : T(0);
        tile_b[threadIdx.y][threadIdx.x] = j < k && column < n ? b[j * n + column] : T(0);
        __syncthreads();
        for (int step = 0; step < 16; ++step) {
            sum = fma(tile_a[threadIdx.y][step], tile_b[step][threadIdx.x], sum);  // not left to ptxas, in any build
        }
        __syncthreads();
    }
    if (row < m && column < n) {
        c[row * n + column] = sum;
    }
}

extern "C" __global__ void gemm_f32(const float *a, const float *b, float *c, int m, int n, int k) {
    product(a, b, c, m, n, k);
}

extern "C" __global__ void gemm_f64(const double *a, const double *b, double *c, int m, int n, int k) {
    product(a, b, c, m, n, k);
}

// Two columns per thread in half2; no tile.
extern "C" __global__ void gemm_half2(const half *a, const half2 *b, half2 *c, int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, pair = blockIdx.x * blockDim.x + threadIdx.x;
    half2 sum = __float2half2_rn(0.0f);
    for (int i = 0; i < k; ++i) {
        sum = __hfma2(__half2half2(a[row * k + i]), b[i * n / 2 + pair], sum);
    }
    c[row * n / 2 + pair] = sum;
}

// One warp: c (16 x 8, fp32) = a (16 x 16) @ b (16 x 8) in bfloat16 on tensor cores, fragments loaded by hand.
extern "C" __global__ void mma_bf16(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c) {
    int group = threadIdx.x / 4, member = threadIdx.x % 4;
    unsigned fa[4], fb[2];
    for (int i = 0; i < 4; ++i) {
        int row = group + 8 * (i & 1), column = 2 * member + 8 * (i >> 1);
        fa[i] = *reinterpret_cast<const unsigned *>(a + row * 16 + column);
    }
    for (int i = 0; i < 2; ++i) {
        __nv_bfloat162 pair = {b[(2 * member + 8 * i) * 8 + group], b[(2 * member + 8 * i + 1) * 8 + group]};
        fb[i] = *reinterpret_cast<unsigned *>(&pair);
    }
    float d[4] = {};
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    float2 *rows = reinterpret_cast<float2 *>(c);
    rows[group * 4 + member] = make_float2(d[0], d[1]);
    rows[(group + 8) * 4 + member] = make_float2(d[2], d[3]);
}

// Row sums of a (rows x 128) matrix: each block streams its rows through two buffers of 16-byte asynchronous copies.
extern "C" __global__ void pipeline_sum(const float *in, float *out, int rows) {
    __shared__ alignas(16) float buffer[2][128];
    __shared__ float partial[32];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&buffer[0][4 * t], in + 4 * t, 16);
    __pipeline_commit();
    for (int row = 0; row < rows; ++row) {
        if (row + 1 < rows) {
            __pipeline_memcpy_async(&buffer[(row + 1) % 2][4 * t], in + (row + 1) * 128 + 4 * t, 16);
        }
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        const float *line = buffer[row % 2];
        partial[t] = line[t] + line[t + 32] + line[t + 64] + line[t + 96];
        __syncthreads();
        if (t == 0) {
            float sum = 0.0f;
            for (int i = 0; i < 32; ++i) {
                sum += partial[i];
            }
            out[row] = sum;
        }
    }
}

// A 3D stencil: mean of the six neighbours; 3D blocks and grid, clamped at the faces.
extern "C" __global__ void stencil(const float *in, float *out, int nx, int ny, int nz) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || y >= ny || z >= nz) {
        return;
    }
    auto at = [&](int i, int j, int k) {
        i = min(max(i, 0), nx - 1), j = min(max(j, 0), ny - 1), k = min(max(k, 0), nz - 1);
        return __ldg(&in[(k * ny + j) * nx + i]);
    };
    float sum = at(x - 1, y, z) + at(x + 1, y, z);
    sum += at(x, y - 1, z) + at(x, y + 1, z);
    sum += at(x, y, z - 1) + at(x, y, z + 1);
    __stcs(&out[(z * ny + y) * nx + x], sum / 6.0f);
}
