// Loads a kernel's fatbin at first use and enqueues it: the only file that speaks to the CUDA runtime.
//
// cudart is linked statically, so that the library asks for a driver and nothing else; the runtime's own copy in torch
// shares the device's primary context, its memory and its streams.
#include "host/launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace flashladder {
namespace {

std::string cuda_text(cudaError_t error) {
    return std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
}

[[noreturn]] void fail(const std::string &message) {
    throw std::runtime_error(std::string(flashladder_namespace) + ": " + message);
}

void check(cudaError_t error, const char *doing) {
    if (error == cudaSuccess)
        return;
    cudaGetLastError();  // a failed call is reported once, here
    fail(std::string(doing) + " failed: " + cuda_text(error));
}

int attribute(cudaDeviceAttr name, int device) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, name, device), "reading a device attribute");
    return value;
}

std::string iteration_number() {
    const std::string name = flashladder_namespace;
    const std::size_t digit = name.find_first_of("123456789");
    return digit == std::string::npos ? "N" : name.substr(digit);
}

int known_capability(int device) {
    return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
           attribute(cudaDevAttrComputeCapabilityMinor, device);
}

std::string arch_of(int capability) {
    return "sm_" + std::to_string(capability);
}

// "sm_90 (NVIDIA H200)", for errors: asking for the name takes milliseconds.
std::string described(int device) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "reading the device's name");
    return arch_of(known_capability(device)) + " (" + properties.name + ")";
}

// Whether a GPU runs machine code for one of `arches`, "sm_80, sm_90a": its own, or of an earlier minor version of its
// major one; "sm_90a" runs on 9.0 alone.
bool runs_one_of(const char *arches, int capability) {
    while ((arches = std::strstr(arches, "sm_")) != nullptr) {
        char *end = nullptr;
        const int arch = static_cast<int>(std::strtol(arches + 3, &end, 10));
        const bool alone = *end == 'a';
        if (alone ? arch == capability : arch / 10 == capability / 10 && arch <= capability)
            return true;
        arches = end;
    }
    return false;
}

// The command that makes machine code for a GPU; empty where the toolchain makes none.
std::string build_for(int capability) {
    if (!runs_one_of(flashladder_targets, capability))
        return "";
    return "; build it with `nox -s build-iteration-" + iteration_number() + " -- --arch " + arch_of(capability) + "`";
}

// Says on stderr, once a process, that the driver compiles the PTX for GPUs of a compute capability: then what runs is
// not the machine code that was locked and measured.
void tell_compiled(int capability) {
    static std::mutex mutex;
    static std::set<int> told;
    if (runs_one_of(flashladder_arches, capability))
        return;
    const std::lock_guard<std::mutex> lock(mutex);
    if (!told.insert(capability).second)
        return;
    std::fprintf(stderr, "%s: no machine code for %s in this wheel (it has %s): the driver compiles its %s PTX%s\n",
                 flashladder_namespace, arch_of(capability).c_str(), flashladder_arches, flashladder_ptx,
                 build_for(capability).c_str());
}

// Loading a module calls what stream capture forbids by default; none of it enters the graph.
class RelaxedCapture {
  public:
    RelaxedCapture() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "relaxing the stream capture mode"); }
    ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    RelaxedCapture(const RelaxedCapture &) = delete;
    RelaxedCapture &operator=(const RelaxedCapture &) = delete;

  private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The driver has neither machine code nor usable PTX for this GPU: 209 no image, 222 PTX too new, 218 JIT failed ...
bool is_missing_code(cudaError_t error) {
    return error == cudaErrorNoKernelImageForDevice || error == cudaErrorUnsupportedPtxVersion ||
           error == cudaErrorInvalidPtx || error == cudaErrorJitCompilerNotFound ||
           error == cudaErrorJitCompilationDisabled || error == cudaErrorInvalidKernelImage;
}

void check_code(cudaError_t error, int device) {
    if (!is_missing_code(error))
        return check(error, "loading the kernel");
    cudaGetLastError();
    const std::string build = build_for(known_capability(device));
    fail("no code for this GPU: expected machine code for one of " + std::string(flashladder_arches) +
         " or a driver that compiles the " + flashladder_ptx + " PTX, found " + described(device) + ", " +
         cuda_text(error) + build + (build.empty() ? "; " : " or ") + "update the driver");
}

void check_device(const KernelRow &row, int device) {
    const int found = known_capability(device);
    if (found < row.capability || (row.alone && found != row.capability)) {
        const std::string least = std::to_string(row.capability / 10) + "." + std::to_string(row.capability % 10);
        fail("q: expected a GPU of compute capability " + least + (row.alone ? ", no other" : " or later") +
             ", found " + described(device));
    }
    const int limit = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (row.smem_bytes > limit) {
        fail("config: expected at most " + std::to_string(limit) + " bytes of shared memory per CTA on " +
             described(device) + ", found " + std::to_string(row.smem_bytes) + " for " + row.config +
             "; choose smaller B_r or B_c");
    }
}

cudaLaunchAttribute cluster_of(const Extent &ctas) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = ctas.x;
    cluster.val.clusterDim.y = ctas.y;
    cluster.val.clusterDim.z = ctas.z;
    return cluster;
}

cudaLaunchConfig_t config_of(const KernelRow &row, const Extent &grid) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(grid.x, grid.y, grid.z);
    config.blockDim = dim3(static_cast<unsigned int>(row.n_threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(row.smem_bytes);
    return config;
}

void make_current(int device) {
    int current = -1;
    check(cudaGetDevice(&current), "reading the current device");
    if (current != device)
        check(cudaSetDevice(device), "selecting q's device");
}

class Kernel {
  public:
    // The kernel, ready for `device`. A failure is not remembered: the next call tries again.
    cudaKernel_t ready(const KernelRow &row, int device) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (devices_.count(device) != 0)
            return kernel_;
        const RelaxedCapture relaxed;
        check_device(row, device);
        if (kernel_ == nullptr)
            load(row, device);
        check_code(cudaKernelSetAttributeForDevice(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize, row.smem_bytes,
                                                   device),
                   device);
        cudaFuncAttributes facts;  // asking makes a lazily loading driver load it now, not inside a timing or a graph
        check_code(cudaFuncGetAttributes(&facts, static_cast<const void *>(kernel_)), device);
        if (facts.maxThreadsPerBlock < row.n_threads) {
            fail("config: expected at most " + std::to_string(facts.maxThreadsPerBlock) +
                 " threads per CTA (the kernel's registers allow no more), found " + std::to_string(row.n_threads) +
                 " for " + row.config);
        }
        tell_compiled(known_capability(device));
        devices_.insert(device);
        return kernel_;
    }

    // Clusters of so many CTAs that the current device, `device`, runs at once.
    int clusters_at_once(const KernelRow &row, int device, int ctas) {
        const cudaKernel_t kernel = ready(row, device);
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = clusters_.find({device, ctas});
        if (found != clusters_.end())
            return found->second;
        const RelaxedCapture relaxed;
        cudaLaunchAttribute cluster = cluster_of({static_cast<unsigned int>(ctas), 1, 1});
        cudaLaunchConfig_t config = config_of(row, {static_cast<unsigned int>(ctas), 1, 1});
        config.attrs = &cluster;
        config.numAttrs = 1;
        int clusters = 0;
        const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, static_cast<const void *>(kernel), &config);
        if (error == cudaErrorInvalidClusterSize) {  // a slice of a GPU may be too small for any: nothing is split
            cudaGetLastError();
            clusters = 0;
        } else {
            check(error, "asking how many clusters run at once");
        }
        clusters_.emplace(std::make_pair(device, ctas), clusters);
        return clusters;
    }

  private:
    void load(const KernelRow &row, int device) {
        cudaLibrary_t library = nullptr;
        check_code(cudaLibraryLoadData(&library, row.fatbin, nullptr, nullptr, 0, nullptr, nullptr, 0), device);
        cudaKernel_t kernel = nullptr;
        const cudaError_t error = cudaLibraryGetKernel(&kernel, library, kernel_symbol);
        if (error != cudaSuccess)
            cudaLibraryUnload(library);
        check_code(error, device);
        kernel_ = kernel;  // the library stays loaded for the life of the process
    }

    std::mutex mutex_;
    cudaKernel_t kernel_ = nullptr;
    std::set<int> devices_;
    std::map<std::pair<int, int>, int> clusters_;  // device and CTAs of one to how many run at once
};

Kernel &kernel_of(const KernelRow &row) {
    static const std::unique_ptr<Kernel[]> kernels(new Kernel[flashladder_n_kernels]);
    return kernels[&row - flashladder_kernels];
}

}  // namespace

int capability_of(int device) {
    try {
        return known_capability(device);
    } catch (const std::runtime_error &) {
        return 0;
    }
}

Device device_for(const KernelRow &row, int device) {
    make_current(device);
    return {attribute(cudaDevAttrMultiProcessorCount, device),
            [&row, device](int ctas) { return kernel_of(row).clusters_at_once(row, device, ctas); }};
}

void launch(const KernelRow &row, const Launch &planned, int device, void *stream) {
    make_current(device);
    const cudaKernel_t kernel = kernel_of(row).ready(row, device);
    const unsigned int most = planned.resident
                                  ? static_cast<unsigned int>(attribute(cudaDevAttrMultiProcessorCount, device))
                                  : planned.grid.x;
    cudaLaunchAttribute cluster = cluster_of(planned.cluster);
    cudaLaunchConfig_t config = config_of(row, {std::min(planned.grid.x, most), planned.grid.y, planned.grid.z});
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &cluster;
    config.numAttrs = planned.cluster.x * planned.cluster.y * planned.cluster.z > 1 ? 1 : 0;
    void *parameters[] = {const_cast<unsigned char *>(planned.arguments.data())};
    check(cudaLaunchKernelExC(&config, static_cast<const void *>(kernel), parameters),
          "launching the kernel (or an earlier kernel on this GPU)");
}

}  // namespace flashladder
