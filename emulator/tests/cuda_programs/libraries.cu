// NVIDIA's own device libraries: CUB's block algorithms, cooperative groups' copies and reductions, libcu++.
// One kernel per idiom; libraries.py holds the launches and the NumPy references.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda/atomic>
#include <cuda/pipeline>

namespace cg = cooperative_groups;

// Sorts 512 keys per block; loads and sums of CUB share their memory.
extern "C" __global__ void radix_sort(int *keys, int *before) {
    using Load = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_TRANSPOSE>;
    using Sort = cub::BlockRadixSort<int, 128, 4>;
    using Scan = cub::BlockScan<int, 128>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Sort::TempStorage sort;
        typename Scan::TempStorage scan;
    } shared;
    int mine[4], sums[4];
    Load(shared.load).Load(keys + blockIdx.x * 512, mine);
    __syncthreads();
    Scan(shared.scan).ExclusiveSum(mine, sums);
    __syncthreads();
    Sort(shared.sort).Sort(mine);
    for (int i = 0; i < 4; ++i) {
        keys[blockIdx.x * 512 + threadIdx.x * 4 + i] = mine[i];
        before[blockIdx.x * 512 + threadIdx.x * 4 + i] = sums[i];
    }
}

// A block copies its part asynchronously and waits for it as a group.
extern "C" __global__ void group_copy(const int *in, int *out) {
    __shared__ alignas(16) int part[256];
    cg::thread_block block = cg::this_thread_block();
    cg::memcpy_async(block, part, in + blockIdx.x * 256, sizeof(part));
    cg::wait(block);
    out[blockIdx.x * 256 + threadIdx.x] = part[255 - threadIdx.x];
}

// Each thread has a pipeline of its own, two stages deep.
extern "C" __global__ void thread_pipeline(const float *in, float *out, int rows) {
    __shared__ float stage[2][64];
    cuda::pipeline<cuda::thread_scope_thread> pipeline = cuda::make_pipeline();
    for (int row = 0; row <= rows; ++row) {
        if (row < rows) {
            pipeline.producer_acquire();
            const float *from = in + row * 64 + threadIdx.x;
            cuda::memcpy_async(&stage[row % 2][threadIdx.x], from, sizeof(float), pipeline);
            pipeline.producer_commit();
        }
        if (row > 0) {
            row < rows ? cuda::pipeline_consumer_wait_prior<1>(pipeline)
                       : cuda::pipeline_consumer_wait_prior<0>(pipeline);
            out[(row - 1) * 64 + threadIdx.x] = 2 * stage[(row - 1) % 2][threadIdx.x];
            pipeline.consumer_release();
        }
    }
}

// Reductions and scans of cooperative groups, atomics of libcu++ with memory orders.
extern "C" __global__ void group_reduce(const int *in, int *out, int *total) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    int value = in[threadIdx.x];
    int sum = cg::reduce(tile, value, cg::plus<int>());
    out[threadIdx.x] = sum + cg::inclusive_scan(tile, value, cg::greater<int>());
    cuda::atomic_ref<int, cuda::thread_scope_device> reference(*total);
    reference.fetch_add(value, cuda::memory_order_relaxed);
    reference.fetch_max(threadIdx.x, cuda::memory_order_acq_rel);
    if (reference.load(cuda::memory_order_acquire) < 0) {
        __trap();
    }
}
