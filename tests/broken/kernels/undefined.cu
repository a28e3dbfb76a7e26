// What it is: kernels in which a value that a shuffle read from a lane outside its mask decides something.
// Why: a GPU gives some number, often the one that was meant. Sums over eight lanes always compute such values in their
// upper lanes, so it is their use that is wrong. FIXED = true is the same kernel done right. Run: pytest tests/broken

#include "pair.cuh"

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

// The undefined value goes back to lane 0 by a second shuffle.
template <bool FIXED>
__global__ void handed_on(float *out, const float *in) {
    const int i = threadIdx.x;
    if (i < 8) {
        const float later = __shfl_down_sync(EIGHT, in[i], 4);
        const float back = __shfl_sync(EIGHT, later, FIXED ? 3 : 4);
        if (i == 0) {
            out[0] = back;  // BROKEN handed_on
        }
    }
}
PAIR(handed_on);

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
