// What it is: clusters by cooperative groups' header: ranks, mapped shared memory, the barrier whole and split.
// Why: PTX of Hopper programs that were not written here has to run on the emulator, too; every instruction of clusters
// is the header's. Run: pytest tests/nvcc/test_hopper_public.py

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

// How often each value below `bins` occurs; the bins are spread over the shared memory of a cluster's blocks.
extern "C" __global__ void histogram(int *counts, int bins, int each, const int *values, int n) {
    extern __shared__ int mine[];
    const cg::cluster_group cluster = cg::this_cluster();
    for (int i = threadIdx.x; i < each; i += blockDim.x)
        mine[i] = 0;
    cluster.sync();
    const int step = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const int bin = min(max(values[i], 0), bins - 1);
        atomicAdd(cluster.map_shared_rank(mine, bin / each) + bin % each, 1);
    }
    cluster.sync();
    for (int i = threadIdx.x; i < each; i += blockDim.x)
        atomicAdd(&counts[cluster.block_rank() * each + i], mine[i]);
}

// Each block's sum, then the running sum over the blocks of its cluster; `redux` and the split barrier are the
// header's.
extern "C" __global__ void running_sums(const int *in, int *out) {
    __shared__ int parts[32], total;
    const cg::cluster_group cluster = cg::this_cluster();
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const int value = cg::reduce(warp, in[blockIdx.x * blockDim.x + threadIdx.x], cg::plus<int>());
    if (warp.thread_rank() == 0)
        parts[warp.meta_group_rank()] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0;
        for (int i = 0; i < blockDim.x / 32; ++i)
            total += parts[i];
    }
    auto token = cluster.barrier_arrive();
    cluster.barrier_wait(std::move(token));
    if (threadIdx.x == 0) {
        int sum = 0;
        for (unsigned rank = 0; rank <= cluster.block_rank(); ++rank)
            sum += *cluster.map_shared_rank(&total, rank);
        out[blockIdx.x] = sum;
    }
    cluster.sync();
}
