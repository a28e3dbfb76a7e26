#pragma once

// What it is: PAIR(kernel) instantiates a kernel template with FIXED = false and FIXED = true, whatever its parameters.
// Why: a defect and its correct twin share one text; only the lines that ask for FIXED differ.

#define PAIR(kernel)                                           \
    template __global__ decltype(kernel<false>) kernel<false>; \
    template __global__ decltype(kernel<true>) kernel<true>
