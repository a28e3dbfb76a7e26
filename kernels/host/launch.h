// What the generated table, the launcher and the torch binding agree on; plain C++17, no torch and no CUDA header.
//
// One library holds one iteration: a table of kernels (one row per configuration, generated), launch.cpp (CUDA runtime)
// and binding.cpp (torch). Kernels travel as fatbins inside the table and are loaded at first use, so that a kernel is
// never compiled for the host, its symbol is the same everywhere, and binding.o and launch.o serve all sixteen
// libraries. Everything here is hidden: sixteen libraries with the same names live in one process.
// Compile: flashladder/build/host_library.py builds the commands; tests/nvcc/test_binding.py runs them.
#pragma once

#include <cstdint>

#include "host/args.cuh"

#define FLASHLADDER_HIDDEN __attribute__((visibility("hidden")))

extern "C" {

struct KernelRow {
    const char *config;           // short form: "(FP16, 128, 64, 64, 4): async+eager+..."
    const char *dtype;            // "fp16" or "bf16"
    int B_r, B_c;                 // rows of a query tile, rows of a key/value tile
    int d_head;                   // elements
    int n_threads;                // of a CTA
    int smem_bytes;               // dynamic shared memory of a CTA
    std::int64_t row_stride;      // elements from one position to the next that the kernel was built for; 0 = any
    const unsigned char *fatbin;  // machine code for flashladder_arches and compute_80 PTX
};

// The generated table (build/kernel_table.py). All constant-initialised: safe to read from static constructors.
extern FLASHLADDER_HIDDEN const KernelRow flashladder_kernels[];
extern FLASHLADDER_HIDDEN const int flashladder_n_kernels;
extern FLASHLADDER_HIDDEN const char flashladder_namespace[];  // "flashladder_07"
extern FLASHLADDER_HIDDEN const char flashladder_arches[];     // "sm_80, sm_90"

}  // extern "C"

namespace flashladder {

// The symbol that every fatbin defines.
inline constexpr const char *kernel_symbol = "flash_fwd_kernel";

struct Grid {
    unsigned int n_q_blocks;  // seq_len / B_r, x
    unsigned int n_heads;     // y, at most 65535
    unsigned int batch;       // z, at most 65535
};

// Enqueues `row`'s kernel on `stream` of `device`, made current if it is not and left so. Loads the kernel at its first
// use on a device; safe from several threads and during CUDA graph capture. Throws std::runtime_error with one line.
FLASHLADDER_HIDDEN void launch(const KernelRow &row, FlashFwdArgs args, Grid grid, int device, void *stream);

}  // namespace flashladder
