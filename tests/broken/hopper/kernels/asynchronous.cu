// What it is: mbarriers, bulk copies, tensor copies and warps with roles, each used against its protocol.
// BROKEN marks the instruction that is reported. FIXED = true is the same kernel done right.
// Run: pytest tests/broken/test_hopper.py

#include "../../../../emulator/tests/hopper_programs/kernels/copies.cuh"
#include "../../kernels/pair.cuh"

// Mbarriers used against their protocol: parity, counts, bytes, initialisation, who gives back when.
// On a GPU most of these hang, or are right until the day when a copy is late.

// Warp 0 fills a box, warp 1 reads it: what most kernels below have in common.
struct Box {
    float tile[64];
    uint64_t full, empty;
};

__device__ inline void begin(Box &box, int full, int empty) {
    if (threadIdx.x == 0) {
        init(&box.full, full);
        init(&box.empty, empty);
        fence_init();
    }
    __syncthreads();
}

template <bool FIXED>
__global__ void wrong_parity(float *out) {
    __shared__ Box box;
    begin(box, 32, 32);
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        box.tile[lane] = lane;
        arrive(&box.full);
    } else {
        wait(&box.full, FIXED ? 0 : 1);   // the phase before the first counts as complete
        out[lane] = box.tile[31 - lane];  // BROKEN wrong_parity
    }
}
PAIR(wrong_parity);

template <bool FIXED>
__global__ void waits_for_itself(float *out, int rounds) {
    __shared__ Box box;
    begin(box, 32, 32);
    const int lane = threadIdx.x % 32;
    float sum = 0;
    for (int round = 0; round < rounds; ++round) {
        if (threadIdx.x < 32) {
            wait(&box.empty, FIXED ? round % 2 ^ 1 : round % 2);  // BROKEN waits_for_itself
            box.tile[lane] = round + lane;
            arrive(&box.full);
        } else {
            wait(&box.full, round % 2);
            sum += box.tile[31 - lane];
            arrive(&box.empty);
        }
    }
    if (threadIdx.x >= 32) {
        out[lane] = sum;
    }
}
PAIR(waits_for_itself);

template <bool FIXED>
__global__ void count_too_high(float *out) {
    __shared__ Box box;
    begin(box, FIXED ? 32 : 33, 32);
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        box.tile[lane] = lane;
        arrive(&box.full);
    } else {
        wait(&box.full, 0);  // BROKEN count_too_high
        out[lane] = box.tile[31 - lane];
    }
}
PAIR(count_too_high);

// The last warp's arrival belongs to the next phase: nobody waits for what it wrote.
template <bool FIXED>
__global__ void count_too_low(float *out) {
    __shared__ float tile[96];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, FIXED ? 3 : 2);
    }
    __syncthreads();
    if (threadIdx.x < 96) {
        tile[threadIdx.x] = threadIdx.x;
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            arrive(&full);
        }
    } else {
        const int lane = threadIdx.x % 32;
        wait(&full, 0);
        out[lane] = tile[lane] + tile[32 + lane] + tile[64 + lane];  // BROKEN count_too_low
    }
}
PAIR(count_too_low);

// One thread loads a tile of 256 bytes and expects so many.
template <bool FIXED, int EXPECTED>
__device__ inline void load_expecting(float *out, const float *in) {
    __shared__ __align__(128) Box box;
    begin(box, 1, 1);
    if (threadIdx.x == 0) {
        if (FIXED || EXPECTED > 0) {
            arrive_expect(&box.full, FIXED ? 256 : EXPECTED);
        } else {
            arrive(&box.full);
        }
        bulk_load(box.tile, in, 256, &box.full);
    }
    wait(&box.full, 0);
    out[threadIdx.x] = box.tile[63 - threadIdx.x];
}

template <bool FIXED>
__global__ void expects_too_little(float *out, const float *in) {
    load_expecting<FIXED, 128>(out, in);  // BROKEN expects_too_little
}
PAIR(expects_too_little);

template <bool FIXED>
__global__ void expects_too_much(float *out, const float *in) {
    load_expecting<FIXED, 272>(out, in);  // BROKEN expects_too_much
}
PAIR(expects_too_much);

template <bool FIXED>
__global__ void expects_nothing(float *out, const float *in) {
    load_expecting<FIXED, 0>(out, in);  // BROKEN expects_nothing
}
PAIR(expects_nothing);

template <bool FIXED>
__global__ void not_initialised(float *out, const float *in) {
    __shared__ __align__(128) Box box;
    if (threadIdx.x == 0) {
        if (FIXED) {
            init(&box.full, 1);
            fence_init();
        }
        arrive_expect(&box.full, 256);  // BROKEN not_initialised
        bulk_load(box.tile, in, 256, &box.full);
    }
    __syncthreads();
    wait(&box.full, 0);
    out[threadIdx.x] = box.tile[threadIdx.x];
}
PAIR(not_initialised);

// Room for 64 floats, of which the last two are a barrier's bytes.
template <bool FIXED>
__global__ void overwritten(float *out) {
    __shared__ __align__(8) float place[68];
    uint64_t *full = reinterpret_cast<uint64_t *>(&place[64]);
    if (threadIdx.x == 0) {
        init(full, 64);
    }
    __syncthreads();
    place[FIXED ? threadIdx.x : threadIdx.x + 4] = threadIdx.x;  // BROKEN overwritten
    arrive(full);
    wait(full, 0);
    out[threadIdx.x] = place[FIXED ? 63 - threadIdx.x : 67 - threadIdx.x];
}
PAIR(overwritten);

template <bool FIXED>
__global__ void never_given_back(float *out, const float *in, int tiles) {
    __shared__ __align__(128) Box box;
    begin(box, 1, 32);
    float sum = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < tiles; ++i) {
            wait(&box.empty, i % 2 ^ 1);  // BROKEN never_given_back
            arrive_expect(&box.full, 256);
            bulk_load(box.tile, in + 64 * i, 256, &box.full);
        }
    } else if (threadIdx.x >= 32) {
        for (int i = 0; i < tiles; ++i) {
            wait(&box.full, i % 2);  // BROKEN never_given_back
            sum += box.tile[2 * (threadIdx.x - 32)];
            if (FIXED) {
                arrive(&box.empty);
            }
        }
        out[threadIdx.x - 32] = sum;
    }
}
PAIR(never_given_back);

template <bool FIXED>
__global__ void given_back_too_early(float *out, const float *in, int tiles) {
    __shared__ __align__(128) Box box;
    begin(box, 1, 32);
    float sum = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < tiles; ++i) {
            wait(&box.empty, i % 2 ^ 1);
            arrive_expect(&box.full, 256);
            bulk_load(box.tile, in + 64 * i, 256, &box.full);  // BROKEN given_back_too_early
        }
    } else if (threadIdx.x >= 32) {
        for (int i = 0; i < tiles; ++i) {
            wait(&box.full, i % 2);
            if (!FIXED) {
                arrive(&box.empty);
            }
            sum += box.tile[2 * (threadIdx.x - 32)];  // BROKEN given_back_too_early
            if (FIXED) {
                arrive(&box.empty);
            }
        }
        out[threadIdx.x - 32] = sum;
    }
}
PAIR(given_back_too_early);

// Bulk copies and tensor copies without what makes them safe: fences, waits, alignment, a map.
// The async proxy reads late and writes late; here it does so as late as the program allows.

template <bool FIXED>
__global__ void no_proxy_fence(float *out) {
    __shared__ __align__(128) float tile[64];
    tile[threadIdx.x] = threadIdx.x;
    if (FIXED) {
        fence_async();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out, tile, sizeof tile);  // BROKEN no_proxy_fence
        commit_stores();
        wait_stores<0>();
    }
}
PAIR(no_proxy_fence);

template <bool FIXED>
__global__ void no_barrier_after_fence(float *out) {
    __shared__ __align__(128) float tile[64];
    tile[threadIdx.x] = threadIdx.x;
    fence_async();
    if (FIXED) {
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        bulk_store(out, tile, sizeof tile);  // BROKEN no_barrier_after_fence
        commit_stores();
        wait_stores<0>();
    }
}
PAIR(no_barrier_after_fence);

template <bool FIXED>
__global__ void source_overwritten(float *out, int rounds) {
    __shared__ __align__(128) float tile[64];
    for (int i = 0; i < rounds; ++i) {
        tile[threadIdx.x] = 100 * i + threadIdx.x;  // BROKEN source_overwritten
        fence_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_store(out + 64 * i, tile, sizeof tile);
            commit_stores();
            if (FIXED) {
                wait_reads<0>();
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        wait_stores<0>();
    }
}
PAIR(source_overwritten);

template <bool FIXED>
__global__ void one_group_too_many(float *out, int rounds) {
    __shared__ __align__(128) float tile[2][64];
    for (int i = 0; i < rounds; ++i) {
        if (threadIdx.x == 0) {
            if (FIXED) {
                wait_reads<1>();
            } else {
                wait_reads<2>();  // of two buffers
            }
        }
        __syncthreads();
        tile[i % 2][threadIdx.x] = 100 * i + threadIdx.x;  // BROKEN one_group_too_many
        fence_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_store(out + 64 * i, tile[i % 2], sizeof tile[0]);
            commit_stores();
        }
    }
    if (threadIdx.x == 0) {
        wait_stores<0>();
    }
}
PAIR(one_group_too_many);

// The block's memory is gone before the copy has read it.
template <bool FIXED>
__global__ void exits_before_reading(float *out) {
    __shared__ __align__(128) float tile[64];
    tile[threadIdx.x] = threadIdx.x;
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out, tile, sizeof tile);  // BROKEN exits_before_reading
        commit_stores();
        if (FIXED) {
            wait_stores<0>();
        }
    }
}
PAIR(exits_before_reading);

template <bool FIXED>
__global__ void read_before_it_landed(float *out, const float *in) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t full;
    tile[threadIdx.x] = -1;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        arrive_expect(&full, sizeof tile);
        bulk_load(tile, in, sizeof tile, &full);
    }
    if (FIXED) {
        wait(&full, 0);
    }
    out[threadIdx.x] = tile[63 - threadIdx.x];  // BROKEN read_before_it_landed
    wait(&full, 0);
}
PAIR(read_before_it_landed);

template <bool FIXED>
__global__ void misaligned_tile(float *out, const float *in) {
    __shared__ __align__(128) float tile[72];
    __shared__ uint64_t full;
    float *begin = tile + (FIXED ? 4 : 2);
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, 256);
        bulk_load(begin, in, 256, &full);  // BROKEN misaligned_tile
    }
    __syncthreads();
    wait(&full, 0);
    out[threadIdx.x] = begin[threadIdx.x];
}
PAIR(misaligned_tile);

template <bool FIXED>
__global__ void odd_size(float *out, const float *in) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t full;
    const int bytes = FIXED ? 256 : 250;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, bytes);
        bulk_load(tile, in, bytes, &full);  // BROKEN odd_size
    }
    __syncthreads();
    wait(&full, 0);
    out[threadIdx.x] = tile[threadIdx.x];
}
PAIR(odd_size);

// 128 bytes of numbers in the place of a map.
template <bool FIXED>
__global__ void no_map(float *out, const __grid_constant__ TensorMap map, const TensorMap *other) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, sizeof tile);
        tensor_load(tile, FIXED ? &map : other, &full, 0);  // BROKEN no_map
    }
    __syncthreads();
    wait(&full, 0);
    out[threadIdx.x] = tile[threadIdx.x];
}
PAIR(no_map);

template <bool FIXED>
__global__ void another_rank(float *out, const __grid_constant__ TensorMap map) {
    __shared__ __align__(128) float tile[64];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, sizeof tile);
        if (FIXED) {
            tensor_load(tile, &map, &full, 0);
        } else {
            tensor_load(tile, &map, &full, 0, 0);  // BROKEN another_rank
        }
    }
    __syncthreads();
    wait(&full, 0);
    out[threadIdx.x] = tile[threadIdx.x];
}
PAIR(another_rank);

// A tile with 128-byte swizzle begins where the pattern does not.
template <bool FIXED>
__global__ void swizzle_misplaced(float *out, const __grid_constant__ TensorMap map) {
    __shared__ __align__(1024) float tile[32 * 12];
    __shared__ uint64_t full;
    float *begin = tile + (FIXED ? 0 : 32);
    if (threadIdx.x == 0) {
        init(&full, 1);
        fence_init();
        arrive_expect(&full, 1024);
        tensor_load(begin, &map, &full, 0, 0);  // BROKEN swizzle_misplaced
    }
    __syncthreads();
    wait(&full, 0);
    const int row = threadIdx.x / 8, unit = threadIdx.x % 8;
    out[threadIdx.x] = begin[32 * row + 4 * (unit ^ row)];
}
PAIR(swizzle_misplaced);

// Two blocks store boxes that share a row.
template <bool FIXED>
__global__ void overlapping_stores(const __grid_constant__ TensorMap map) {
    __shared__ __align__(128) float tile[64];
    tile[threadIdx.x] = 100 * (blockIdx.x + 1) + threadIdx.x;
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        tensor_store(&map, tile, 0, (FIXED ? 4 : 3) * static_cast<int>(blockIdx.x));  // BROKEN overlapping_stores
        commit_stores();
        wait_stores<0>();
    }
}
PAIR(overlapping_stores);

// Warps whose parts do not fit together: registers, named barriers, blocks of a cluster.
// Each of these hangs on a GPU, or is right by luck.

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
