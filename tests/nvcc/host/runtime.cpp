// A CUDA runtime that prints its calls, and a program that launches through `launch.cpp`. Macros set the GPU.
#include <cuda_runtime_api.h>
#include <cstdio>
#include <stdexcept>
#include "host/launch.h"

extern "C" {
const KernelRow flashladder_kernels[] = {
    {"config", "fp16", 128, 64, 128, 96, 4096, LEAST, 0, nullptr, ALONE, 0, 0, 0, 0, 0, {}}};
const int flashladder_n_kernels = 1;
const char flashladder_namespace[] = "flashladder_07", flashladder_arches[] = ARCHES, flashladder_ptx[] = "compute_80";
const char flashladder_targets[] = "sm_80, sm_90";

const char *cudaGetErrorName(cudaError_t) {
    return "name";
}
const char *cudaGetErrorString(cudaError_t) {
    return "text";
}
cudaError_t cudaGetLastError() {
    std::printf("error taken\n");
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int device) {
    *value = what == cudaDevAttrComputeCapabilityMajor   ? CAPABILITY
             : what == cudaDevAttrComputeCapabilityMinor ? 5
             : what == cudaDevAttrMultiProcessorCount    ? 3 + device
                                                         : 1 << 17;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *found, int) {
    *found = {};
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) {
    return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int value, int device) {
    std::printf("shared memory %d on %d\n", value, device);
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *found, const void *) {
    *found = {};
    found->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t *, const void *, cudaJitOption *, void **, unsigned, cudaLibraryOption *,
                                void **, unsigned) {
    return static_cast<cudaError_t>(LOADS);
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *, cudaLibrary_t, const char *name) {
    std::printf("kernel %s\n", name);
    return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t) {
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    std::printf("device %d\n", device);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int *found, const void *, const cudaLaunchConfig_t *asked) {
    const auto &cluster = asked->attrs[0].val.clusterDim;
    std::printf("clusters of %u %u %u of %u threads and %zu bytes, %u attribute\n", cluster.x, cluster.y, cluster.z,
                asked->blockDim.x, asked->dynamicSmemBytes, asked->numAttrs);
    *found = 100 / static_cast<int>(cluster.x);
    return static_cast<cudaError_t>(REFUSES);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *found, const void *, void **parameters) {
    std::printf("grid %u %u %u block %u shared %zu stream %p argument %d attributes %u", found->gridDim.x,
                found->gridDim.y, found->gridDim.z, found->blockDim.x, found->dynamicSmemBytes,
                static_cast<void *>(found->stream), *static_cast<int *>(parameters[0]), found->numAttrs);
    for (unsigned i = 0; i < found->numAttrs; ++i)
        if (found->attrs[i].id == cudaLaunchAttributeClusterDimension)
            std::printf(" cluster %u %u %u", found->attrs[i].val.clusterDim.x, found->attrs[i].val.clusterDim.y,
                        found->attrs[i].val.clusterDim.z);
    std::printf("\n");
    return cudaSuccess;
}
}

int main() {
    using namespace flashladder;
    try {
        launch(flashladder_kernels[0], Launch(42, {2, 3, 5}), 1, reinterpret_cast<void *>(7));
        launch(flashladder_kernels[0], Launch(43, {6, 3, 5}, {1, 3, 1}), 1, reinterpret_cast<void *>(7));
        for (const unsigned int tiles : {9u, 4u, 3u})
            launch(flashladder_kernels[0], Launch(44, {tiles, 2, 1}, {1, 1, 1}, true), 1, nullptr);
        const Device device = device_for(flashladder_kernels[0], 1);
        for (const int ctas : {2, 8, 2})
            std::printf("%d of %d: %d\n", ctas, device.multiprocessors, device.clusters_at_once(ctas));
        std::printf("2 again: %d\n", device_for(flashladder_kernels[0], 1).clusters_at_once(2));
    } catch (const std::exception &error) {
        std::printf("%s\n", error.what());
    }
}
