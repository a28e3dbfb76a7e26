// shfl.sync.bfly: exchange a float with the lane whose number differs in `lane_mask`; all 32 lanes take part.
#pragma once

namespace flashladder::ptx {

__device__ __forceinline__ float shuffle_xor(float value, int lane_mask) {
    return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

}  // namespace flashladder::ptx
