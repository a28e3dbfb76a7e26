// Store policy `write_back` (iteration 1): O's stores leave a copy of the line in L1 if the hardware likes.
#pragma once

#include "ptx/store.cuh"

namespace flashladder {

struct WriteBack {
    // 16 bytes of O to global memory.
    static __device__ __forceinline__ void store(void *pointer, uint4 value) { ptx::store_global_16(pointer, value); }
};

}  // namespace flashladder
