"""The launcher without a GPU: a CUDA runtime that prints the calls of `launch.cpp`."""

from __future__ import annotations

import json
from pathlib import Path
import subprocess

import pytest

from flashladder.paths import KERNELS
from tests.nvcc.conftest import compiled

pytestmark = pytest.mark.nvcc

LAUNCHED = 12  # lines about launches
NOTHING = "(nil)"  # how glibc's printf prints a null pointer
INVALID_VALUE, INVALID_CLUSTER_SIZE, NO_IMAGE = 1, 912, 209  # cudaError_t
RUNTIME = r"""
#include <cstdio>
#include <cuda_runtime_api.h>
#include <stdexcept>
#include "host/launch.h"

extern "C" {
const KernelRow flashladder_kernels[] = {{"config", "fp16", 128, 64, 128, 96, 4096, LEAST, 0, nullptr, ALONE,
                                         0, 0, {}}};
const int flashladder_n_kernels = 1;
const char flashladder_namespace[] = "flashladder_07", flashladder_arches[] = ARCHES, flashladder_ptx[] = "compute_80";
const char flashladder_targets[] = "sm_80, sm_90";

const char *cudaGetErrorName(cudaError_t) { return "name"; }
const char *cudaGetErrorString(cudaError_t) { return "text"; }
cudaError_t cudaGetLastError() { std::printf("error taken\n"); return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int device) {
    *value = what == cudaDevAttrComputeCapabilityMajor   ? CAPABILITY
             : what == cudaDevAttrComputeCapabilityMinor ? 5
             : what == cudaDevAttrMultiProcessorCount    ? 3 + device
                                                         : 1 << 17;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *found, int) { *found = {}; return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }
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
cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { std::printf("device %d\n", device); return cudaSuccess; }
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
"""


def ran(folder: Path, capability: int, **defined: object) -> subprocess.CompletedProcess[str]:
    """The launcher on a GPU of compute capability N.5; `defined` are macros of the program, such as ``LEAST``."""
    macros = {"CAPABILITY": capability, "LEAST": 80, "ALONE": 0, "REFUSES": 0, "LOADS": 0, "ARCHES": "sm_80, sm_90"}
    options = [f"-D{name}={json.dumps(value)}" for name, value in (macros | defined).items()]
    program = compiled(folder, RUNTIME, KERNELS / "host" / "launch.cpp", *options)
    return subprocess.run([program], capture_output=True, text=True, check=True)


def printed(folder: Path, capability: int, **defined: object) -> list[str]:
    """The calls of the runtime, or the launcher's error."""
    return ran(folder, capability, **defined).stdout.splitlines()


def test_the_runtime_gets_the_launch_as_it_was_planned_and_is_asked_once_a_size(tmp_path: Path) -> None:
    lines = printed(tmp_path, 9)
    resident = f"block 96 shared 4096 stream {NOTHING} argument 44 attributes 0"  # x is at most the multiprocessors
    assert lines[:LAUNCHED] == [
        *("device 1", "kernel flash_fwd_kernel", "shared memory 4096 on 1"),
        "grid 2 3 5 block 96 shared 4096 stream 0x7 argument 42 attributes 0",
        "device 1",
        "grid 6 3 5 block 96 shared 4096 stream 0x7 argument 43 attributes 1 cluster 1 3 1",
        *("device 1", f"grid 4 2 1 {resident}", "device 1", f"grid 4 2 1 {resident}"),
        *("device 1", f"grid 3 2 1 {resident}"),
    ]
    asked = [f"clusters of {ctas} 1 1 of 96 threads and 4096 bytes, 1 attribute" for ctas in (2, 8)]
    assert lines[LAUNCHED:] == [
        *("device 1", asked[0], "2 of 4: 50", asked[1], "8 of 4: 12", "2 of 4: 50", "device 1", "2 again: 50"),
    ]
    # the driver refuses the size on a slice that is too small for any cluster; no error is left behind
    assert printed(tmp_path, 9, REFUSES=INVALID_CLUSTER_SIZE)[LAUNCHED:] == [
        *("device 1", asked[0], "error taken", "2 of 4: 0", asked[1], "error taken", "8 of 4: 0"),
        *("2 of 4: 0", "device 1", "2 again: 0"),
    ]


@pytest.mark.parametrize(
    ("capability", "defined", "message"),
    [
        (9, {"REFUSES": INVALID_VALUE}, "asking how many clusters run at once failed: name (text)"),
        (7, {}, "q: expected a GPU of compute capability 8.0 or later, found sm_75 ()"),
        (8, {"LEAST": 95, "ALONE": 1}, "q: expected a GPU of compute capability 9.5, no other, found sm_85 ()"),
        (10, {"LEAST": 95, "ALONE": 1}, "q: expected a GPU of compute capability 9.5, no other, found sm_105 ()"),
    ],
)
def test_what_cannot_be_launched_is_one_line(
    tmp_path: Path, capability: int, defined: dict[str, object], message: str
) -> None:
    assert printed(tmp_path, capability, **defined)[-1] == f"flashladder_07: {message}"


@pytest.mark.parametrize(
    ("capability", "arches", "compiled"),
    [
        (8, "sm_80", False),  # 8.5 runs code for 8.0
        (8, "sm_86, sm_90", True),  # not that of a later one
        (9, "sm_90a", True),  # for 9.0 alone
        (9, "sm_95a", False),
    ],
)
def test_ptx_that_the_driver_compiles_is_told_once(
    tmp_path: Path, capability: int, arches: str, compiled: bool
) -> None:
    """On stderr, and before the launch nothing else changes."""
    done = ran(tmp_path, capability, ARCHES=arches)
    assert len(done.stdout.splitlines()) == LAUNCHED + 8
    assert len(done.stderr.splitlines()) == int(compiled)
    if compiled:
        arch = f"sm_{capability}5"
        for piece in ("flashladder_07: ", f"no machine code for {arch}", arches, "PTX", f"7 -- --arch {arch}"):
            assert piece in done.stderr


def test_no_build_is_offered_that_the_toolchain_cannot_make(tmp_path: Path) -> None:
    message = ran(tmp_path, 12, ARCHES="sm_80").stderr
    assert "no machine code for sm_125" in message
    assert "--arch" not in message
    refused = ran(tmp_path, 12, ARCHES="sm_80", LOADS=NO_IMAGE).stdout.splitlines()[-1]
    assert "no code for this GPU" in refused
    assert refused.endswith("; update the driver")
    done = ran(tmp_path, 9, ARCHES="sm_80", LOADS=NO_IMAGE)  # what does not load is not reported as compiled
    assert "no code for this GPU: expected machine code for one of sm_80" in done.stdout
    assert "--arch sm_95` or update the driver" in done.stdout
    assert done.stderr == ""
