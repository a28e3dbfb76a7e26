// What it is: mbarriers used against their protocol: parity, counts, bytes, initialisation, who gives back when.
// Why: on a GPU most of these hang, or are right until the day when a copy is late.
// BROKEN marks the instruction that is reported. FIXED = true is the same kernel done right.
// Run: pytest tests/broken/hopper

#include "../../../../emulator/tests/hopper_programs/kernels/copies.cuh"
#include "../../kernels/pair.cuh"

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
