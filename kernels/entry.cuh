// The one `__global__`: what the host launches, under the same symbol in every iteration.
//
// Why one: the difference between two iterations then carries no rename noise. The generated translation unit
// (flashladder/ladder/compose.py) defines `Kernel`, its parts and sizes, then includes this file.
#pragma once

#include <cstdint>

// One CTA a multiprocessor is all that the compiler has to allow for: registers go to the loop, not to occupancy.
extern "C" __global__ void __launch_bounds__(Kernel::n_threads, 1) flash_fwd_kernel(
    const __grid_constant__ Kernel::Args args) {
    extern __shared__ __align__(128) unsigned char smem[];
    flashladder::Cta<Kernel> cta(args, static_cast<std::uint32_t>(__cvta_generic_to_shared(smem)));
    Kernel::Schedule::run(cta, args.n_kv_blocks);
    cta.write_o(args);
}
