// The one `__global__` of the Hopper family: what the host launches, under the same symbol in every iteration.
//
// The generated translation unit (flashladder/ladder/families/hopper/unit.py) defines `Kernel`, its parts and sizes,
// then includes this file. One CTA a multiprocessor is all that the compiler has to allow for; without a bound
// setmaxnreg would be ignored.
#pragma once

#include <cstdint>

#include "hopper/flash_fwd_tma.cuh"

extern "C" __global__ void __launch_bounds__(Kernel::n_threads, 1) flash_fwd_kernel(
    const __grid_constant__ Kernel::Args args) {
    extern __shared__ __align__(1024) unsigned char smem[];
    flashladder::hopper::Cta<Kernel> cta(args, static_cast<std::uint32_t>(__cvta_generic_to_shared(smem)));
    cta.begin();
    Kernel::Roles::run(cta);
}
