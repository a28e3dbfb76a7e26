// What it is: protocols of mbarriers without any copy: phases, states, counts, transactions, threads that leave.
// Why: every asynchronous copy relies on them, and each of their counts can be wrong by one.
// Run: pytest tests/nvcc/test_hopper_programs.py -k barriers

#include "barriers.cuh"

// The first barrier of a block of threads that all arrive.
__device__ inline void begin(uint64_t *barriers, int number, int count) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < number; ++i) {
            init(&barriers[i], count);
        }
    }
    __syncthreads();
}

// Warps hand a value around: phase after phase of one barrier, each thread waits for the state that it got.
extern "C" __global__ void states(int *out, int rounds) {
    __shared__ int values[2][128];
    __shared__ uint64_t barrier;
    begin(&barrier, 1, 128);
    int value = threadIdx.x;
    for (int round = 0; round < rounds; ++round) {
        values[round % 2][threadIdx.x] = value;
        const uint64_t state = arrive(&barrier);
        while (!test_wait(&barrier, state)) {
        }
        value = values[round % 2][(threadIdx.x + 33) % 128] + 1;
    }
    out[threadIdx.x] = value;
}

// Half of the threads produce, half consume, through a buffer of one: two barriers, parities alternate.
extern "C" __global__ void ping_pong(int *out, int rounds) {
    __shared__ int box[64];
    __shared__ uint64_t full, empty;
    begin(&full, 1, 64);
    begin(&empty, 1, 64);
    const int lane = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        for (int round = 0; round < rounds; ++round) {
            wait(&empty, round % 2 ^ 1);
            box[lane] = 100 * round + lane;
            arrive(&full);
        }
    } else {
        int sum = 0;
        for (int round = 0; round < rounds; ++round) {
            wait(&full, round % 2);
            sum = 3 * sum + box[63 - lane];
            arrive(&empty);
        }
        out[lane] = sum;
    }
}

// One thread of each warp arrives for eight; the rest only wait.
extern "C" __global__ void counts(int *out) {
    __shared__ int values[128];
    __shared__ uint64_t barrier;
    begin(&barrier, 1, 32);
    values[threadIdx.x] = 7 * threadIdx.x;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        arrive(&barrier, 8);
    }
    wait(&barrier, 0);
    out[threadIdx.x] = values[127 - threadIdx.x];
}

// What is pending before and after arrivals that complete nothing.
extern "C" __global__ void pending(unsigned *out) {
    __shared__ uint64_t barrier;
    if (threadIdx.x == 0) {
        init(&barrier, 10);
        out[0] = pending_count(arrive_no_complete(&barrier, 3));
        out[1] = pending_count(arrive_no_complete(&barrier, 1));
        out[2] = pending_count(arrive(&barrier, 2));
        out[3] = try_wait(&barrier, 1);  // the phase before the first counts as complete
        const uint64_t last = arrive(&barrier, 4);
        out[4] = pending_count(last);
        out[5] = test_wait(&barrier, last);
        out[6] = pending_count(arrive(&barrier));
        out[7] = try_wait(&barrier, 0);
    }
}

// Warp w takes part in w + 1 rounds and then drops out: later phases count fewer threads.
extern "C" __global__ void leavers(int *out, int warps) {
    __shared__ int total[8];
    __shared__ uint64_t barrier;
    if (threadIdx.x < 8) {
        total[threadIdx.x] = 0;
    }
    begin(&barrier, 1, blockDim.x);
    const int warp = threadIdx.x / 32;
    for (int round = 0; round < warps; ++round) {
        atomicAdd(&total[round], 1);
        if (round == warp) {
            arrive_drop(&barrier);
            break;
        }
        arrive(&barrier);
        wait(&barrier, round % 2);
        out[round * 32 * warps + threadIdx.x] = total[round];
    }
}

// Transactions by hand: what is completed may come before what is expected.
extern "C" __global__ void transactions(int *out, int given) {
    __shared__ int value;
    __shared__ uint64_t barrier;
    begin(&barrier, 1, 2);
    if (threadIdx.x == 0) {
        complete(&barrier, 48);
        arrive_expect(&barrier, 64);
    } else if (threadIdx.x == 32) {
        value = given;
        expect(&barrier, 16);
        arrive(&barrier);
        complete(&barrier, 32);
    }
    wait(&barrier, 0);
    out[threadIdx.x] = value;
}

// The same 8 bytes are a barrier of 64, then data, then a barrier of 32.
extern "C" __global__ void place_again(int *out) {
    __shared__ uint64_t place;
    __shared__ int values[64];
    begin(&place, 1, 64);
    values[threadIdx.x] = threadIdx.x;
    arrive(&place);
    wait(&place, 0);
    int value = values[63 - threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        invalidate(&place);
        place = 1000;
    }
    __syncthreads();
    value += static_cast<int>(place);
    __syncthreads();
    begin(&place, 1, 32);
    if (threadIdx.x >= 32) {
        values[threadIdx.x] = value;
        arrive(&place);
    } else {
        wait(&place, 0);
        value = values[threadIdx.x + 32];
    }
    out[threadIdx.x] = value;
}

// Copies of sixteen bytes (cp.async) arrive at a barrier when they have landed.
extern "C" __global__ void small_copies(float *out, const float *in, int tiles) {
    __shared__ __align__(16) float tile[2][256];
    __shared__ uint64_t full[2];
    begin(full, 2, 64);
    const int i = threadIdx.x;
    float sum = 0;
    for (int t = 0; t <= tiles; ++t) {
        if (t < tiles) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_address(&tile[t % 2][4 * i])),
                         "l"(in + 256 * t + 4 * i)
                         : "memory");
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&full[t % 2]))
                         : "memory");
        }
        if (t > 0) {
            wait(&full[(t - 1) % 2], (t - 1) / 2 % 2);
            sum = 2 * sum + tile[(t - 1) % 2][255 - i];
            __syncthreads();
        }
    }
    out[i] = sum;
}

// A wait with a time limit, and short sleeps between tests: neither changes what is waited for.
extern "C" __global__ void patience(int *out, int given) {
    __shared__ int value;
    __shared__ uint64_t barrier;
    begin(&barrier, 1, 1);
    if (threadIdx.x == 96) {
        __nanosleep(2000);
        value = given;
        arrive(&barrier);
    }
    __syncwarp();
    uint32_t done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0, 500; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(&barrier))
                     : "memory");
        __nanosleep(20);
    }
    out[threadIdx.x] = value;
}
