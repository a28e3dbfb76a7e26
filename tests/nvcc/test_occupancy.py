"""Occupancy beside NVIDIA's own calculator, the header ``cuda_occupancy.h`` of the CUDA runtime's wheel.

It has units, partitions, CTAs and barriers of each compute capability built in, so that the figures of configs/gpus/
are held to it as well.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
import subprocess

import pytest

from flashladder.ladder.gpus import Gpu, load_gpus
from flashladder.toolchain.wheels import find_toolchain, host_compiler

pytestmark = pytest.mark.nvcc

SOURCE = r"""
#include <cuda_occupancy.h>
#include <cstdio>
int main() {
    cudaOccDeviceProp sm;
    sm.warpSize = 32;
    sm.numSms = 1;
    int barriers, threads, registers, warps;
    size_t shared;
    while (scanf("%d %d %d %d %d %d %zu %zu %d %d %zu %d", &sm.computeMajor, &sm.computeMinor, &sm.maxThreadsPerBlock,
                 &warps, &sm.regsPerBlock, &sm.regsPerMultiprocessor, &sm.sharedMemPerMultiprocessor,
                 &sm.reservedSharedMemPerBlock, &registers, &threads, &shared, &barriers) == 12) {
        sm.maxThreadsPerMultiprocessor = warps * 32;
        sm.sharedMemPerBlock = 48 * 1024;
        sm.sharedMemPerBlockOptin = sm.sharedMemPerMultiprocessor - sm.reservedSharedMemPerBlock;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = INT_MAX;
        kernel.numRegs = registers;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = sm.sharedMemPerBlockOptin;
        kernel.numBlockBarriers = barriers;
        cudaOccResult found;
        cudaOccDeviceState state;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&found, &sm, &kernel, &state, threads, shared)) return 1;
        printf("%d %d %d %d %d %d\n", found.activeBlocksPerMultiprocessor, found.blockLimitRegs,
               found.blockLimitSharedMem, found.blockLimitWarps, found.blockLimitBlocks, found.blockLimitBarriers);
    }
}
"""
REGISTERS = (16, 24, 40, 63, 64, 65, 80, 96, 127, 128, 129, 160, 168, 200, 224, 248, 255)
THREADS = (1, 32, 96, 128, 160, 256, 288, 384, 512, 1024)
SHARED = (0, 1, 1024, 16384, 32768, 49152, 65536, 98304, 99 * 1024, 99 * 1024 + 1, 131072, 163 * 1024, 227 * 1024)
BARRIERS = (1, 3, 16)


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("occupancy")
    source, program = folder / "occupancy.cpp", folder / "occupancy"
    source.write_text(SOURCE)
    include = find_toolchain().root / "include"
    subprocess.run([host_compiler(), "-O1", "-w", "-I", include, source, "-o", program], check=True)
    return program


def query(gpu: Gpu, case: tuple[int, int, int, int]) -> str:
    sm, arch = gpu.sm, gpu.arch.removeprefix("sm_")
    device = (*arch, sm.threads_per_cta, sm.warps, sm.registers_per_cta, sm.registers, sm.shared_bytes)
    return " ".join(map(str, (*device, sm.shared_reserved, *case)))


@pytest.mark.parametrize("key", sorted(load_gpus()))
def test_it_agrees_with_nvidias_calculator(calculator: Path, key: str) -> None:
    gpu = load_gpus()[key]
    cases = list(product(REGISTERS, THREADS, SHARED, BARRIERS))
    done = subprocess.run(
        [calculator], input="\n".join(query(gpu, case) for case in cases), text=True, capture_output=True, check=True
    )
    theirs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(theirs) == len(cases)
    names = ("registers", "shared memory", "warps", "CTAs", "barriers")
    for (registers, threads, shared, barriers), (ctas, *limits) in zip(cases, theirs, strict=True):
        own = gpu.occupancy(registers=registers, threads=threads, shared_bytes=shared, barriers=barriers)
        case = (registers, threads, shared, barriers)
        assert own.ctas == ctas, case
        told = {name: limit for name, limit in zip(names, limits, strict=True) if limit != 2**31 - 1}
        assert own.limits == told, case
