// A row of the generated table of kernels. Alone in its header, because each library's table includes it: with the rest
// of launch.h a table took 0.4 s to compile instead of 0.03.
#pragma once

#include <cstdint>

#define FLASHLADDER_HIDDEN __attribute__((visibility("hidden")))

extern "C" {

struct KernelRow {
    const char *config;           // short form: "(FP16, 128, 64, 64, 4): async+eager+..."
    const char *dtype;            // "fp16" or "bf16"
    int B_r, B_c;                 // rows of a query tile, rows of a key/value tile
    int d_head;                   // elements
    int n_threads;                // of a CTA
    int smem_bytes;               // dynamic shared memory of a CTA
    int capability;               // least compute capability: 80 is 8.0
    std::int64_t row_stride;      // elements from one position to the next that the kernel was built for; 0 = any
    const unsigned char *fatbin;  // machine code for flashladder_arches and PTX for flashladder_ptx
    int alone;                    // 1: no other compute capability than `capability` runs it
    int any_length;               // 1: seq_len need not be divisible by B_r and B_c
    std::int64_t max_row_stride;  // elements from one position to the next at most
    int general;                  // 1: q and k may differ in length and heads; any scale; log-sum-exp on request
    int causal;                   // 1: query i sees the keys up to i + kv_len - seq_len; 0: all keys
    int packed;                   // 1: sequences one after another, whose bounds are on the device; 0: samples
    int flat_grid;                // 1: the grid has one dimension, so batch and n_heads are not limited by gridDim.y, z
    int own[4];                   // what else its family's plan.cpp needs to know; means what that says
};

// GPUs of `capability` (90 is 9.0) and later take this row unless a call names another, up to the next entry of its
// dtype, mask and packing.
struct TunedRow {
    int capability;
    int row;  // index in flashladder_kernels
};

// The generated table (flashladder/build/library.py). All constant-initialised: safe to read from static constructors.
extern FLASHLADDER_HIDDEN const KernelRow flashladder_kernels[];
extern FLASHLADDER_HIDDEN const int flashladder_n_kernels;
extern FLASHLADDER_HIDDEN const TunedRow flashladder_tuned[];  // per dtype, mask and packing ascending, from 0
extern FLASHLADDER_HIDDEN const int flashladder_n_tuned;
extern FLASHLADDER_HIDDEN const char flashladder_namespace[];  // "flashladder_07"
extern FLASHLADDER_HIDDEN const char flashladder_arches[];     // that it has machine code for: "sm_80, sm_90"
extern FLASHLADDER_HIDDEN const char flashladder_targets[];    // that a build can make machine code for
extern FLASHLADDER_HIDDEN const char flashladder_ptx[];        // "compute_80"

}  // extern "C"
