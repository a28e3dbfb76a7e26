// What it is: warps whose parts do not fit together: registers, named barriers, blocks of a cluster.
// Why: each of these hangs on a GPU, or is right by luck.
// BROKEN marks the instruction that is reported. FIXED = true is the same kernel done right.
// Run: pytest tests/broken/hopper

#include "../../../../emulator/tests/hopper_programs/kernels/copies.cuh"
#include "../../kernels/pair.cuh"

template <bool FIXED>
__global__ void __launch_bounds__(256, 1) one_warp_gives(int *out) {
    if (threadIdx.x < (FIXED ? 128 : 32)) {
        fewer_registers<24>();  // BROKEN one_warp_gives
    } else if (threadIdx.x >= 128) {
        more_registers<240>();
    }
    out[threadIdx.x] = threadIdx.x;
}
PAIR(one_warp_gives);

// 168 registers for each of 384 threads at the launch: 240 for two warpgroups are more than there are.
template <bool FIXED>
__global__ void __launch_bounds__(384, 1) nobody_gives(int *out) {
    if (threadIdx.x < 128) {
        if (FIXED) {
            fewer_registers<24>();
        }
    } else {
        more_registers<240>();  // BROKEN nobody_gives
    }
    out[threadIdx.x] = threadIdx.x;
}
PAIR(nobody_gives);

// Two pairs of warps hand a row over, each at a barrier of its own; with one number for both they meet by chance.
template <bool FIXED>
__global__ void barrier_shared(int *out) {
    __shared__ int row[2][32];
    const int pair = threadIdx.x / 64, lane = threadIdx.x % 32, number = FIXED ? 1 + pair : 1;
    if (threadIdx.x % 64 < 32) {
        row[pair][lane] = 100 * pair + lane;
        barrier_arrive(number, 64);
    } else {
        barrier_sync(number, 64);
        out[32 * pair + lane] = row[pair][31 - lane];  // BROKEN barrier_shared
    }
}
PAIR(barrier_shared);

template <bool FIXED>
__global__ void two_counts(int *out) {
    __shared__ int row[32];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        row[lane] = lane;
        barrier_arrive(1, 64);  // BROKEN two_counts
    } else {
        barrier_sync(1, FIXED ? 64 : 96);  // BROKEN two_counts
        out[lane] = row[31 - lane];
    }
}
PAIR(two_counts);

// The peer's memory is read when the peer has left.
template <bool FIXED>
__global__ void peer_has_left(uint32_t *out) {
    __shared__ uint32_t mine[32];
    mine[threadIdx.x] = 100 * blockIdx.x + threadIdx.x;
    cluster_sync();
    if (blockIdx.x == 0) {
        uint32_t value = 0;
        for (int i = 0; i < 4; ++i) {
            value += load_remote(in_block(&mine[(threadIdx.x + i) % 32], 1));  // BROKEN peer_has_left
        }
        out[threadIdx.x] = value;
    }
    if (FIXED) {
        cluster_sync();
    }
}
PAIR(peer_has_left);

// What a peer writes is read without anything between.
template <bool FIXED>
__global__ void remote_race(uint32_t *out) {
    __shared__ uint32_t mine[32];
    mine[threadIdx.x] = 0;
    cluster_sync();
    store_remote(in_block(&mine[threadIdx.x], 1 - blockIdx.x), 100 * blockIdx.x + threadIdx.x);  // BROKEN remote_race
    if (FIXED) {
        cluster_sync();
    }
    out[32 * blockIdx.x + threadIdx.x] = mine[threadIdx.x];  // BROKEN remote_race
    cluster_sync();
}
PAIR(remote_race);

template <bool FIXED>
__global__ void no_such_block(float *out, const float *in) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, sizeof tile);
    }
    cluster_sync();
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        const short mask = FIXED ? 3 : 7;
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 256, "
            "[%2], %3;" ::"r"(shared_address(tile)),
            "l"(in), "r"(shared_address(&full)), "h"(mask)  // BROKEN no_such_block
            : "memory");
    }
    wait(&full, 0);
    out[64 * blockIdx.x + threadIdx.x] = tile[threadIdx.x];
    cluster_sync();
}
PAIR(no_such_block);

// Both blocks load for both, but each gives a stage back at home only.
template <bool FIXED>
__global__ void given_back_at_home(float *out, const float *in, int tiles) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t full, empty;
    if (threadIdx.x == 0) {
        init(&full, 1);
        init(&empty, 2);
        fence_init();
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        for (int i = 0; i < tiles; ++i) {
            wait_cluster(&empty, i % 2 ^ 1);  // BROKEN given_back_at_home
            arrive_expect(&full, sizeof tile);
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 128, "
                "[%2], %3;" ::"r"(shared_address(tile + 32 * cluster_rank())),
                "l"(in + 64 * i + 32 * cluster_rank()), "r"(shared_address(&full)), "h"(static_cast<short>(3))
                : "memory");
        }
    } else if (threadIdx.x >= 32) {
        float sum = 0;
        for (int i = 0; i < tiles; ++i) {
            wait(&full, i % 2);  // BROKEN given_back_at_home
            sum += tile[threadIdx.x - 32] + tile[threadIdx.x];
            __syncwarp();
            if (threadIdx.x % 32 < (FIXED ? 2 : 1)) {
                arrive_remote(in_block(&empty, FIXED ? threadIdx.x % 32 : blockIdx.x));
            }
        }
        out[32 * blockIdx.x + threadIdx.x - 32] = sum;
    }
    __syncwarp();
    cluster_sync();
}
PAIR(given_back_at_home);

// A peer arrives before the barrier is there.
template <bool FIXED>
__global__ void arrives_too_soon(uint32_t *out) {
    __shared__ uint64_t barrier;
    if (FIXED || blockIdx.x == 0) {
        if (threadIdx.x == 0) {
            init(&barrier, 1);
            fence_init();
        }
    }
    if (FIXED) {
        cluster_sync();
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        arrive_remote(in_block(&barrier, 1));  // BROKEN arrives_too_soon
    }
    if (!FIXED) {
        cluster_sync();
        if (blockIdx.x == 1 && threadIdx.x == 0) {
            init(&barrier, 1);
        }
        __syncthreads();
    }
    if (blockIdx.x == 1) {
        wait_cluster(&barrier, 0);
        out[threadIdx.x] = 1;
    }
    cluster_sync();
}
PAIR(arrives_too_soon);
