// Reductions, scans, votes and atomics, as CUDA programs usually write them: what nvcc makes of them must run on the
// emulator without a change. One kernel per idiom; reductions.py holds the launches and the NumPy references.
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

constexpr unsigned full = 0xffffffffu;

// Sum of each warp's values: in: [threads of the grid], out: [warps of the grid].
extern "C" __global__ void warp_sum(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = i < n ? in[i] : 0.0f;
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        sum += __shfl_down_sync(full, sum, offset);
    }
    if (threadIdx.x % 32 == 0) {
        out[i / 32] = sum;
    }
}

// Inclusive scan within each warp, of 64-bit integers.
extern "C" __global__ void warp_scan(const long long *in, long long *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    long long value = in[i];
    for (int distance = 1; distance < 32; distance *= 2) {
        long long before = __shfl_up_sync(full, value, distance);
        if ((threadIdx.x & 31) >= distance) {
            value += before;
        }
    }
    out[i] = value;
}

// Sum over the grid: grid-stride loop, tree in shared memory, one atomic per block.
extern "C" __global__ void block_sum(const double *in, double *total, int n) {
    __shared__ double partial[256];
    double sum = 0.0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += in[i];
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int stride = blockDim.x / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            partial[threadIdx.x] += partial[threadIdx.x + stride];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        atomicAdd(total, partial[0]);
    }
}

// The last warp of the tree without barriers: volatile shared memory and __syncwarp.
extern "C" __global__ void volatile_max(const int *in, int *out) {
    __shared__ volatile int best[64];
    int lane = threadIdx.x;
    best[lane] = in[blockIdx.x * 64 + lane];
    __syncthreads();
    if (lane < 32) {
        for (int stride = 32; stride > 0; stride /= 2) {
            int other = best[lane + stride % 64];
            __syncwarp();
            best[lane] = max(best[lane], other);
            __syncwarp();
        }
        if (lane == 0) {
            out[blockIdx.x] = best[0];
        }
    }
}

// Exclusive prefix sum of a block, work-efficient (Blelloch), in dynamic shared memory.
extern "C" __global__ void block_scan(const unsigned *in, unsigned *out, int n) {
    extern __shared__ unsigned tree[];
    int t = threadIdx.x, offset = 1;
    tree[2 * t] = in[2 * t];
    tree[2 * t + 1] = in[2 * t + 1];
    for (int d = n / 2; d > 0; d /= 2) {
        __syncthreads();
        if (t < d) {
            tree[offset * (2 * t + 2) - 1] += tree[offset * (2 * t + 1) - 1];
        }
        offset *= 2;
    }
    if (t == 0) {
        tree[n - 1] = 0;
    }
    for (int d = 1; d < n; d *= 2) {
        offset /= 2;
        __syncthreads();
        if (t < d) {
            int left = offset * (2 * t + 1) - 1, right = offset * (2 * t + 2) - 1;
            unsigned kept = tree[left];
            tree[left] = tree[right];
            tree[right] += kept;
        }
    }
    __syncthreads();
    out[2 * t] = tree[2 * t];
    out[2 * t + 1] = tree[2 * t + 1];
}

// Counts of bytes: private bins in shared memory, then one atomic per bin.
extern "C" __global__ void histogram(const unsigned char *in, unsigned *bins, int n) {
    __shared__ unsigned mine[256];
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) {
        mine[bin] = 0;
    }
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicAdd(&mine[in[i]], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) {
        if (mine[bin]) {
            atomicAdd(&bins[bin], mine[bin]);
        }
    }
}

// Maximum of floats by compare-and-swap; most threads give up at once. The first look is volatile: a plain read of a
// word that other threads update atomically is a data race, as common as it is (`maximum_racy`).
template <bool racy>
__device__ void atomic_max(float *address, float value) {
    int *bits = reinterpret_cast<int *>(address);
    int old, assumed;
    if constexpr (racy) {
        old = *bits;
    } else {
        old = *reinterpret_cast<volatile int *>(bits);
    }
    while (__int_as_float(old) < value) {
        assumed = old;
        old = atomicCAS(bits, assumed, __float_as_int(value));
        if (old == assumed) {
            break;
        }
    }
}

extern "C" __global__ void maximum(const float *in, float *best, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    atomic_max<false>(best, in[i]);
}

extern "C" __global__ void maximum_racy(const float *in, float *best) {
    atomic_max<true>(best, in[blockIdx.x * blockDim.x + threadIdx.x]);
}

// Every kind of read-modify-write on integers, the order of which does not matter.
extern "C" __global__ void atomics(const int *in, int *out, unsigned long long *wide) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicMin(&out[0], in[i]);
    atomicMax(&out[1], in[i]);
    atomicAnd(&out[2], in[i] | 0xf0f0);
    atomicOr(&out[3], in[i] & 0x0f0f);
    atomicXor(&out[4], in[i]);
    atomicSub(&out[5], in[i]);
    atomicInc(reinterpret_cast<unsigned *>(&out[6]), 1000);
    atomicAdd(&wide[i % 3], (unsigned long long)in[i] << 8);
}

// Votes of a block and of a warp; threads with equal keys find each other.
extern "C" __global__ void votes(const int *in, int *out) {
    int value = in[threadIdx.x];
    int positive = __syncthreads_count(value > 0);
    int all = __syncthreads_and(value > -100);
    int any = __syncthreads_or(value > 1000);
    unsigned odd = __ballot_sync(full, value & 1);
    unsigned same = __match_any_sync(full, value & 3);
    int leader = __ffs(same) - 1;
    int shared = __shfl_sync(full, value, leader);
    int warp_sum = __reduce_add_sync(full, value);
    int *row = out + 8 * threadIdx.x;
    row[0] = positive;
    row[1] = all;
    row[2] = any;
    row[3] = (int)odd;
    row[4] = (int)same;
    row[5] = shared;
    row[6] = warp_sum + __any_sync(full, value == 7);
    row[7] = __popc(__activemask());
}

// Cooperative groups: sums of tiles of 8 threads, and a coalesced group that takes one atomic together.
extern "C" __global__ void tiles(const int *in, int *sums, int *counter) {
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int rank = blockIdx.x * block.size() + block.thread_rank();
    int sum = in[rank];
    for (int i = tile.size() / 2; i > 0; i /= 2) {
        sum += tile.shfl_xor(sum, i);
    }
    if (tile.thread_rank() == 0) {
        sums[rank / 8] = sum;
    }
    block.sync();
    if (in[rank] > 0) {
        cg::coalesced_group active = cg::coalesced_threads();
        if (active.thread_rank() == 0) {
            atomicAdd(counter, (int)active.size());
        }
    }
}

// Two halves of a block hand numbers over with named barriers: producers arrive, consumers wait.
extern "C" __global__ void named_barriers(const int *in, int *out) {
    __shared__ int box[64];
    int t = threadIdx.x;
    if (t < 64) {
        box[t] = in[t] * 3;
        __threadfence_block();
        asm volatile("bar.arrive 1, 128;" ::: "memory");
        asm volatile("bar.sync 2, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 128;" ::: "memory");
        out[t - 64] = box[127 - t];
    }
}

// Sum of a block of eight warps as everybody writes it: the first warp adds the warps' sums with shuffles among eight
// lanes, of which the upper ones read lanes that take no part; their sums are not used.
extern "C" __global__ void block_reduction(const float *in, float *out) {
    __shared__ float partial[8];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    float sum = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(full, sum, offset);
    }
    if (lane == 0) {
        partial[warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 8) {
        sum = partial[lane];
        for (int offset = 4; offset > 0; offset /= 2) {
            sum += __shfl_down_sync(0xff, sum, offset);
        }
        if (threadIdx.x == 0) {
            out[blockIdx.x] = sum;
        }
    }
}

// The maximum and where it stands, both in one 64-bit key.
extern "C" __global__ void block_maximum(const int *in, int *out) {
    __shared__ long long best[8];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    long long key = (static_cast<long long>(in[threadIdx.x]) << 32) + threadIdx.x;
    for (int offset = 16; offset > 0; offset /= 2) {
        key = max(key, __shfl_down_sync(full, key, offset));
    }
    if (lane == 0) {
        best[warp] = key;
    }
    __syncthreads();
    if (warp == 0 && lane < 8) {
        key = best[lane];
        for (int offset = 4; offset > 0; offset /= 2) {
            key = max(key, __shfl_down_sync(0xff, key, offset));
        }
        if (lane == 0) {
            out[0] = key >> 32;
            out[1] = key & 0xffffffff;
        }
    }
}
