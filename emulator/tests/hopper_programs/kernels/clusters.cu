// What it is: blocks that work together as a cluster: ranks, remote memory, cluster barriers, multicast.
// Why: a block's memory is its peers' as well, and none may leave while another still needs it.
// Run: pytest tests/nvcc/test_hopper_programs.py -k clusters

#include "copies.cuh"

// Who is where, in every register that says so.
extern "C" __global__ void ranks(uint32_t *out) {
    __shared__ uint32_t place;
    if (threadIdx.x == 0) {
        uint32_t v[14];
        asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(v[0]));
        asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(v[1]));
        asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(v[2]));
        asm volatile("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(v[3]));
        asm volatile("mov.u32 %0, %%cluster_ctaid.z;" : "=r"(v[4]));
        asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(v[5]));
        asm volatile("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(v[6]));
        asm volatile("mov.u32 %0, %%cluster_nctaid.z;" : "=r"(v[7]));
        asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(v[8]));
        asm volatile("mov.u32 %0, %%clusterid.y;" : "=r"(v[9]));
        asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(v[10]));
        asm volatile("mov.u32 %0, %%nclusterid.y;" : "=r"(v[11]));
        asm volatile("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }" : "=r"(v[12]));
        uint32_t rank;
        asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(rank) : "r"(in_block(&place, v[1] - 1)));
        v[13] = rank;
        const int block = blockIdx.x + gridDim.x * blockIdx.y;
        for (int i = 0; i < 14; ++i) {
            out[14 * block + i] = v[i];
        }
    }
}

// Each block reads what the next one wrote.
extern "C" __global__ void read_next(uint32_t *out, int size) {
    __shared__ uint32_t mine[64];
    const int rank = static_cast<int>(cluster_rank());
    mine[threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
    cluster_sync();
    out[64 * blockIdx.x + threadIdx.x] = load_remote(in_block(&mine[63 - threadIdx.x], (rank + 1) % size));
    cluster_sync();
}

// Each block writes into the next one; what can be done alone is done between arrival and wait.
extern "C" __global__ void write_next(uint32_t *out, int size) {
    __shared__ uint32_t mine[64];
    const int rank = static_cast<int>(cluster_rank());
    cluster_sync();
    store_remote(in_block(&mine[threadIdx.x], (rank + 1) % size), 1000 * blockIdx.x + threadIdx.x);
    cluster_arrive();
    const uint32_t own = threadIdx.x * threadIdx.x;
    cluster_wait();
    out[64 * blockIdx.x + threadIdx.x] = mine[threadIdx.x] + own;
}

// All blocks count into a histogram of block 0, and draw tickets from block 1.
extern "C" __global__ void histogram(uint32_t *out, const uint32_t *in) {
    __shared__ uint32_t bins[32], tickets;
    if (threadIdx.x < 32) {
        bins[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0) {
        tickets = 0;
    }
    cluster_sync();
    const uint32_t bin = in[blockIdx.x * blockDim.x + threadIdx.x] % 32;
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" ::"r"(in_block(&bins[bin], 0)) : "memory");
    uint32_t ticket;
    asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], 1;"
                 : "=r"(ticket)
                 : "r"(in_block(&tickets, 1))
                 : "memory");
    atomicAdd(&out[32 * gridDim.x / 4], ticket);
    cluster_sync();
    if (cluster_rank() == 0 && threadIdx.x < 32) {
        out[blockIdx.x / 4 * 32 + threadIdx.x] = bins[threadIdx.x];
    }
}

// Every block signals every other one's barrier, and waits for all of them.
extern "C" __global__ void remote_arrivals(uint32_t *out, int size) {
    __shared__ uint32_t box[16];
    __shared__ uint64_t barrier;
    const uint32_t rank = cluster_rank();
    if (threadIdx.x == 0) {
        init(&barrier, size);
        fence_init();
    }
    cluster_sync();
    if (threadIdx.x < size) {
        store_remote(in_block(&box[rank], threadIdx.x), 100 * blockIdx.x + threadIdx.x);
        arrive_remote(in_block(&barrier, threadIdx.x));
    }
    wait_cluster(&barrier, 0);
    if (threadIdx.x < size) {
        out[blockIdx.x * size + threadIdx.x] = box[threadIdx.x];
    }
    cluster_sync();
}

// A bulk copy from shared memory to the next block's, which is told by its own barrier.
extern "C" __global__ void hand_over(float *out, const float *in, int size) {
    __shared__ __align__(128) float mine[256], theirs[256];
    __shared__ uint64_t full;
    const int next = (static_cast<int>(cluster_rank()) + 1) % size;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, sizeof theirs);
    }
    mine[threadIdx.x] = in[256 * blockIdx.x + threadIdx.x] * 2;
    fence_async();
    cluster_sync();
    if (threadIdx.x == 0) {
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                in_block(theirs, next)),
            "r"(shared_address(mine)), "r"(static_cast<int>(sizeof mine)), "r"(in_block(&full, next))
            : "memory");
    }
    wait(&full, 0);
    out[256 * blockIdx.x + threadIdx.x] = theirs[255 - threadIdx.x];
    cluster_sync();
}

// Each block of a pair loads half of a tile for both.
extern "C" __global__ void multicast_halves(uint4 *out, const __grid_constant__ TensorMap map) {
    __shared__ __align__(1024) uint4 tile[2][256];
    __shared__ uint64_t full;
    const int rank = static_cast<int>(cluster_rank());
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, sizeof tile);
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        tensor_load_multicast(tile[rank], &map, &full, 64 * rank, 32 * static_cast<int>(blockIdx.x / 2), 3);
    }
    wait(&full, 0);
    for (int i = threadIdx.x; i < 512; i += blockDim.x) {
        out[512 * blockIdx.x + i] = tile[i / 256][i % 256];
    }
    cluster_sync();
}

// A bulk copy to some blocks of a cluster: those of odd rank.
extern "C" __global__ void multicast_odd(float *out, const float *in, int mask) {
    __shared__ __align__(128) float tile[256];
    __shared__ uint64_t full;
    const int rank = static_cast<int>(cluster_rank());
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        if (mask >> rank & 1) {
            arrive_expect(&full, sizeof tile);
        }
    }
    tile[threadIdx.x] = -1;
    fence_async();
    cluster_sync();
    if (rank == 0 && threadIdx.x == 0) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
            "[%3], %4;" ::"r"(shared_address(tile)),
            "l"(in + blockIdx.x * 64), "r"(static_cast<int>(sizeof tile)), "r"(shared_address(&full)),
            "h"(static_cast<short>(mask))
            : "memory");
    }
    if (mask >> rank & 1) {
        wait(&full, 0);
    }
    out[256 * blockIdx.x + threadIdx.x] = tile[threadIdx.x];
    cluster_sync();
}

// A ring of two stages in each block of a pair: both load halves for both, and both must have emptied a stage.
extern "C" __global__ void __launch_bounds__(96) multicast_ring(float *out, const __grid_constant__ TensorMap map,
                                                                int tiles) {
    __shared__ __align__(128) float stage[2][2][32];
    __shared__ uint64_t full[2], empty[2];
    const int rank = static_cast<int>(cluster_rank());
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            init(&full[i], 1);
            init(&empty[i], 4);  // two warps here, two there
        }
        fence_init();
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        for (int i = 0; i < tiles; ++i) {
            wait_cluster(&empty[i % 2], i / 2 % 2 ^ 1);
            arrive_expect(&full[i % 2], sizeof stage[0]);
            tensor_load_multicast(stage[i % 2][rank], &map, &full[i % 2], 32 * rank, i, 3);
        }
    } else if (threadIdx.x >= 32) {
        const int mine = threadIdx.x - 32;
        float sum = 0;
        for (int i = 0; i < tiles; ++i) {
            wait(&full[i % 2], i / 2 % 2);
            sum = 2 * sum + stage[i % 2][mine / 32][mine % 32] * (rank + 1);
            __syncwarp();
            if (threadIdx.x % 32 < 2) {
                arrive_remote(in_block(&empty[i % 2], threadIdx.x % 32));
            }
        }
        out[64 * blockIdx.x + mine] = sum;
    }
    __syncwarp();
    cluster_sync();
}

// Remote arrival that announces bytes, and bytes that a peer copies: both from the other block.
extern "C" __global__ void __cluster_dims__(2, 1, 1) announced(float *out) {
    __shared__ __align__(128) float mine[64], theirs[64];
    __shared__ uint64_t full;
    const int other = 1 - static_cast<int>(cluster_rank());
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
    }
    mine[threadIdx.x] = 10 * blockIdx.x + threadIdx.x;
    fence_async();
    cluster_sync();
    if (threadIdx.x == 0) {
        arrive_expect_remote(in_block(&full, other), sizeof mine);
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                in_block(theirs, other)),
            "r"(shared_address(mine)), "r"(static_cast<int>(sizeof mine)), "r"(in_block(&full, other))
            : "memory");
    }
    wait_cluster(&full, 0);
    out[64 * blockIdx.x + threadIdx.x] = theirs[threadIdx.x];
    cluster_sync();
}
