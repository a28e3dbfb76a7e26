"""Telemetry on a stand-in for NVML, the GPU lock, and identities read from an installed wheel's manifest."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashladder.build.wheel import Installed
from flashladder.errors import FlashladderError
from flashladder.gpu.device import Telemetry, exclusive, form_factor
from flashladder.ladder.ablation import Subject
from flashladder.ladder.config import KernelConfig
from tests.data_files import table_of
from tests.null.bench_fixture import FAST


class FakeNvml:
    """Answers like a GPU; what is in `refused` raises as NVML does."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, refused: tuple[str, ...] = (), pids: tuple[int, ...] = ()) -> None:
        self.refused = refused
        self.pids = pids
        self.answers: dict[str, Any] = {
            **dict.fromkeys(("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByIndex")),
            **dict(table_of("gpu/telemetry", "answers")),
            "nvmlDeviceGetName": b"NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=140 << 30),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=pid) for pid in pids],
        }

    def __getattr__(self, name: str) -> Any:
        def answer(*_: object) -> Any:
            if name in self.refused:
                raise self.NVMLError(name)
            return self.answers[name]

        if name not in self.answers:
            raise AttributeError(name)
        return answer


def telemetry(**options: Any) -> Telemetry:
    ticks = iter(range(100))
    return Telemetry(FakeNvml(**options), object(), clock=lambda: float(next(ticks)))


def test_what_a_gpu_answers_has_units_that_people_use_and_what_it_does_not_is_none() -> None:
    found = telemetry().sample()
    assert (found.power_w, found.sm_clock_mhz, found.temperature_c, found.throttle_bits) == (612.5, 1755, 55, 4)
    assert (found.t_s, telemetry().energy_mj()) == (1.0, 98_765_432_100)
    older = telemetry(refused=("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetPowerUsage"))
    assert (older.sample().throttle_bits, older.sample().power_w) == (0x8, None)


def test_identity() -> None:
    gpu = telemetry(refused=("nvmlDeviceGetMigMode",)).identity(n_sm=132, l2_bytes=62_914_560)
    assert (gpu.name, gpu.arch, gpu.form_factor, gpu.driver) == ("NVIDIA H200", "sm_90", "SXM5", "580.1")
    assert (gpu.ecc, gpu.mig, gpu.power_limit_w) == (True, None, 700.0)
    assert telemetry().identity(n_sm=132, l2_bytes=62_914_560).mig is False


def test_form_factor() -> None:
    names = {
        "NVIDIA A100-SXM4-80GB": "SXM4", "NVIDIA H100 PCIe": "PCIe", "NVIDIA H200": "SXM5", "NVIDIA H200 NVL": "NVL",
        "NVIDIA GeForce RTX 3090": "PCIe", "Something": None,
    }  # fmt: skip
    assert {name: form_factor(name) for name in names} == names


@pytest.mark.parametrize(
    ("pids", "own_context", "expected"),
    [((), True, 0), ((4_000_000,), False, 1), ((4_000_000,), True, 0), ((os.getpid(), 4_000_000), True, 1)],
)
def test_foreign_processes_also_where_our_own_id_is_hidden(
    pids: tuple[int, ...], own_context: bool, expected: int
) -> None:
    assert telemetry(pids=pids).foreign_processes(own_context=own_context) == expected
    assert telemetry(refused=("nvmlDeviceGetComputeRunningProcesses",)).foreign_processes(own_context=True) is None


def test_one_timing_run_per_gpu(tmp_path: Path) -> None:
    with exclusive("GPU-1", tmp_path):
        with exclusive("GPU-2", tmp_path):
            pass
        with pytest.raises(FlashladderError, match="another flashladder process"), exclusive("GPU-1", tmp_path):
            pass
    with exclusive("GPU-1", tmp_path):
        pass


def test_identity_from_the_manifest() -> None:
    toolchain, host = {"nvcc": "13.0.88"}, {"versions": {"host_compiler": "g++ 12"}}
    inputs = {"toolchain": toolchain, "host": host, "flags": {"ptxas": ["-v", "-lineinfo"]}}
    kernels = {FAST: {"sm_90": {"text_sha256": "ab"}}}
    wheel = Installed(Subject(16), lambda *_: None, {"inputs": inputs, "inputs_digest": "d", "kernels": kernels})
    found, jit = (wheel.identity(KernelConfig.parse(FAST), arch) for arch in ("sm_90", "sm_120"))
    assert (found.text_sha256, found.build, jit.text_sha256) == ("ab", "d", None)
    assert found.toolchain == {"nvcc": "13.0.88", "host_compiler": "g++ 12", "ptxas flags": "-v -lineinfo"}
