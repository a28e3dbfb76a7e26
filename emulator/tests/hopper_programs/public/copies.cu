// What it is: libcu++'s copies and barriers as they ship in the wheels' headers: every asynchronous instruction is
// theirs. Why: PTX of Hopper programs that were not written here has to run on the emulator, too. Run: pytest
// tests/nvcc/test_hopper_public.py

#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/ptx>

#pragma nv_diag_suppress static_var_with_dynamic_init

namespace {
constexpr int TILE = 1024;  // elements
constexpr int STAGES = 3;
using Barrier = cuda::barrier<cuda::thread_scope_block>;
}  // namespace

// Doubles a tile in shared memory: bulk copies in, whose bytes the barrier counts, and out.
extern "C" __global__ void tile_there_and_back(const float *in, float *out) {
    __shared__ alignas(128) float tile[TILE];
    __shared__ Barrier barrier;
    if (threadIdx.x == 0) {
        init(&barrier, blockDim.x);
        cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
    }
    __syncthreads();
    Barrier::arrival_token token;
    const size_t first = size_t{blockIdx.x} * TILE;
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(tile, in + first, cuda::aligned_size_t<16>(sizeof(tile)), barrier);
        token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof(tile));
    } else {
        token = barrier.arrive();
    }
    barrier.wait(std::move(token));
    for (int i = threadIdx.x; i < TILE; i += blockDim.x)
        tile[i] *= 2;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, out + first, tile, sizeof(tile));
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>{});
    }
}

// The sum of each column of `tiles` tiles, which `memcpy_async` of the whole block brings, one barrier a stage.
extern "C" __global__ void sum_tiles(const int *in, int *out, int tiles) {
    __shared__ alignas(16) int tile[STAGES][TILE];
    __shared__ Barrier barrier[STAGES];
    const auto block = cooperative_groups::this_thread_block();
    if (block.thread_rank() < STAGES) {
        init(&barrier[block.thread_rank()], block.size());
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);  // as CUDA's guide has it
    }
    block.sync();
    const auto load = [&](int i) {
        cuda::memcpy_async(block, tile[i % STAGES], in + size_t{TILE} * i, cuda::aligned_size_t<16>(sizeof(tile[0])),
                           barrier[i % STAGES]);
    };
    for (int i = 0; i < STAGES - 1 && i < tiles; ++i)
        load(i);
    int sums[TILE / 128] = {};
    for (int i = 0; i < tiles; ++i) {
        if (i + STAGES - 1 < tiles)
            load(i + STAGES - 1);
        barrier[i % STAGES].arrive_and_wait();
        for (int k = 0; k < TILE / 128; ++k)
            sums[k] += tile[i % STAGES][threadIdx.x + 128 * k];
        block.sync();
    }
    for (int k = 0; k < TILE / 128; ++k)
        out[threadIdx.x + 128 * k] = sums[k];
}

// The same with a pipeline of the block: its first warp loads, the others add.
extern "C" __global__ void sum_in_roles(const int *in, int *out, int tiles) {
    __shared__ alignas(16) int tile[STAGES][TILE];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    const auto block = cooperative_groups::this_thread_block();
    const bool loads = threadIdx.x < 32;
    auto pipe =
        cuda::make_pipeline(block, &state, loads ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
    int sums[TILE / 128] = {};
    for (int i = 0; i < tiles; ++i) {
        if (loads) {
            pipe.producer_acquire();
            for (int k = threadIdx.x; k < TILE / 4; k += 32)
                cuda::memcpy_async(&tile[i % STAGES][4 * k], in + size_t{TILE} * i + 4 * k,
                                   cuda::aligned_size_t<16>(16), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            for (int k = 0; k < TILE / 128; ++k)
                sums[k] += tile[i % STAGES][threadIdx.x - 32 + 128 * k];
            pipe.consumer_release();
        }
    }
    if (!loads)
        for (int k = 0; k < TILE / 128; ++k)
            out[threadIdx.x - 32 + 128 * k] = sums[k];
}
