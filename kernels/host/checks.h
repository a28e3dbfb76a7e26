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
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "host/launch.h"

namespace flashladder {
namespace {

constexpr int rank = 4;                        // (batch, seq_len, n_heads, d_head)
constexpr std::int64_t element_bytes = 2;      // fp16, bf16
constexpr std::uintptr_t lse_bytes = 4;        // fp32
constexpr std::int64_t vector_elements = 8;    // one 16-byte cp.async, and the step of a tensor map's strides
constexpr std::int64_t max_grid_yz = 65535;    // CUDA's limit on gridDim.y and gridDim.z
constexpr std::int64_t packed_rows = 1 << 30;  // rows that a map of packed sequences has (hopper/args.cuh)
constexpr int max_listed = 24;                 // configurations in one message
constexpr const char *needs_general = "iterations from 29 on take it";
constexpr const char *build_more = "build more with the --configs option of this iteration's build";
constexpr const char *needs_packed = "iterations from 33 on take packed sequences";
constexpr const char *needs_causal = "iterations from 31 on have a causal mask";

struct TensorFacts {
    const char *name;  // "q", "k", "v", "out" or "lse"
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;  // elements
    std::string dtype;                  // "fp16", "bf16", or torch's name of another one
    std::string device;                 // "cuda:0"
    bool is_cuda;
    std::uintptr_t address;  // of element 0
    bool packed = false;     // rows of sequences one after another: the caller's tensor has no axis 0

    // As the caller sees it: sizes or strides.
    std::vector<std::int64_t> own(const std::vector<std::int64_t> &axes) const {
        return {axes.begin() + (packed ? 1 : 0), axes.end()};
    }

    bool is_empty() const { return std::find(sizes.begin(), sizes.end(), 0) != sizes.end(); }

    // Elements from the first to the last, both counted.
    std::int64_t extent() const {
        std::int64_t last = 0;
        for (std::size_t i = 0; i < sizes.size(); ++i)
            last += (sizes[i] - 1) * strides[i];
        return last + 1;
    }
};

// What a call of `attention` may ask for besides; `forward` asks for nothing of it.
struct Extras {
    bool any_shape = false;             // q and k may differ in length and heads, if the kernel is general
    bool causal = false;                // query i sees the keys up to i + kv_len - seq_len
    std::optional<double> scale;        // of scores; 1 / sqrt(d_head) if not given
    bool wants_lse = false;             // the log-sum-exp of each row
    std::optional<TensorFacts> lse;     // and where the caller wants it; else it goes into a new tensor
    std::vector<TensorFacts> bounds{};  // of packed sequences: cu_seqlens_q and cu_seqlens_k; else none

    bool packed() const { return !bounds.empty(); }
};

inline double default_scale(std::int64_t d_head) {
    return 1.0 / std::sqrt(static_cast<double>(d_head));
}

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

inline void check_shape(const TensorFacts &t, const TensorFacts &q,
                        const char *hint = "query, key and value lengths and head counts are equal here") {
    if (t.sizes != q.sizes)
        bad(t.name, "q's shape " + text(q.own(q.sizes)), text(t.own(t.sizes)), hint);
}

// k and v against q, where lengths and head counts may differ.
inline void check_groups(const TensorFacts &q, const TensorFacts &k, const TensorFacts &v) {
    for (const auto &[i, name] : {std::pair<int, const char *>{0, "batch "}, {3, "d_head "}}) {
        if (k.sizes[i] != q.sizes[i])
            bad("k", "q's " + (name + std::to_string(q.sizes[i])), std::to_string(k.sizes[i]));
    }
    const std::int64_t heads = q.sizes[2], kv_heads = k.sizes[2];
    if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0)
        bad("k", "a number of heads that divides q's " + std::to_string(heads), std::to_string(kv_heads));
    if (v.sizes != k.sizes)
        bad("v", "k's shape " + text(k.own(k.sizes)), text(v.own(v.sizes)));
}

inline void check_size(const TensorFacts &t, int dimension, const char *name, std::int64_t limit) {
    if (t.sizes[dimension] > limit)
        bad(t.name, std::string(name) + " of at most " + std::to_string(limit), std::to_string(t.sizes[dimension]));
}

inline void check_sizes(const TensorFacts &q, const TensorFacts &k, const KernelRow &row) {
    const std::int64_t limit = row.flat_grid ? INT_MAX : max_grid_yz;
    const std::int64_t sums = row.causal ? INT_MAX - 2 * (row.B_r + row.B_c) : INT_MAX;  // of both lengths
    const std::int64_t longest = row.packed ? packed_rows : sums;
    check_size(q, 0, "batch", limit);
    check_size(q, 1, "seq_len", longest);
    check_size(k, 1, "seq_len", longest);
    check_size(q, 2, "n_heads", limit);
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

// Whether a kernel computes what is asked for beside q's dtype.
inline bool has_mask(const KernelRow &row, const Extras &extras) {
    return (row.causal != 0) == extras.causal;
}
inline bool has_packing(const KernelRow &row, const Extras &extras) {
    return (row.packed != 0) == extras.packed();
}

// The row of a dtype, mask and packing that is tuned for GPUs of a compute capability; that of an unknown GPU is 0.
inline const KernelRow &tuned_row(const TensorFacts &q, int capability, const Extras &extras) {
    const KernelRow *found = nullptr;
    bool built_for_dtype = false, built_for_packing = false;
    for (int i = 0; i < flashladder_n_tuned; ++i) {
        const KernelRow &row = flashladder_kernels[flashladder_tuned[i].row];
        if (row.dtype != q.dtype)
            continue;
        built_for_dtype = true;
        built_for_packing = built_for_packing || has_packing(row, extras);
        if (flashladder_tuned[i].capability <= capability && has_mask(row, extras) && has_packing(row, extras))
            found = &row;
    }
    if (!built_for_dtype)
        bad("q", "a dtype that was built: " + built_configurations(), q.dtype);
    if (!built_for_packing)
        bad(extras.packed() ? "cu_seqlens_q" : "q", "what a kernel was built for: " + built_configurations(),
            extras.packed() ? "packed sequences" : "samples of one length",
            extras.packed() ? needs_packed : build_more);
    if (found == nullptr)
        bad("causal", "what a kernel was built for: " + built_configurations(), extras.causal ? "True" : "False",
            extras.causal ? needs_causal : build_more);
    return *found;
}

// The row named `config`, or the one tuned for the GPU when `config` is empty.
inline const KernelRow &select_row(const std::string &config, const TensorFacts &q, int capability,
                                   const Extras &extras) {
    if (config.empty())
        return tuned_row(q, capability, extras);
    for (int i = 0; i < flashladder_n_kernels; ++i) {
        const KernelRow &row = flashladder_kernels[i];
        if (row.config != config)
            continue;
        if (row.dtype != q.dtype)
            bad("config", "one for q's dtype " + q.dtype, config);
        if (!has_mask(row, extras))
            bad("config", extras.causal ? "one with a causal mask" : "one without a mask", config,
                extras.causal ? needs_causal : "");
        if (!has_packing(row, extras))
            bad("config", extras.packed() ? "one for packed sequences" : "one for samples of one length", config,
                extras.packed() ? needs_packed : "");
        return row;
    }
    bad("config", "one that was built: " + built_configurations(), "\"" + config + "\"", build_more);
}

// What only general kernels take.
inline void check_extras(const std::array<TensorFacts, 4> &tensors, const Extras &extras, const KernelRow &row) {
    const TensorFacts &q = tensors[0], &k = tensors[1];
    const double usual = default_scale(q.sizes[3]), scale = extras.scale.value_or(usual);
    const auto written = [](double number) {
        char digits[32];
        std::snprintf(digits, sizeof(digits), "%.9g", number);
        return std::string(digits);
    };
    if (!(scale > 0) || !std::isnormal(scale_log2(scale)))
        bad("scale", "a finite number above 0 that fp32 holds", written(scale));
    if (row.general)
        return;
    check_shape(k, q, needs_general);
    if (scale_log2(scale) != scale_log2(usual))
        bad("scale", "1 / sqrt(d_head) = " + written(usual), written(scale), needs_general);
    if (extras.wants_lse)
        bad(extras.lse ? "lse" : "return_lse", extras.lse ? "None" : "False", extras.lse ? "a tensor" : "True",
            needs_general);
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

// What a kernel asks of tensors that it reads or writes. Where there are no keys, it reads nothing.
inline void check_memory(const std::array<TensorFacts, 4> &tensors, const KernelRow &row, bool out_given) {
    const TensorFacts &q = tensors[0], &out = tensors[3];
    check_tiles(q, row);
    for (const TensorFacts &t : tensors) {
        if (!t.is_empty())
            check_strides(t, row, out_given || &t != &out);
    }
    if (!out_given)
        return;
    if (!is_nested(out)) {
        bad("out", "one memory location per element",
            "strides " + text(out.own(out.strides)) + " for shape " + text(out.own(out.sizes)),
            "an expanded view cannot be written");
    }
    for (std::size_t i = 0; i < 3; ++i) {
        if (!tensors[i].is_empty())
            check_aliasing(out, tensors[i]);
    }
}

// The caller's tensor for the log-sum-exp: its dtype and shape.
inline void check_lse(const TensorFacts &lse, const TensorFacts &q, bool packed) {
    if (lse.dtype != "float32")
        bad("lse", "dtype float32", lse.dtype);
    std::vector<std::int64_t> shape{q.sizes[0], q.sizes[2], q.sizes[1]};
    if (packed)
        shape.erase(shape.begin());
    if (lse.sizes != shape)
        bad("lse",
            std::string("shape (") + (packed ? "n_heads, rows" : "batch, n_heads, seq_len") + ") = " + text(shape),
            text(lse.sizes));
}

// It is contiguous, and no byte from its first to its last is another tensor's.
inline void check_lse_memory(const TensorFacts &lse, const std::array<TensorFacts, 4> &tensors) {
    std::int64_t inside = 1;
    for (std::size_t i = lse.sizes.size(); i-- > 0; inside *= lse.sizes[i]) {
        if (lse.sizes[i] != 1 && lse.strides[i] != inside)
            bad("lse", "a contiguous tensor", "strides " + text(lse.strides), "pass torch.empty(shape)");
    }
    if (lse.address % lse_bytes != 0)
        bad("lse", "data aligned to 4 bytes",
            "an address " + std::to_string(lse.address % lse_bytes) + " bytes past it");
    for (const TensorFacts &t : tensors) {
        const std::uintptr_t end = t.address + static_cast<std::uintptr_t>(t.extent() * element_bytes);
        if (!t.is_empty() && lse.address < end &&
            t.address < lse.address + static_cast<std::uintptr_t>(inside * lse_bytes))
            bad("lse", "memory of its own", std::string("bytes between ") + t.name + "'s first and last",
                "pass a separate tensor");
    }
}

// Packed sequences (rows, n_heads, d_head) as one sample.
inline TensorFacts as_sample(TensorFacts t) {
    if (t.sizes.size() != rank - 1)
        bad(t.name, "3 dimensions (rows of all sequences, n_heads, d_head)",
            std::to_string(t.sizes.size()) + " dimensions with shape " + text(t.sizes));
    t.sizes.insert(t.sizes.begin(), 1);
    t.strides.insert(t.strides.begin(), 0);
    t.packed = true;
    return t;
}

// Where packed sequences begin: n + 1 numbers for n sequences. The numbers themselves are the device's.
inline void check_bounds(const std::vector<TensorFacts> &bounds, const TensorFacts &q) {
    for (const TensorFacts &t : bounds) {
        if (t.sizes.size() != 1 || t.sizes[0] < 1)
            bad(t.name, "one dimension of at least 1 element: where each sequence begins, and the end",
                "shape " + text(t.sizes));
        if (t.dtype != "int32")
            bad(t.name, "dtype int32", t.dtype, "convert it with .int()");
        if (t.sizes != bounds[0].sizes)
            bad(t.name, std::string(bounds[0].name) + "'s shape " + text(bounds[0].sizes), text(t.sizes));
        if (t.sizes[0] > 1 && t.strides[0] != 1)
            bad(t.name, "a contiguous tensor", "stride " + std::to_string(t.strides[0]), "call .contiguous()");
        check_device_of(t, q);
    }
}

// All of the above; returns the row to launch. The tensors are q, k, v and out; where `out_given` is false, out holds
// the facts of the contiguous tensor that will be allocated. `capability` is that of q's GPU, 90 for 9.0; 0 where it is
// unknown. Tensors without elements are good at any length and strides: nothing is launched.
inline const KernelRow &check_arguments(const std::array<TensorFacts, 4> &tensors, bool out_given,
                                        const std::string &config, int capability, const Extras &extras = {}) {
    const auto &[q, k, v, out] = tensors;
    for (const TensorFacts &t : tensors)
        check_rank(t);
    for (const TensorFacts &t : tensors)
        check_dtype(t, q);
    if (extras.any_shape) {
        check_groups(q, k, v);
        check_shape(out, q, "");
    } else {
        for (const TensorFacts &t : tensors)
            check_shape(t, q);
    }
    if (extras.lse)
        check_lse(*extras.lse, q, extras.packed());
    check_bounds(extras.bounds, q);
    const KernelRow &row = select_row(config, q, capability, extras);
    check_sizes(q, k, row);
    check_d_head(q, row);
    check_extras(tensors, extras, row);
    if (!q.is_empty()) {
        check_memory(tensors, row, out_given);
        if (extras.lse)
            check_lse_memory(*extras.lse, tensors);
    }
    for (const TensorFacts &t : tensors)
        check_device_of(t, q);
    if (extras.lse)
        check_device_of(*extras.lse, q);
    if (!q.is_cuda)
        bad("q", "a CUDA tensor", "one on " + q.device, "there is no CPU kernel; call .cuda()");
    return row;
}

}  // namespace
}  // namespace flashladder
