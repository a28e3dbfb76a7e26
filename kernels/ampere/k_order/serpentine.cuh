// K order `serpentine` (iteration 19): fragments as `row_major`, and S = Q K^T takes its m-tiles forth and back.
//
// From one n-tile of K to the next the mma begin with the m-tile that the last one ended with, so that the registers
// of that fragment of Q can be read once for two mma. ptxas orders mma itself, and starts from the order it is given.
#pragma once

#include "ampere/k_order/row_major.cuh"
#include "ampere/serpentine.cuh"

namespace flashladder {

struct Serpentine : RowMajor {};

template <>
inline constexpr bool kSerpentine<Serpentine> = true;

}  // namespace flashladder
