// Store policy `no_allocate` (iteration 14): O passes L1 by, whose lines stay for what is read again.
#pragma once

#include "ptx/store.cuh"

namespace flashladder {

struct NoAllocate {
    // 16 bytes of O to global memory.
    static __device__ __forceinline__ void store(void *pointer, uint4 value) {
        ptx::store_global_16_no_allocate(pointer, value);
    }
};

}  // namespace flashladder
