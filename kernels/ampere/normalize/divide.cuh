// Normalization `divide` (iteration 1): each element of O is divided by its row's sum l.
//
// __fdividef is MUFU.RCP and FMUL whatever the flags; l <= seq_len keeps it exact enough.
#pragma once

namespace flashladder {

struct Divide {
    // Row `half` of one m-tile of O.
    template <int n_tiles>
    static __device__ __forceinline__ void row(float (&o)[n_tiles][4], int half, float l) {
#pragma unroll
        for (int n = 0; n < n_tiles; ++n) {
            o[n][half * 2] = __fdividef(o[n][half * 2], l);
            o[n][half * 2 + 1] = __fdividef(o[n][half * 2 + 1], l);
        }
    }
};

}  // namespace flashladder
