// The torch side: four operators in the namespace that the generated table names, through torch's stable ABI.
//
// `forward` and `attention` allocate their results, `forward_out` and `attention_out` write into the caller's tensors.
// One object file serves every iteration: the namespace is read at load time, so STABLE_TORCH_LIBRARY, which wants it
// in the source, is written out here. Built against any torch from 2.10 on, with or without CUDA, and loaded by any
// other: what exists only in a CUDA build of torch (the current stream) is looked up at run time. CPU tensors reach the
// same function, so that every check but the device's can be tried on a machine without a GPU.
#include <dlfcn.h>

#include <limits>
#include <optional>
#include <tuple>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "host/checks.h"
#include "host/launch.h"

namespace flashladder {
namespace {

using torch::stable::Tensor;
using torch::stable::detail::StableLibrary;

std::string dtype_name(const Tensor &t) {
    std::int32_t dtype = -1;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &dtype));
    if (dtype == aoti_torch_dtype_float16())
        return "fp16";
    if (dtype == aoti_torch_dtype_bfloat16())
        return "bf16";
    if (dtype == aoti_torch_dtype_float32())
        return "float32";
    if (dtype == aoti_torch_dtype_float64())
        return "float64";
    if (dtype == aoti_torch_dtype_float8_e4m3fn())
        return "float8_e4m3fn";
    if (dtype == aoti_torch_dtype_float8_e5m2())
        return "float8_e5m2";
    if (dtype == aoti_torch_dtype_int64())
        return "int64";
    if (dtype == aoti_torch_dtype_int32())
        return "int32";
    if (dtype == aoti_torch_dtype_int8())
        return "int8";
    if (dtype == aoti_torch_dtype_uint8())
        return "uint8";
    if (dtype == aoti_torch_dtype_bool())
        return "bool";
    return "another one (torch's number " + std::to_string(dtype) + ")";
}

std::string device_name(const Tensor &t) {
    if (t.is_cpu())
        return "cpu";
    return (t.is_cuda() ? "cuda:" : "another device, index ") + std::to_string(t.get_device_index());
}

TensorFacts facts_of(const char *name, const Tensor &t) {
    const auto sizes = t.sizes(), strides = t.strides();
    return {name,
            {sizes.begin(), sizes.end()},
            {strides.begin(), strides.end()},
            dtype_name(t),
            device_name(t),
            t.is_cuda(),
            reinterpret_cast<std::uintptr_t>(t.const_data_ptr())};
}

// The facts of the contiguous output that `forward` allocates once the arguments are known to be good.
TensorFacts facts_of_output(const TensorFacts &q) {
    TensorFacts out = q;
    out.name = "out";
    out.address = 0;
    std::int64_t stride = 1;
    for (std::size_t i = q.sizes.size(); i-- > 0; stride *= q.sizes[i])
        out.strides[i] = stride;
    return out;
}

// A function that only a CUDA build of torch exports. libtorch_cuda is loaded by then, but not for all to see.
void *torch_cuda_symbol(const char *name) {
    if (void *symbol = dlsym(RTLD_DEFAULT, name))
        return symbol;
    void *library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr ? nullptr : dlsym(library, name);
}

void *current_stream(int device) {
    using CurrentStream = AOTITorchError (*)(std::int32_t, void **);
    static const auto current =
        reinterpret_cast<CurrentStream>(torch_cuda_symbol("aoti_torch_get_current_cuda_stream"));
    if (current == nullptr)
        bad("q", "a torch built with CUDA", "one without its current stream");
    void *stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(current(device, &stream));
    return stream;
}

// A stride of a dimension of one element may be anything, 2^62 too; nobody takes that step.
View view_of(const Tensor &t, void *data) {
    const auto step = [&](int i) { return t.size(i) == 1 ? 0 : t.stride(i) * element_bytes; };
    return {data, step(0), step(1), step(2)};
}

View view_of(const Tensor &t) {
    return view_of(t, const_cast<void *>(t.const_data_ptr()));
}

// Compute capability of the GPU that decides which row runs: q's, where no configuration is named and its GPU is known.
int deciding_capability(const std::string &config, const TensorFacts &q) {
    static const std::string indexed = "cuda:";
    if (!config.empty() || q.device.rfind(indexed, 0) != 0)
        return 0;
    return capability_of(std::stoi(q.device.substr(indexed.size())));
}

// Packed sequences: rows, heads; they are one sample.
View view_of_rows(const Tensor &t, void *data) {
    const auto step = [&](int i) { return t.size(i) == 1 ? 0 : t.stride(i) * element_bytes; };
    return {data, 0, step(0), step(1)};
}

// Enqueues everything: a kernel, or without keys what torch gives then, O = 0 and a log-sum-exp of -inf. `bounds` are
// those of packed sequences.
void run(const KernelRow &row, const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &out,
         const Extras &extras = {}, const std::optional<Tensor> &lse = std::nullopt,
         const std::vector<Tensor> &bounds = {}) {
    if (q.numel() == 0)  // no element to write
        return;
    const int device = q.get_device_index();
    const torch::stable::accelerator::DeviceGuard guard(device);
    if (k.numel() == 0) {
        torch::stable::fill_(out, 0);
        if (lse)
            torch::stable::fill_(*lse, -std::numeric_limits<double>::infinity());
        return;
    }
    const double scale = extras.scale.value_or(default_scale(row.d_head));
    float *sums = lse ? static_cast<float *>(lse->mutable_data_ptr()) : nullptr;
    if (!bounds.empty()) {
        const auto rows = [](const Tensor &t) { return view_of_rows(t, const_cast<void *>(t.const_data_ptr())); };
        const auto begins = [&](int i) { return static_cast<const std::int32_t *>(bounds[i].const_data_ptr()); };
        const Problem problem{rows(q),   rows(k),
                              rows(v),   view_of_rows(out, out.mutable_data_ptr()),
                              1,         q.size(0),
                              q.size(1), k.size(0),
                              k.size(1), scale,
                              sums,      begins(0),
                              begins(1), bounds[0].numel() - 1};
        launch(row, plan(row, problem, device_for(row, device)), device, current_stream(device));
        return;
    }
    const Problem problem{view_of(q), view_of(k), view_of(v), view_of(out, out.mutable_data_ptr()),
                          q.size(0),  q.size(1),  q.size(2),  k.size(1),
                          k.size(2),  scale,      sums};
    launch(row, plan(row, problem, device_for(row, device)), device, current_stream(device));
}

// A contiguous tensor on q's device, and of q's dtype unless another one is given. What the stable ABI throws says
// nothing; torch's own reason has gone to stderr by then.
Tensor new_result(const char *name, const Tensor &q, torch::headeronly::IntHeaderOnlyArrayRef sizes,
                  std::optional<torch::headeronly::ScalarType> dtype = std::nullopt) {
    try {
        return torch::stable::new_empty(q, sizes, dtype);
    } catch (const std::runtime_error &) {
        std::int64_t bytes = dtype ? 4 : element_bytes;
        for (const std::int64_t size : sizes)
            bytes *= size;
        throw std::runtime_error(std::string(flashladder_namespace) + ": " + name + ": torch could not allocate " +
                                 std::to_string(bytes) + " bytes on " + device_name(q) +
                                 " (its reason is on stderr); free memory or pass " + name);
    }
}

// The row to launch, once all arguments are known to be good; without `out` a new tensor will be allocated.
const KernelRow &checked(const Tensor &q, const Tensor &k, const Tensor &v, const Tensor *out,
                         const std::string &config, const Extras &extras = {}) {
    const TensorFacts of_q = facts_of("q", q);
    return check_arguments(
        {of_q, facts_of("k", k), facts_of("v", v), out ? facts_of("out", *out) : facts_of_output(of_q)}, out != nullptr,
        config, deciding_capability(config, of_q), extras);
}

// Arguments are tensors (batch, seq_len, n_heads, d_head); config is a short form, or empty for the one tuned for q's
// GPU. Returns a new contiguous tensor of q's shape, dtype and device.
Tensor forward(const Tensor &q, const Tensor &k, const Tensor &v, const std::string &config) {
    const KernelRow &row = checked(q, k, v, nullptr, config);
    const Tensor out = new_result("out", q, q.sizes());
    run(row, q, k, v, out);
    return out;
}

void forward_out(const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &out, const std::string &config) {
    run(checked(q, k, v, &out, config), q, k, v, out);
}

// q is (batch, seq_len, n_heads, d_head), k and v (batch, kv_len, n_kv_heads, d_head). Returns out, as `forward`, and
// the log-sum-exp of the scaled scores of each row, fp32 (batch, n_heads, seq_len); (0,) if nobody asked for it.
std::tuple<Tensor, Tensor> attention(const Tensor &q, const Tensor &k, const Tensor &v, bool causal,
                                     std::optional<double> scale, bool return_lse, const std::string &config) {
    const Extras extras{true, causal, scale, return_lse, std::nullopt};
    const KernelRow &row = checked(q, k, v, nullptr, config, extras);
    const Tensor out = new_result("out", q, q.sizes());
    std::vector<std::int64_t> sizes{0};
    if (return_lse)
        sizes = {q.size(0), q.size(2), q.size(1)};
    const Tensor lse = new_result("lse", q, sizes, torch::headeronly::ScalarType::Float);
    run(row, q, k, v, out, extras, return_lse ? std::optional(lse) : std::nullopt);
    return {out, lse};
}

void attention_out(const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &out,
                   const std::optional<Tensor> &lse, bool causal, std::optional<double> scale,
                   const std::string &config) {
    Extras extras{true, causal, scale, lse.has_value(), std::nullopt};
    if (lse)
        extras.lse = facts_of("lse", *lse);
    run(checked(q, k, v, &out, config, extras), q, k, v, out, extras, lse);
}

// The row to launch for packed sequences; `extras` gets the facts of their bounds.
const KernelRow &checked_rows(const Tensor &q, const Tensor &k, const Tensor &v, const Tensor *out,
                              const std::vector<Tensor> &bounds, const std::string &config, Extras &extras) {
    extras.bounds = {facts_of("cu_seqlens_q", bounds[0]), facts_of("cu_seqlens_k", bounds[1])};
    const auto facts = [](const char *name, const Tensor &t) { return as_sample(facts_of(name, t)); };
    const TensorFacts of_q = facts("q", q);
    return check_arguments({of_q, facts("k", k), facts("v", v), out ? facts("out", *out) : facts_of_output(of_q)},
                           out != nullptr, config, deciding_capability(config, of_q), extras);
}

// Sequences one after another: q is (rows, n_heads, d_head), k and v (rows of keys, n_kv_heads, d_head). Sequence i
// begins at row cu_seqlens_q[i] of q and ends before row cu_seqlens_q[i + 1]; cu_seqlens_k says the same of k and v.
// The log-sum-exp is (n_heads, rows).
std::tuple<Tensor, Tensor> attention_varlen(const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &cu_q,
                                            const Tensor &cu_k, bool causal, std::optional<double> scale,
                                            bool return_lse, const std::string &config) {
    Extras extras{true, causal, scale, return_lse, std::nullopt};
    const KernelRow &row = checked_rows(q, k, v, nullptr, {cu_q, cu_k}, config, extras);
    const Tensor out = new_result("out", q, q.sizes());
    std::vector<std::int64_t> sizes{0};
    if (return_lse)
        sizes = {q.size(1), q.size(0)};
    const Tensor lse = new_result("lse", q, sizes, torch::headeronly::ScalarType::Float);
    run(row, q, k, v, out, extras, return_lse ? std::optional(lse) : std::nullopt, {cu_q, cu_k});
    return {out, lse};
}

void attention_varlen_out(const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &cu_q, const Tensor &cu_k,
                          const Tensor &out, const std::optional<Tensor> &lse, bool causal, std::optional<double> scale,
                          const std::string &config) {
    Extras extras{true, causal, scale, lse.has_value(), std::nullopt};
    if (lse)
        extras.lse = facts_of("lse", *lse);
    const KernelRow &row = checked_rows(q, k, v, &out, {cu_q, cu_k}, config, extras);
    run(row, q, k, v, out, extras, lse, {cu_q, cu_k});
}

// The same conditions on facts alone, for tensors without memory: the fake implementations call it while a graph is
// traced. The tensors are q, k, v, out, if `packed` the bounds of sequences, and lse if the caller gives it; `sizes`
// and `strides` (elements) hold `ranks[i]` numbers of each. `addresses` (bytes) lie far apart for tensors of different
// storages; a device that begins with "cuda" is a GPU. The rest are the arguments of `attention`; for `forward`,
// `any_shape` is false.
void check(const std::vector<std::int64_t> &ranks, const std::vector<std::int64_t> &sizes,
           const std::vector<std::int64_t> &strides, const std::vector<std::int64_t> &addresses,
           const std::vector<std::string> &dtypes, const std::vector<std::string> &devices, bool out_given,
           const std::string &config, bool any_shape, bool causal, std::optional<double> scale, bool wants_lse,
           bool packed) {
    std::int64_t begin = 0;
    const auto next = [&](const char *name, std::size_t i) {
        const auto from = begin, to = begin += ranks.at(i);
        return TensorFacts{name,
                           {sizes.begin() + from, sizes.begin() + to},
                           {strides.begin() + from, strides.begin() + to},
                           dtypes.at(i),
                           devices.at(i),
                           devices.at(i).rfind("cuda", 0) == 0,
                           static_cast<std::uintptr_t>(addresses.at(i))};
    };
    std::array<TensorFacts, 4> facts{next("q", 0), next("k", 1), next("v", 2), next("out", 3)};
    Extras extras{any_shape, causal, scale, wants_lse, std::nullopt};
    std::size_t used = facts.size();
    if (packed) {
        for (TensorFacts &one : facts)
            one = as_sample(one);
        for (const char *name : {"cu_seqlens_q", "cu_seqlens_k"})
            extras.bounds.push_back(next(name, used++));
    }
    if (ranks.size() > used)
        extras.lse = next("lse", used);
    check_arguments(facts, out_given, config, deciding_capability(config, facts[0]), extras);
}

// The short forms of this library's kernels, one per line.
std::string configurations() {
    std::string lines;
    for (int i = 0; i < flashladder_n_kernels; ++i)
        lines += std::string(i ? "\n" : "") + flashladder_kernels[i].config;
    return lines;
}

// STABLE_TORCH_LIBRARY with a namespace that is a string: the handles live as long as the library.
struct Registration {
    StableLibrary schemas{StableLibrary::Kind::DEF, flashladder_namespace, nullptr, __FILE__, __LINE__};
    StableLibrary cpu{StableLibrary::Kind::IMPL, flashladder_namespace, "CPU", __FILE__, __LINE__};
    StableLibrary cuda{StableLibrary::Kind::IMPL, flashladder_namespace, "CUDA", __FILE__, __LINE__};
    StableLibrary any{StableLibrary::Kind::IMPL, flashladder_namespace, "CompositeExplicitAutograd", __FILE__,
                      __LINE__};

    Registration() {
        schemas.def("forward(Tensor q, Tensor k, Tensor v, str config=\"\") -> Tensor");
        schemas.def("forward_out(Tensor q, Tensor k, Tensor v, Tensor(a!) out, str config=\"\") -> ()");
        schemas.def(
            "attention(Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None, bool return_lse=False, "
            "str config=\"\") -> (Tensor, Tensor)");
        schemas.def(
            "attention_out(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!)? lse, bool causal=False, "
            "float? scale=None, str config=\"\") -> ()");
        schemas.def("configurations() -> str");
        schemas.def(
            "check(int[] ranks, int[] sizes, int[] strides, int[] addresses, str[] dtypes, str[] devices, "
            "bool out_given, str config, bool any_shape=False, bool causal=False, float? scale=None, "
            "bool wants_lse=False, bool packed=False) -> ()");
        schemas.def(
            "attention_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
            "bool causal=False, float? scale=None, bool return_lse=False, str config=\"\") -> (Tensor, Tensor)");
        schemas.def(
            "attention_varlen_out(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
            "Tensor(a!) out, Tensor(b!)? lse, bool causal=False, float? scale=None, str config=\"\") -> ()");
        for (StableLibrary *library : {&cpu, &cuda}) {
            library->impl("forward", TORCH_BOX(&forward));
            library->impl("forward_out", TORCH_BOX(&forward_out));
            library->impl("attention", TORCH_BOX(&attention));
            library->impl("attention_out", TORCH_BOX(&attention_out));
            library->impl("attention_varlen", TORCH_BOX(&attention_varlen));
            library->impl("attention_varlen_out", TORCH_BOX(&attention_varlen_out));
        }
        any.impl("configurations", TORCH_BOX(&configurations));
        any.impl("check", TORCH_BOX(&check));
    }
};

const Registration registration;

}  // namespace
}  // namespace flashladder
