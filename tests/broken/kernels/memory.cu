// What it is: kernels that leave a buffer, read what nobody wrote, or use a value that nobody defined.
// The emulator names the first thread, the address, the buffer and the line marked BROKEN.
// FIXED = true is the same kernel done right. Run: pytest tests/broken

#include "pair.cuh"

// Kernels that leave a buffer, or address it at a place where the hardware cannot.
// The emulator has to name the first thread, the address, the buffer and the line marked BROKEN.

// The guard lets thread n through. A GPU reads padding or the next allocation and says nothing.
template <bool FIXED>
__global__ void read_past_end(float *out, const float *in, int n) {
    const int i = threadIdx.x;
    if (FIXED ? i < n : i <= n) {
        out[i] = 2 * in[i];  // BROKEN read_past_end
    }
}
PAIR(read_past_end);

// Thread 0 has no left neighbour. A GPU reads what lies before the buffer.
template <bool FIXED>
__global__ void negative_index(float *out, const float *in) {
    const int i = threadIdx.x;
    const int left = FIXED ? max(i - 1, 0) : i - 1;
    out[i] = in[left];  // BROKEN negative_index
}
PAIR(negative_index);

// An index whose bits are those of a float: 1.0f is index 0x3f800000, 4 GB away. A GPU faults, or reads another tensor.
template <bool FIXED>
__global__ void far_away(float *out, const float *in, const float *where) {
    const int i = threadIdx.x;
    const int from = FIXED ? __float2int_rn(where[i]) : __float_as_int(where[i]);
    out[i] = in[from];  // BROKEN far_away
}
PAIR(far_away);

// One block too many: row 1 of a matrix with one row. Where a 512-byte buffer follows, a GPU reads exactly that one.
template <bool FIXED>
__global__ void neighbours_buffer(float *out, const float *first, const float *second, int rows) {
    const int row = FIXED ? min(int(blockIdx.x), rows - 1) : int(blockIdx.x);
    const int i = row * blockDim.x + threadIdx.x;
    const float value = first[i];  // BROKEN neighbours_buffer
    out[blockIdx.x * blockDim.x + threadIdx.x] = value + second[threadIdx.x];
}
PAIR(neighbours_buffer);

// A 16-byte load four bytes into the buffer: a GPU stops with "misaligned address", naming no line.
template <bool FIXED>
__global__ void misaligned_global(float4 *out, const float *in) {
    const float *begin = in + (FIXED ? 4 : 1);
    out[threadIdx.x] = reinterpret_cast<const float4 *>(begin)[threadIdx.x];  // BROKEN misaligned_global
}
PAIR(misaligned_global);

// The last thread reads past the tile. A GPU reads another shared variable, or faults past the block's window.
template <bool FIXED>
__global__ void shared_static(float *out, const float *in) {
    __shared__ float tile[64];
    const int i = threadIdx.x;
    tile[i] = in[i];
    __syncthreads();
    out[i] = tile[FIXED ? (i + 1) % 64 : i + 1];  // BROKEN shared_static
}
PAIR(shared_static);

// The launch gave fewer bytes than the kernel uses: no compiler can know.
template <bool FIXED>
__global__ void shared_dynamic(float *out, const float *in, int floats) {
    extern __shared__ float pool[];
    const int i = threadIdx.x;
    if (!FIXED || i < floats) {
        pool[i] = in[i];  // BROKEN shared_dynamic
    }
    __syncthreads();
    out[i] = pool[i % floats];
}
PAIR(shared_dynamic);

// An array of the thread's own, indexed past its end. A GPU overwrites the thread's other variables.
template <bool FIXED>
__global__ void local_index(int *out, const int *counts) {
    int history[8];
    const int n = FIXED ? min(counts[threadIdx.x], 8) : counts[threadIdx.x];
#pragma unroll 1
    for (int k = 0; k < n; ++k) {
        history[k] = k * k;  // BROKEN local_index
    }
    int sum = 0;
#pragma unroll 1
    for (int k = 0; k < min(n, 8); ++k) {
        sum += history[k];
    }
    out[threadIdx.x] = sum;
}
PAIR(local_index);

// Kernels that read what nobody wrote.
// A GPU returns what an earlier kernel left there, often the right numbers of the previous launch.

// Half of the tile is filled, all of it is read.
template <bool FIXED>
__global__ void half_filled_tile(float *out, const float *in) {
    __shared__ float tile[64];
    const int i = threadIdx.x;
    if (FIXED || i < 32) {
        tile[i] = in[i];
    }
    __syncthreads();
    out[i] = tile[63 - i];  // BROKEN half_filled_tile
}
PAIR(half_filled_tile);

// A thread's own array, of which `n` elements are set. No error: the others read as all bits set, -1 or NaN.
template <bool FIXED>
__global__ void local_hole(int *out, const int *pick, int n) {
    int table[8];
#pragma unroll 1
    for (int k = 0; k < (FIXED ? 8 : n); ++k) {
        table[k] = 100 + k;
    }
    out[threadIdx.x] = table[pick[threadIdx.x] & 7];  // BROKEN local_hole
}
PAIR(local_hole);

// Kernels in which a value that a shuffle read from a lane outside its mask decides something.
// A GPU gives some number, often the one that was meant. Sums over eight lanes always compute such values in their
// upper lanes, so it is their use that is wrong.

constexpr unsigned EIGHT = 0xff;

// Sums of eight lanes: only lane 0's is one, the other lanes have added what nobody defined.
template <bool FIXED>
__global__ void partial_sums(float *out, const float *in) {
    const int i = threadIdx.x;
    if (i < 8) {
        float sum = in[i];
        for (int offset = 4; offset > 0; offset /= 2) {
            sum += __shfl_down_sync(EIGHT, sum, offset);
        }
        if (!FIXED || i == 0) {
            out[i] = sum;  // BROKEN partial_sums
        }
    }
}
PAIR(partial_sums);

// It chooses an element.
template <bool FIXED>
__global__ void chosen_by_nobody(float *out, const float *in, const int *index) {
    const int i = threadIdx.x;
    if (i < 8) {
        const int next = __shfl_down_sync(EIGHT, index[i], 1);
        if (!FIXED || i < 7) {
            out[i] = in[next];  // BROKEN chosen_by_nobody
        }
    }
}
PAIR(chosen_by_nobody);
