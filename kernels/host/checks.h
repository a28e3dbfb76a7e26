// Every condition on the arguments, checked on the host before anything is launched.
//
// Plain C++17 over plain facts (no torch, no CUDA), in the order in which a person would look: rank, dtype, shape,
// sizes, configuration, tiles, strides, alignment, aliasing, and the device last, so that all but the last can be
// tried with CPU tensors. A violated condition is a std::invalid_argument of one line:
// `namespace: argument: expected E, found F; what to do`. Each line is listed in tests/nvcc/test_bad_arguments.py.
#pragma once

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "host/launch.h"

namespace flashladder {
namespace {

constexpr int rank = 4;                      // (batch, seq_len, n_heads, d_head)
constexpr std::int64_t element_bytes = 2;    // fp16, bf16
constexpr std::int64_t vector_elements = 8;  // one 16-byte cp.async, and the step of a tensor map's strides
constexpr std::int64_t max_grid_yz = 65535;  // CUDA's limit on gridDim.y and gridDim.z
constexpr int max_listed = 24;               // configurations in one message

struct TensorFacts {
    const char *name;  // "q", "k", "v" or "out"
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;  // elements
    std::string dtype;                  // "fp16", "bf16", or torch's name of another one
    std::string device;                 // "cuda:0"
    bool is_cuda;
    std::uintptr_t address;  // of element 0

    bool is_empty() const { return std::find(sizes.begin(), sizes.end(), 0) != sizes.end(); }

    // Elements from the first to the last, both counted.
    std::int64_t extent() const {
        std::int64_t last = 0;
        for (std::size_t i = 0; i < sizes.size(); ++i)
            last += (sizes[i] - 1) * strides[i];
        return last + 1;
    }
};

[[noreturn]] inline void bad(const std::string &argument, const std::string &expected, const std::string &found,
                             const std::string &hint = "") {
    throw std::invalid_argument(std::string(flashladder_namespace) + ": " + argument + ": expected " + expected +
                                ", found " + found + (hint.empty() ? "" : "; " + hint));
}

inline std::string text(const std::vector<std::int64_t> &values) {
    std::string line = "(";
    for (std::size_t i = 0; i < values.size(); ++i)
        line += (i ? ", " : "") + std::to_string(values[i]);
    return line + ")";
}

inline void check_rank(const TensorFacts &t) {
    if (t.sizes.size() == rank)
        return;
    bad(t.name, "4 dimensions (batch, seq_len, n_heads, d_head)",
        std::to_string(t.sizes.size()) + " dimensions with shape " + text(t.sizes));
}

inline void check_dtype(const TensorFacts &t, const TensorFacts &q) {
    if (t.dtype != "fp16" && t.dtype != "bf16")
        bad(t.name, "dtype fp16 or bf16", t.dtype, "convert it with .half() or .bfloat16()");
    if (t.dtype != q.dtype)
        bad(t.name, "q's dtype " + q.dtype, t.dtype);
}

inline void check_shape(const TensorFacts &t, const TensorFacts &q) {
    if (t.sizes == q.sizes)
        return;
    bad(t.name, "q's shape " + text(q.sizes), text(t.sizes),
        "query, key and value lengths and head counts are equal here");
}

inline void check_sizes(const TensorFacts &q) {
    const auto in_range = [&](int dimension, const char *name, std::int64_t limit) {
        const std::int64_t size = q.sizes[dimension];
        if (size <= limit)
            return;
        bad("q", std::string(name) + " of at most " + std::to_string(limit), std::to_string(size));
    };
    in_range(0, "batch", max_grid_yz);
    in_range(1, "seq_len", INT_MAX);
    in_range(2, "n_heads", max_grid_yz);
}

inline std::string built_configurations() {
    std::string line;
    for (int i = 0; i < std::min(flashladder_n_kernels, max_listed); ++i) {
        line += std::string(i ? " | " : "") + flashladder_kernels[i].config;
    }
    const int more = flashladder_n_kernels - max_listed;
    if (more > 0)
        line += " | and " + std::to_string(more) + " more (" + flashladder_namespace + ".configurations())";
    return line;
}

// The row of a dtype that is tuned for GPUs of a compute capability; that of an unknown GPU is `capability` 0.
inline const KernelRow &tuned_row(const TensorFacts &q, int capability) {
    const KernelRow *found = nullptr;
    for (int i = 0; i < flashladder_n_tuned; ++i) {
        const TunedRow &tuned = flashladder_tuned[i];
        if (tuned.capability <= capability && flashladder_kernels[tuned.row].dtype == q.dtype)
            found = &flashladder_kernels[tuned.row];
    }
    if (found == nullptr)
        bad("q", "a dtype that was built: " + built_configurations(), q.dtype);
    return *found;
}

// The row named `config`, or the one tuned for the GPU when `config` is empty.
inline const KernelRow &select_row(const std::string &config, const TensorFacts &q, int capability) {
    if (config.empty())
        return tuned_row(q, capability);
    for (int i = 0; i < flashladder_n_kernels; ++i) {
        const KernelRow &row = flashladder_kernels[i];
        if (row.config == config) {
            if (row.dtype == q.dtype)
                return row;
            bad("config", "one for q's dtype " + q.dtype, config);
        }
    }
    bad("config", "one that was built: " + built_configurations(), "\"" + config + "\"",
        "build more with the --configs option of this iteration's build");
}

inline void check_d_head(const TensorFacts &q, const KernelRow &row) {
    if (q.sizes[3] != row.d_head)
        bad("q", "d_head " + std::to_string(row.d_head), std::to_string(q.sizes[3]));
}

inline void check_tiles(const TensorFacts &q, const KernelRow &row) {
    for (const auto &[name, size] : {std::pair<const char *, int>{"B_r", row.B_r}, {"B_c", row.B_c}}) {
        if (row.any_length || q.sizes[1] % size == 0)
            continue;
        bad("q", "seq_len divisible by " + std::string(name) + " = " + std::to_string(size), std::to_string(q.sizes[1]),
            "pad the sequence or choose a smaller tile (configuration " + std::string(row.config) + ")");
    }
}

// Strides of dimensions of one element may be anything: nobody takes that step.
inline void check_strides(const TensorFacts &t, const KernelRow &row, bool given) {
    static constexpr const char *names[] = {"batch", "seq_len", "n_heads"};
    if (t.strides[3] != 1) {
        bad(t.name, "a contiguous last dimension (stride 1)", "stride " + std::to_string(t.strides[3]),
            "call .contiguous()");
    }
    for (int i = 0; i < 3; ++i) {
        if (t.sizes[i] == 1 || t.strides[i] % vector_elements == 0)
            continue;
        bad(t.name, "the " + std::string(names[i]) + " stride to be a multiple of 8 elements (16 bytes)",
            std::to_string(t.strides[i]), "call .contiguous()");
    }
    const bool has_rows = t.sizes[1] > 1;
    if (has_rows && t.strides[1] > row.max_row_stride)
        bad(t.name, "a seq_len stride of at most " + std::to_string(row.max_row_stride) + " elements",
            std::to_string(t.strides[1]), "call .contiguous()");
    if (t.address % 16 != 0) {
        bad(t.name, "data aligned to 16 bytes", "an address " + std::to_string(t.address % 16) + " bytes past it",
            "a view must start at a multiple of 8 elements; call .clone()");
    }
    if (has_rows && row.row_stride != 0 && t.strides[1] != row.row_stride) {
        bad(t.name,
            "a seq_len stride of " + std::to_string(row.row_stride) + " elements, which this kernel is built for",
            std::to_string(t.strides[1]),
            given ? "use contiguous tensors with " + std::to_string(row.row_stride / row.d_head) +
                        " heads, or iteration 15"
                  : "pass an out with that stride, or use iteration 15");
    }
}

// Dimensions of more than one element, from the largest stride to the smallest.
inline std::vector<std::pair<std::int64_t, std::int64_t>> by_stride(const TensorFacts &t) {
    std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // (stride, size)
    for (int i = 0; i < rank; ++i) {
        if (t.sizes[i] > 1)
            dimensions.emplace_back(t.strides[i], t.sizes[i]);
    }
    std::sort(dimensions.rbegin(), dimensions.rend());
    return dimensions;
}

// Every index its own element: each stride is longer than all that lies inside it.
inline bool is_nested(const TensorFacts &t) {
    std::int64_t inside = 0;
    const auto dimensions = by_stride(t);
    for (auto it = dimensions.rbegin(); it != dimensions.rend(); ++it) {
        if (it->first <= inside)
            return false;
        inside += it->first * (it->second - 1);
    }
    return true;
}

// Whether two nested tensors with these dimensions, `delta` elements apart, share an element: whether delta is a sum of
// d_i * stride_i with |d_i| < size_i. At each level only the two multiples around delta can leave a remainder that
// fits.
inline bool meets(const std::vector<std::pair<std::int64_t, std::int64_t>> &dimensions, std::int64_t delta,
                  std::size_t level = 0) {
    if (level == dimensions.size())
        return delta == 0;
    const auto [stride, size] = dimensions[level];
    const std::int64_t below = delta / stride - (delta % stride < 0 ? 1 : 0);
    for (const std::int64_t steps : {below, below + 1}) {
        if (steps > -size && steps < size && meets(dimensions, delta - steps * stride, level + 1))
            return true;
    }
    return false;
}

// CTAs read q, k and v while others already write out. Views of one buffer are welcome while no element is shared.
inline void check_aliasing(const TensorFacts &out, const TensorFacts &t) {
    const std::int64_t delta =
        (static_cast<std::int64_t>(out.address) - static_cast<std::int64_t>(t.address)) / element_bytes;
    if (delta >= t.extent() || -delta >= out.extent())
        return;
    const auto dimensions = by_stride(out);
    if (dimensions == by_stride(t) && is_nested(t) && !meets(dimensions, delta))
        return;
    bad("out", std::string("memory of its own"), std::string("elements shared with ") + t.name,
        "pass a separate tensor");
}

inline void check_device_of(const TensorFacts &t, const TensorFacts &q) {
    if (t.device != q.device)
        bad(t.name, "q's device " + q.device, t.device);
}

// What a kernel asks of tensors that it reads or writes.
inline void check_memory(const std::array<TensorFacts, 4> &tensors, const KernelRow &row, bool out_given) {
    const TensorFacts &q = tensors[0], &out = tensors[3];
    check_tiles(q, row);
    for (const TensorFacts &t : tensors)
        check_strides(t, row, out_given || &t != &out);
    if (!out_given)
        return;
    if (!is_nested(out)) {
        bad("out", "one memory location per element", "strides " + text(out.strides) + " for shape " + text(out.sizes),
            "an expanded view cannot be written");
    }
    for (std::size_t i = 0; i < 3; ++i)
        check_aliasing(out, tensors[i]);
}

// All of the above; returns the row to launch. The tensors are q, k, v and out; where `out_given` is false, out holds
// the facts of the contiguous tensor that will be allocated. `capability` is that of q's GPU, 90 for 9.0; 0 where it is
// unknown. Tensors without elements are good at any length and strides: nothing is launched.
inline const KernelRow &check_arguments(const std::array<TensorFacts, 4> &tensors, bool out_given,
                                        const std::string &config, int capability) {
    const TensorFacts &q = tensors[0];
    for (const TensorFacts &t : tensors)
        check_rank(t);
    for (const TensorFacts &t : tensors)
        check_dtype(t, q);
    for (const TensorFacts &t : tensors)
        check_shape(t, q);
    check_sizes(q);
    const KernelRow &row = select_row(config, q, capability);
    check_d_head(q, row);
    if (!q.is_empty())
        check_memory(tensors, row, out_given);
    for (const TensorFacts &t : tensors)
        check_device_of(t, q);
    if (!q.is_cuda)
        bad("q", "a CUDA tensor", "one on " + q.device, "there is no CPU kernel; call .cuda()");
    return row;
}

}  // namespace
}  // namespace flashladder
