// Host programs for `ptxemu run`, each a file of its own: tests/nvcc/test_host_programs.py writes them.

// ==== check.h
// What the programs of this folder share: a check of each call, and a verdict.
#pragma once

#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                \
    do {                                                                           \
        const cudaError_t error = (call);                                          \
        if (error)                                                                 \
            std::printf("%s: %s\n", #call, cudaGetErrorName(error)), std::exit(3); \
    } while (0)

inline int verdict(const char *name, int wrong) {
    std::printf("%s: %d wrong\n", name, wrong);
    return wrong != 0;
}

// ==== algorithms.cu
// CUB's device-wide algorithms: a sum, a prefix sum whose blocks wait for each other, a radix sort.
#include <algorithm>
#include <numeric>
#include <vector>

#include <cub/cub.cuh>

#include "check.h"

template <typename Algorithm>
void run(Algorithm algorithm) {
    void *scratch = nullptr;
    size_t bytes = 0;
    CHECK(algorithm(scratch, bytes));
    CHECK(cudaMalloc(&scratch, bytes));
    CHECK(algorithm(scratch, bytes));
    CHECK(cudaFree(scratch));
}

int main() {
    const int n = 6000;
    std::vector<int> host(n), back(n);
    for (int i = 0; i < n; ++i)
        host[i] = i * 7919 % 10007;
    int *in, *out, sum;
    CHECK(cudaMalloc(&in, n * sizeof(int)));
    CHECK(cudaMalloc(&out, n * sizeof(int)));
    CHECK(cudaMemcpy(in, host.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    run([&](void *scratch, size_t &bytes) { return cub::DeviceReduce::Sum(scratch, bytes, in, out, n); });
    CHECK(cudaMemcpy(&sum, out, sizeof sum, cudaMemcpyDeviceToHost));
    int wrong = sum != std::accumulate(host.begin(), host.end(), 0);
    run([&](void *scratch, size_t &bytes) { return cub::DeviceScan::ExclusiveSum(scratch, bytes, in, out, n); });
    CHECK(cudaMemcpy(back.data(), out, n * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0, before = 0; i < n; before += host[i++])
        wrong += back[i] != before;
    run([&](void *scratch, size_t &bytes) { return cub::DeviceRadixSort::SortKeys(scratch, bytes, in, out, n); });
    CHECK(cudaMemcpy(back.data(), out, n * sizeof(int), cudaMemcpyDeviceToHost));
    std::sort(host.begin(), host.end());
    for (int i = 0; i < n; ++i)
        wrong += back[i] != host[i];
    return verdict("algorithms", wrong);
}

// ==== async_copies.cu
// cp.async in a ring of three stages, and barriers of a part of the block. -DMISSING waits for one group too few.
#include <cuda_pipeline.h>

#include "check.h"

constexpr int THREADS = 128, STAGES = 3, TILES = 9;

__global__ void scale(const float4 *in, float4 *out, float factor) {
    __shared__ float4 ring[STAGES][THREADS];
    const int i = threadIdx.x;
    for (int tile = 0; tile < STAGES - 1; ++tile) {
        __pipeline_memcpy_async(&ring[tile][i], &in[tile * THREADS + i], sizeof(float4));
        __pipeline_commit();
    }
    for (int tile = 0; tile < TILES; ++tile) {
        const int next = tile + STAGES - 1;
        if (next < TILES)
            __pipeline_memcpy_async(&ring[next % STAGES][i], &in[next * THREADS + i], sizeof(float4));
        __pipeline_commit();
#ifdef MISSING
        __pipeline_wait_prior(STAGES);
#else
        __pipeline_wait_prior(STAGES - 1);
#endif
        __syncthreads();
        float4 value = ring[tile % STAGES][THREADS - 1 - i];
        value.x *= factor, value.y *= factor, value.z *= factor, value.w *= factor;
        out[tile * THREADS + i] = value;
        __syncthreads();
    }
}

int main() {
    const int n = TILES * THREADS;
    float4 *in, *out;
    CHECK(cudaMallocManaged(&in, n * sizeof(float4)));
    CHECK(cudaMallocManaged(&out, n * sizeof(float4)));
    for (int i = 0; i < n; ++i)
        in[i] = make_float4(i, i + 1, i + 2, i + 3);
    scale<<<1, THREADS>>>(in, out, 2.0f);
    CHECK(cudaDeviceSynchronize());
    int wrong = 0;
    for (int i = 0; i < n; ++i) {
        const int from = i / THREADS * THREADS + THREADS - 1 - i % THREADS;
        wrong += out[i].x != 2.0f * from || out[i].w != 2.0f * (from + 3);
    }
    return verdict("async_copies", wrong);
}

// ==== clusters.cu
// Clusters that the launch names (cudaLaunchKernelExC), shared memory of another block, occupancy of clusters.
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

__global__ void pass_on(int *out) {
    __shared__ int own;
    const auto cluster = cg::this_cluster();
    if (threadIdx.x == 0)
        own = 100 * blockIdx.x;
    cluster.sync();
    const unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    out[blockIdx.x * blockDim.x + threadIdx.x] = *cluster.map_shared_rank(&own, next) + threadIdx.x;
#ifndef MISSING
    cluster.sync();  // the next block must not have exited
#endif
}

int main() {
    const int blocks = 8, threads = 32, size = 4;
    int *out;
    CHECK(cudaMallocManaged(&out, blocks * threads * sizeof(int)));
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks, config.blockDim = threads;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = size, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute, config.numAttrs = 1;
    int clusters = 0;
    CHECK(cudaOccupancyMaxActiveClusters(&clusters, pass_on, &config));
    int flat = 0, square = 0;  // blocks of 1,024 threads each
    config.blockDim = dim3(1024);
    CHECK(cudaOccupancyMaxActiveClusters(&flat, pass_on, &config));
    config.blockDim = dim3(32, 32);
    CHECK(cudaOccupancyMaxActiveClusters(&square, pass_on, &config));
    config.blockDim = threads;
    CHECK(cudaLaunchKernelEx(&config, pass_on, out));
    CHECK(cudaDeviceSynchronize());
    int wrong = clusters < 1 || flat != square || flat >= clusters;
    for (int block = 0; block < blocks; ++block) {
        const int next = block / size * size + (block + 1) % size;
        for (int i = 0; i < threads; ++i)
            wrong += out[block * threads + i] != 100 * next + i;
    }
    return verdict("clusters", wrong);
}

// ==== errors.cu
// What each call returns where something is wrong, and the error of a kernel, which stays.
#include "check.h"

__global__ void store(int *out, long index) {
    out[index] = 1;
}

int main() {
    int *out, wrong = 0;
    CHECK(cudaMalloc(&out, 64 * sizeof(int)));
    store<<<1, 2048>>>(out, 0);
    wrong += cudaGetLastError() != cudaErrorInvalidValue;
    wrong += cudaGetLastError() != cudaSuccess;
    wrong += cudaMemcpy(out, nullptr, sizeof(int), cudaMemcpyHostToDevice) != cudaErrorInvalidValue;
    wrong += cudaSetDevice(1) != cudaErrorInvalidDevice;
    wrong += cudaFree(out + 1) != cudaErrorInvalidValue;
    cudaGetLastError();
    store<<<1, 1>>>(out, 63);
    wrong += cudaDeviceSynchronize() != cudaSuccess;
    store<<<1, 1>>>(out, 1l << 40);
    wrong += cudaDeviceSynchronize() != cudaErrorIllegalAddress;
    wrong += cudaMemset(out, 0, 4) != cudaErrorIllegalAddress;
    return verdict("errors", wrong);
}

// ==== histogram.cu
// Atomics in shared and global memory; with -DMISSING a plain addition in place of one of them.
#include <vector>

#include "check.h"

constexpr int BINS = 64;

__global__ void histogram(const unsigned char *data, unsigned *bins, int n) {
    __shared__ unsigned own[BINS];
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x)
        own[bin] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicAdd(&own[data[i] % BINS], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
#ifdef MISSING
        bins[bin] += own[bin];
#else
        atomicAdd(&bins[bin], own[bin]);
#endif
    }
}

int main() {
    const int n = 20000;
    std::vector<unsigned char> data(n);
    std::vector<unsigned> found(BINS), expected(BINS);
    for (int i = 0; i < n; ++i)
        data[i] = static_cast<unsigned char>(i * i + 3 * i), ++expected[data[i] % BINS];
    unsigned char *on_device;
    unsigned *bins;
    CHECK(cudaMalloc(&on_device, n));
    CHECK(cudaMalloc(&bins, BINS * sizeof(unsigned)));
    CHECK(cudaMemset(bins, 0, BINS * sizeof(unsigned)));
    CHECK(cudaMemcpy(on_device, data.data(), n, cudaMemcpyHostToDevice));
    histogram<<<8, 128>>>(on_device, bins, n);
    CHECK(cudaMemcpy(found.data(), bins, BINS * sizeof(unsigned), cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int bin = 0; bin < BINS; ++bin)
        wrong += found[bin] != expected[bin];
    return verdict("histogram", wrong);
}

// ==== modules.cu
// The driver's interface: a module from PTX text, its kernel and variable, parameters one by one and as one buffer.
#include <cuda.h>

#include "check.h"

#define DRIVER(call)                                                                     \
    do {                                                                                 \
        const CUresult error = (call);                                                   \
        if (error)                                                                       \
            std::printf("%s: error %d\n", #call, static_cast<int>(error)), std::exit(3); \
    } while (0)

static const char PTX[] = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .global .u32 offset = 5;
.visible .entry shift(.param .u64 out, .param .u32 factor) {
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [factor];
    mov.u32 %r2, %tid.x;
    ld.global.u32 %r3, [offset];
    mad.lo.u32 %r4, %r2, %r1, %r3;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r4;
    ret;
})";

int main() {
    CUdevice gpu;
    CUcontext context;
    CUmodule module;
    CUfunction shift;
    CUdeviceptr out, offset;
    size_t bytes;
    DRIVER(cuInit(0));
    DRIVER(cuDeviceGet(&gpu, 0));
    DRIVER(cuCtxCreate(&context, nullptr, 0, gpu));
    DRIVER(cuModuleLoadData(&module, PTX));
    DRIVER(cuModuleGetFunction(&shift, module, "shift"));
    DRIVER(cuModuleGetGlobal(&offset, &bytes, module, "offset"));
    int wrong = bytes != 4;
    CUfunction none;
    wrong += cuModuleGetFunction(&none, module, "no_such_kernel") != CUDA_ERROR_NOT_FOUND;
    DRIVER(cuMemAlloc(&out, 64 * 4));
    DRIVER(cuMemsetD32(out, 7, 64));
    unsigned factor = 3, host[64];
    void *each[] = {&out, &factor};
    DRIVER(cuLaunchKernel(shift, 1, 1, 1, 32, 1, 1, 0, nullptr, each, nullptr));
    DRIVER(cuMemcpyDtoH(host, out, sizeof host));
    for (unsigned i = 0; i < 64; ++i)
        wrong += host[i] != (i < 32 ? 3 * i + 5 : 7);
    const unsigned other = 9;
    DRIVER(cuMemcpyHtoD(offset, &other, 4));
    struct {
        CUdeviceptr out;
        unsigned factor;
    } both = {out, 2};
    size_t size = sizeof both.out + sizeof both.factor;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &both, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    DRIVER(cuLaunchKernel(shift, 1, 1, 1, 64, 1, 1, 0, nullptr, nullptr, extra));
    DRIVER(cuMemcpyDtoH(host, out, sizeof host));
    for (unsigned i = 0; i < 64; ++i)
        wrong += host[i] != 2 * i + 9;
    DRIVER(cuMemFree(out));
    return verdict("modules", wrong);
}

// ==== product.cu
// A matrix product in tensor cores, by mma, checked with doubles on the host.
#include <cuda_fp16.h>
#include <vector>

#include "check.h"

constexpr int N = 64;

// One warp per 16 x 8 tile of C = A B, by mma.m16n8k16: A is row-major, B is column-major.
__global__ void product(const __half *a, const __half *b, float *c) {
    const int lane = threadIdx.x, row = blockIdx.y * 16 + lane / 4, column = blockIdx.x * 8;
    float sum[4] = {};
    for (int k = 0; k < N; k += 16) {
        const int at = k + lane % 4 * 2;
        unsigned left[4], right[2];
        for (int i = 0; i < 4; ++i) {
            left[i] = *reinterpret_cast<const unsigned *>(&a[(row + i % 2 * 8) * N + at + i / 2 * 8]);
        }
        for (int i = 0; i < 2; ++i) {
            right[i] = *reinterpret_cast<const unsigned *>(&b[(column + lane / 4) * N + at + i * 8]);
        }
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
    }
    for (int i = 0; i < 4; ++i)
        c[(row + i / 2 * 8) * N + column + lane % 4 * 2 + i % 2] = sum[i];
}

int main() {
    std::vector<__half> a(N * N), b(N * N);
    for (int i = 0; i < N * N; ++i)
        a[i] = __float2half((i % 13 - 6) / 4.0f), b[i] = __float2half((i % 7 - 3) / 2.0f);
    __half *on_device[2];
    float *c;
    for (int i = 0; i < 2; ++i) {
        CHECK(cudaMalloc(&on_device[i], N * N * sizeof(__half)));
        CHECK(cudaMemcpy(on_device[i], (i ? b : a).data(), N * N * sizeof(__half), cudaMemcpyHostToDevice));
    }
    CHECK(cudaMallocManaged(&c, N * N * sizeof(float)));
    product<<<dim3(N / 8, N / 16), 32>>>(on_device[0], on_device[1], c);
    CHECK(cudaDeviceSynchronize());
    int wrong = 0;
    for (int i = 0; i < N; ++i) {
        for (int j = 0; j < N; ++j) {
            double sum = 0;
            for (int k = 0; k < N; ++k)
                sum += double(__half2float(a[i * N + k])) * double(__half2float(b[j * N + k]));
            wrong += std::abs(sum - c[i * N + j]) > 1e-3;
        }
    }
    return verdict("product", wrong);
}

// ==== reduce.cu
// Warp shuffles, dynamic shared memory above 48 KiB, atomics, streams and events, memory that is set.
#include "check.h"

__global__ void reduce(const float *in, double *sum, int n) {
    extern __shared__ double parts[];
    double own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        own += in[i];
    for (int apart = 16; apart; apart /= 2)
        own += __shfl_down_sync(0xffffffff, own, apart);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < blockDim.x / 32; ++warp)
            own += parts[warp];
        atomicAdd(sum, own);
    }
}

int main() {
    const int n = 30000, bytes = 60 << 10;
    float *host, *in;
    double *sum, found = 0;
    CHECK(cudaMallocHost(&host, n * sizeof(float)));
    for (int i = 0; i < n; ++i)
        host[i] = i % 7;
    cudaStream_t stream;
    cudaEvent_t start, end;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaMallocAsync(&in, n * sizeof(float), stream));
    CHECK(cudaMallocAsync(&sum, sizeof(double), stream));
    CHECK(cudaMemsetAsync(sum, 0, sizeof(double), stream));
    CHECK(cudaMemcpyAsync(in, host, n * sizeof(float), cudaMemcpyHostToDevice, stream));
    CHECK(cudaEventRecord(start, stream));
    reduce<<<6, 256, bytes, stream>>>(in, sum, n);
    if (cudaGetLastError() != cudaErrorInvalidValue)
        return verdict("reduce: more shared memory than was asked for", 1);
    CHECK(cudaFuncSetAttribute(reduce, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    reduce<<<6, 256, bytes, stream>>>(in, sum, n);
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaMemcpyAsync(&found, sum, sizeof(double), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    float milliseconds = -1;
    CHECK(cudaEventElapsedTime(&milliseconds, start, end));
    double expected = 0;
    for (int i = 0; i < n; ++i)
        expected += i % 7;
    return verdict("reduce", found != expected || milliseconds < 0);
}

// ==== symbols.cu
// Variables of a module: constants, counters that launches leave behind, managed ones, function pointers, templates.
#include "check.h"

__constant__ int weights[4];
__device__ int calls;
__device__ int table[3] = {5, 6, 7};
__managed__ int shared_with_host = 40;

__device__ int twice(int x) {
    return 2 * x;
}

template <typename T, int N>
__global__ void work(T *out) {
    const int i = threadIdx.x;
    out[i] = static_cast<T>(weights[i % 4] * N + table[i % 3] + twice(i));
    if (i == 0)
        atomicAdd(&calls, 1), shared_with_host += 2;
}

template <typename T, int N>
int launched(const int *host_weights) {
    T *out, back[64];
    CHECK(cudaMalloc(&out, sizeof back));
    work<T, N><<<1, 64>>>(out);
    CHECK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < 64; ++i)
        wrong += back[i] != static_cast<T>(host_weights[i % 4] * N + 5 + i % 3 + 2 * i);
    return wrong;
}

int main() {
    const int host_weights[4] = {3, 1, 4, 1};
    CHECK(cudaMemcpyToSymbol(weights, host_weights, sizeof host_weights));
    int wrong = launched<float, 2>(host_weights) + launched<int, 3>(host_weights);
    int found = 0;
    CHECK(cudaMemcpyFromSymbol(&found, calls, sizeof found));
    CHECK(cudaDeviceSynchronize());
    void *address;
    size_t bytes;
    CHECK(cudaGetSymbolAddress(&address, table));
    CHECK(cudaGetSymbolSize(&bytes, table));
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, address));
    wrong +=
        (found != 2) + (shared_with_host != 44) + (bytes != sizeof table) + (attributes.type != cudaMemoryTypeDevice);
    return verdict("symbols", wrong);
}

// ==== tensor_ring.cu
// Tiles by TMA through a ring in shared memory, one tensor map, two blocks of a cluster that share each tile.
#include <cuda.h>
#include <cstdint>

#include "check.h"

constexpr int ROWS = 8, COLUMNS = 32, STAGES = 3, TILES = 12;
constexpr int TILE_BYTES = ROWS * COLUMNS * sizeof(float);

__device__ unsigned address_of(const void *shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

__device__ void wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again; }" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

__global__ void __cluster_dims__(2, 1, 1) sum_tiles(const __grid_constant__ CUtensorMap map, float *sums) {
    __shared__ alignas(128) float ring[STAGES][ROWS * COLUMNS];
    __shared__ alignas(8) std::uint64_t full[STAGES], empty[STAGES];
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_of(&full[stage])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(address_of(&empty[stage])));
        }
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    float own = 0;
    for (int tile = 0; tile < TILES + STAGES; ++tile) {
        const int stage = tile % STAGES, turn = tile / STAGES;
        if (tile < TILES && threadIdx.x == 0) {  // each block loads half of the rows, for both
            if (turn)
                wait(address_of(&empty[stage]), (turn - 1) & 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(&full[stage])),
                         "r"(TILE_BYTES)
                         : "memory");
            const unsigned target = address_of(&ring[stage][rank * ROWS / 2 * COLUMNS]);
            const int row = tile * ROWS + rank * ROWS / 2;
            asm volatile(
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
                "l"(&map), "r"(0), "r"(row), "r"(address_of(&full[stage])), "h"(static_cast<std::uint16_t>(3))
                : "memory");
        }
        const int done = tile - STAGES + 1;
        if (done < 0 || done >= TILES)
            continue;
        const int slot = done % STAGES;
        wait(address_of(&full[slot]), (done / STAGES) & 1);
        for (int row = 0; row < ROWS; ++row)
            own += (rank + 1) * ring[slot][row * COLUMNS + threadIdx.x];
#ifndef MISSING
        __syncwarp();
#endif
        if (threadIdx.x == 0) {  // both blocks have to be done before either half is written again
            for (unsigned block = 0; block < 2; ++block) {
                asm volatile(
                    "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }" ::"r"(address_of(&empty[slot])),
                    "r"(block)
                    : "memory");
            }
        }
    }
    sums[rank * COLUMNS + threadIdx.x] = own;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

int main() {
    const int n = TILES * ROWS * COLUMNS;
    float *in, *sums;
    CHECK(cudaMallocManaged(&in, n * sizeof(float)));
    CHECK(cudaMallocManaged(&sums, 2 * COLUMNS * sizeof(float)));
    for (int i = 0; i < n; ++i)
        in[i] = i % 11;
    void *found = nullptr;
    cudaDriverEntryPointQueryResult status;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status));
    const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
    CUtensorMap map;
    const cuuint64_t dims[] = {COLUMNS, TILES * ROWS}, strides[] = {COLUMNS * sizeof(float)};
    const cuuint32_t box[] = {COLUMNS, ROWS / 2}, steps[] = {1, 1};
    if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, in, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)) {
        return verdict("tensor_ring: no tensor map", 1);
    }
    sum_tiles<<<2, COLUMNS>>>(map, sums);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    int wrong = 0;
    for (int column = 0; column < COLUMNS; ++column) {
        float expected = 0;
        for (int row = 0; row < TILES * ROWS; ++row)
            expected += in[row * COLUMNS + column];
        wrong += (sums[column] != expected) + (sums[COLUMNS + column] != 2 * expected);
    }
    return verdict("tensor_ring", wrong);
}

// ==== transpose.cu
// A tile in shared memory. With -DMISSING the barrier between its two uses is missing: the numbers may still be right.
#include <vector>

#include "check.h"

constexpr int TILE = 32;

__global__ void transpose(const int *in, int *out, int rows, int columns) {
    __shared__ int tile[TILE][TILE + 1];
    const int column = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE;
    for (int i = threadIdx.y; i < TILE; i += blockDim.y)
        tile[i][threadIdx.x] = in[(row + i) * columns + column];
#ifndef MISSING
    __syncthreads();
#endif
    const int turned = blockIdx.y * TILE + threadIdx.x;
    for (int i = threadIdx.y; i < TILE; i += blockDim.y) {
        out[(blockIdx.x * TILE + i) * rows + turned] = tile[threadIdx.x][i];
    }
}

int main() {
    const int rows = 96, columns = 64;
    int *in, *out;
    CHECK(cudaMallocManaged(&in, rows * columns * sizeof(int)));
    CHECK(cudaMallocManaged(&out, rows * columns * sizeof(int)));
    for (int i = 0; i < rows * columns; ++i)
        in[i] = i;
    transpose<<<dim3(columns / TILE, rows / TILE), dim3(TILE, 8)>>>(in, out, rows, columns);
    CHECK(cudaDeviceSynchronize());
    int wrong = 0;
    for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns; ++column)
            wrong += out[column * rows + row] != row * columns + column;
    }
    return verdict("transpose", wrong);
}

// ==== vector_add.cu
// A first program: memory, copies both ways, a grid whose last block is not full.
#include <vector>

#include "check.h"

__global__ void add(const float *a, const float *b, float *sum, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        sum[i] = a[i] + b[i];
}

int main() {
    const int n = 50000;
    std::vector<float> a(n), b(n), sum(n);
    for (int i = 0; i < n; ++i)
        a[i] = i, b[i] = 0.5f * i;
    float *on_device[3];
    for (float *&one : on_device)
        CHECK(cudaMalloc(&one, n * sizeof(float)));
    CHECK(cudaMemcpy(on_device[0], a.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(on_device[1], b.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    add<<<(n + 255) / 256, 256>>>(on_device[0], on_device[1], on_device[2], n);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(sum.data(), on_device[2], n * sizeof(float), cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < n; ++i)
        wrong += sum[i] != 1.5f * i;
    for (float *one : on_device)
        CHECK(cudaFree(one));
    return verdict("vector_add", wrong);
}

// ==== memory.cu
// Copies and fills of every kind, properties and attributes of the device.
#include <cuda.h>
#include <vector>

#include "check.h"

__device__ int numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};

int main() {
    int wrong = 0;
    const size_t width = 100, height = 7;
    std::vector<unsigned char> host(width * height), back(120 * height);
    for (size_t i = 0; i < host.size(); ++i)
        host[i] = static_cast<unsigned char>(i * 7);
    unsigned char *pitched;
    size_t pitch;
    CHECK(cudaMallocPitch(&pitched, &pitch, width, height));
    CHECK(cudaMemcpy2D(pitched, pitch, host.data(), width, width, height, cudaMemcpyHostToDevice));
    CHECK(cudaMemset2D(pitched + pitch + 3, pitch, 9, 2, 3));
    CHECK(cudaMemcpy2D(back.data(), 120, pitched, pitch, width, height, cudaMemcpyDeviceToHost));
    for (size_t row = 0; row < height; ++row) {
        for (size_t column = 0; column < width; ++column) {
            const bool set = row >= 1 && row < 4 && column >= 3 && column < 5;
            wrong += back[row * 120 + column] != (set ? 9 : host[row * width + column]);
        }
    }
    const size_t n = 300000;
    std::vector<unsigned> words(n);
    CUdeviceptr filled;
    wrong += cuMemAlloc(&filled, n * 4) != CUDA_SUCCESS;
    wrong += cuMemsetD32(filled, 0x01020304, n) != CUDA_SUCCESS;
    wrong += cuMemcpyDtoH(words.data(), filled, n * 4) != CUDA_SUCCESS;
    for (unsigned word : words)
        wrong += word != 0x01020304;
    int one = 0, two[2] = {60, 70};
    CHECK(cudaMemcpyToSymbol(numbers, two, sizeof two, 6 * sizeof(int)));
    CHECK(cudaMemcpyFromSymbol(&one, numbers, sizeof one, 7 * sizeof(int)));
    wrong += one != 70;
    CHECK(cudaMemcpyFromSymbol(&one, numbers, sizeof one, 2 * sizeof(int)));
    wrong += one != 2;
    cudaDeviceProp of_device;
    CHECK(cudaGetDeviceProperties(&of_device, 0));
    const struct {
        cudaDeviceAttr attribute;
        size_t value;
    } pairs[] = {{cudaDevAttrMultiProcessorCount, static_cast<size_t>(of_device.multiProcessorCount)},
                 {cudaDevAttrWarpSize, static_cast<size_t>(of_device.warpSize)},
                 {cudaDevAttrMaxThreadsPerBlock, static_cast<size_t>(of_device.maxThreadsPerBlock)},
                 {cudaDevAttrMaxGridDimY, static_cast<size_t>(of_device.maxGridSize[1])},
                 {cudaDevAttrMaxThreadsPerMultiProcessor, static_cast<size_t>(of_device.maxThreadsPerMultiProcessor)},
                 {cudaDevAttrMaxSharedMemoryPerBlock, of_device.sharedMemPerBlock},
                 {cudaDevAttrMaxSharedMemoryPerBlockOptin, of_device.sharedMemPerBlockOptin},
                 {cudaDevAttrMaxSharedMemoryPerMultiprocessor, of_device.sharedMemPerMultiprocessor},
                 {cudaDevAttrMaxRegistersPerBlock, static_cast<size_t>(of_device.regsPerBlock)},
                 {cudaDevAttrMaxBlocksPerMultiprocessor, static_cast<size_t>(of_device.maxBlocksPerMultiProcessor)},
                 {cudaDevAttrReservedSharedMemoryPerBlock, of_device.reservedSharedMemPerBlock},
                 {cudaDevAttrL2CacheSize, static_cast<size_t>(of_device.l2CacheSize)},
                 {cudaDevAttrComputeCapabilityMajor, static_cast<size_t>(of_device.major)},
                 {cudaDevAttrClusterLaunch, static_cast<size_t>(of_device.clusterLaunch)}};
    for (const auto &pair : pairs) {
        int value = -1;
        CHECK(cudaDeviceGetAttribute(&value, pair.attribute, 0));
        wrong += static_cast<size_t>(value) != pair.value;
    }
    std::printf("%d multiprocessors, %zu bytes of shared memory, %d threads\n", of_device.multiProcessorCount,
                of_device.sharedMemPerMultiprocessor, of_device.maxThreadsPerMultiProcessor);
    return verdict("memory", wrong);
}
