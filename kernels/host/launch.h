// What the generated table, the launcher and the torch binding agree on; plain C++17, no torch and no CUDA header.
//
// One library holds one iteration: a table of kernels (one row per configuration, generated), launch.cpp (CUDA
// runtime), binding.cpp (torch) and its family's plan.cpp. Kernels travel as fatbins inside the table and are loaded at
// first use, so that a kernel is never compiled for the host, its symbol is the same everywhere, and binding.o and
// launch.o serve all sixteen libraries. Everything here is hidden: sixteen libraries with the same names live in one
// process. Compile: flashladder/build/host_library.py builds the commands; tests/nvcc/test_binding.py runs them.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

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

namespace flashladder {

// The symbol that every fatbin defines.
inline constexpr const char *kernel_symbol = "flash_fwd_kernel";

// Where a tensor (batch, seq_len, n_heads, d_head) of 16-bit elements lies; its last dimension is contiguous.
struct View {
    void *data;
    std::int64_t batch, seq, head;  // bytes from one sample, position, head to the next
};

// What a call asks for, checked. The row that runs knows the mask.
struct Problem {
    View q, k, v, out;
    std::int64_t batch, seq_len, n_heads;  // of q and out; seq_len counts queries
    std::int64_t kv_len, n_kv_heads;       // of k and v
    double scale;                          // of scores
    float *lse;                            // (batch, n_heads, seq_len), contiguous; null if nobody asked for it
    // Packed sequences, which are one sample: the row of Q, and that of K, at which each begins, and the end.
    const std::int32_t *cu_q = nullptr, *cu_kv = nullptr;
    std::int64_t sequences = 0;
};

// A scale as kernels get it: they exponentiate to the base of two.
inline float scale_log2(double scale) {
    return static_cast<float>(std::log2(std::exp(1.0)) * scale);
}

struct Extent {
    unsigned int x, y, z;
};

// A launch as data. The kernel has one parameter, its family's argument structure.
struct Launch {
    Extent grid;     // CTAs; y and z at most 65535
    Extent cluster;  // CTAs of one cluster; {1, 1, 1} is none
    bool resident;   // a CTA goes on with what is left: no more of x are launched than the device has multiprocessors
    alignas(128) std::array<unsigned char, 1024> arguments;  // tensor maps among them are aligned so

    template <typename Arguments>
    Launch(const Arguments &values, Extent ctas, Extent ctas_per_cluster = {1, 1, 1}, bool goes_on = false)
        : grid(ctas), cluster(ctas_per_cluster), resident(goes_on), arguments{} {
        static_assert(sizeof(Arguments) <= sizeof(arguments) && alignof(Arguments) <= 128, "the room for them");
        std::memcpy(arguments.data(), &values, sizeof(Arguments));
    }
};

// What a plan may ask of the device that it is made for.
struct Device {
    int multiprocessors;
    std::function<int(int)> clusters_at_once;  // how many clusters of so many CTAs of the row's kernel run at once
};

// Compute capability of a device, 90 for 9.0; 0 where there is none, or no driver.
FLASHLADDER_HIDDEN int capability_of(int device);

// How a family launches: kernels/<family>/plan.cpp, one of them in each library.
FLASHLADDER_HIDDEN Launch plan(const KernelRow &row, const Problem &problem, const Device &device);

// `device`, made current if it is not and left so. Its answers are kept; they may throw as `launch` does.
FLASHLADDER_HIDDEN Device device_for(const KernelRow &row, int device);

// Enqueues `row`'s kernel on `stream` of `device`, made current if it is not and left so. Loads the kernel at its first
// use on a device, and writes one line to stderr where the driver had to compile the library's PTX for it; safe from
// several threads and during CUDA graph capture. Throws std::runtime_error with one line.
FLASHLADDER_HIDDEN void launch(const KernelRow &row, const Launch &planned, int device, void *stream);

}  // namespace flashladder
