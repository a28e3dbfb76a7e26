// What the generated table, the launcher and the torch binding agree on; plain C++17, no torch and no CUDA header.
//
// One library holds one iteration: a table of kernels (one row per configuration, generated), launch.cpp (CUDA
// runtime), binding.cpp (torch) and its family's plan.cpp. Kernels travel as fatbins inside the table and are loaded at
// first use, so that a kernel is never compiled for the host, its symbol is the same everywhere, and binding.o and
// launch.o serve all libraries of a family. Everything here is hidden: many libraries with the same names live in one
// process. Compile: flashladder/build/library.py builds the commands; tests/nvcc/test_binding.py runs them.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "host/rows.h"

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
