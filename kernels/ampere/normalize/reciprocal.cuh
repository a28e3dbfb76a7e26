// Normalization `reciprocal` (iteration 12): 1 / l once for each row of O, then a multiplication for each element.
//
// ptxas shares the reciprocal of `divide` within a row too; here the source says it.
#pragma once

#include "ampere/softmax/rows.cuh"

namespace flashladder {

struct Reciprocal {
    // Row `half` of one m-tile of O.
    template <int n_tiles>
    static __device__ __forceinline__ void row(float (&o)[n_tiles][4], int half, float l) {
        scale_row(o, half, ptx::rcp(l));
    }
};

}  // namespace flashladder
