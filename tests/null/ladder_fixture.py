"""A small results/ folder with made-up timings, for tests of report and gate; never committed, always in a tmp_path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
import shutil

from flashladder.cases.inputs import Case, cases_for, layouts
from flashladder.files import sha256
from flashladder.gpu.ncu import csv_beside, to_csv
from flashladder.gpu.sanitize import TOOLS
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_all
from flashladder.lock.schema import Lock, LockedKernel, LockFile, write_lock
from flashladder.problem import Shape
from flashladder.results.derive import derive
from flashladder.results.files import load_result, write_result
from flashladder.results.published import PUBLISHED
from flashladder.results.schema import (
    A_A,
    Accuracy,
    BenchResult,
    Block,
    CaseResult,
    CheckResult,
    CounterResult,
    Finding,
    Gpu,
    Group,
    Host,
    Kernel,
    Pair,
    Process,
    Reference,
    Sample,
    SanitizerResult,
    Series,
    Settings,
    kernel_key,
)

LENGTHS = {512: 16, 1024: 16, 2048: 16, 4096: 16, 8192: 8, 16384: 4}
N_PAIRS = 6
TIMED = tuple(one.number for one in load_all() if "sm_90" in one.family.targets.arches)  # steps in a file of `make`
FINE = Accuracy(max_error=0.0, max_allowed=1.0, rms_error=0.0, rms_allowed=1.0, finite=True)


@dataclass(frozen=True)
class Fixture:
    """Where the made-up results lie, and the bench file in them."""

    folder: Path
    bench: Path


def text_hash(iteration: int, config: str) -> str:
    """A stand-in for the digest of machine code."""
    return sha256(f"{iteration} {config}")


def make(
    folder: Path,
    percent: Callable[[int], float],
    *,
    gpu: str = "NVIDIA H200",
    configs_of: str = "h200",
    lengths: Iterable[int] = LENGTHS,
    stale: Mapping[int, str | None] | None = None,
) -> Fixture:
    """Writes published figures, locks and one bench file in which iteration n runs at `percent(n)` of FA2.

    Iterations without code for that very architecture are not in it.

    Args:
        folder: an empty folder that becomes results/.
        percent: percent of FA2 per iteration.
        gpu: device name as a driver reports it.
        configs_of: GPU key whose configurations are timed.
        lengths: sequence lengths.
        stale: iteration -> another text hash than the locked one (None: compiled by the driver).
    """
    shutil.copytree(PUBLISHED, folder / "published")
    arch = "sm_90" if "H200" in gpu else "sm_80"
    ladder = [one for one in load_all() if arch in one.family.targets.arches]
    configs = {one.number: one.configs[configs_of].short_form() for one in ladder}
    locks = {one.number: _lock(one.number, {c.short_form() for c in one.configs.values()}) for one in ladder}
    for arch in ("sm_80", "sm_90"):
        write_lock(LockFile(arch=arch, iterations=locks), folder / "locks")
    kernels = {
        kernel_key(number, config): Kernel(
            iteration=number, config=config, dtype="fp16", arch=arch, toolchain={},
            text_sha256=(stale or {}).get(number, text_hash(number, config)),
        )
        for number, config in configs.items()
    }  # fmt: skip
    speeds = {kernel_key(number, config): percent(number) for number, config in configs.items()}
    result = BenchResult(
        rung="GPU",
        gpu=_gpu(gpu, "9.0" if arch == "sm_90" else "8.0"),
        host=Host(digest="0" * 16, cpu="none", n_cpus=1, system="none", python="3.11.0"),
        kernels=kernels,
        reference=Reference(op="fa2", torch="2.13.0", cuda="13.0", kernels={}),
        settings=Settings(pairs=N_PAIRS, blocks=1, min_pairs=1, flush_bytes=2),
        processes=(Process(index=0, started_utc="2026-01-01T00:00:00Z", foreign_before=0),),
        groups=tuple(_group(length, speeds) for length in lengths),
    )
    path = folder / "machine" / "bench.json.gz"
    write_result(path, derive(result))
    return Fixture(folder, path)


def complete(fixture: Fixture) -> Fixture:
    """Adds to the machine's folder what belongs beside a benchmark: checks, sanitizers, counters, tuning."""
    bench = load_result(fixture.bench)
    assert isinstance(bench, BenchResult)
    machine, kernels = fixture.bench.parent, bench.kernels
    shape = Shape(batch=1, seq_len=1024, n_heads=16, d_head=128)
    cases = tuple(
        _case(kernel, case)
        for kernel in kernels.values()
        for case in cases_for(KernelConfig.parse(kernel.config))
    )  # fmt: skip
    check = CheckResult(
        rung=bench.rung, gpu=bench.gpu, host=bench.host, kernels=kernels, reference=bench.reference, cases=cases
    )
    findings = tuple(Finding(tool=tool, clean=True, errors=0, seconds=1.0, tail="") for tool in TOOLS)
    sanitizer = SanitizerResult(
        rung=bench.rung, gpu=bench.gpu, host=bench.host, kernels=kernels, shape=shape, findings=findings
    )
    counters = CounterResult(
        rung=bench.rung, gpu=bench.gpu, host=bench.host, kernels=kernels, shape=shape, ncu="test",
        counters={key: {"a": index, "b": 1} for index, key in enumerate(kernels)},
    )  # fmt: skip
    write_result(machine / "check.json.gz", check)
    write_result(machine / "sanitizer.json.gz", sanitizer)
    csv_beside(write_result(machine / "counters.json.gz", counters)).write_text(to_csv(counters), encoding="utf-8")
    unlocked = {key: kernel.model_copy(update={"text_sha256": "1" * 64}) for key, kernel in kernels.items()}
    write_result(machine / "tune.json.gz", bench.model_copy(update={"purpose": "tune", "kernels": unlocked}))
    return fixture


def _case(kernel: Kernel, case: Case) -> CaseResult:
    refused = kernel.iteration == 16 and any(layout.seq != 2048 for layout in layouts(case))
    return CaseResult(
        kernel=kernel.key, case=case.name, dtype=kernel.dtype, shape=case.shape,
        status="not_applicable" if refused else "pass", accuracy=None if refused else FINE,
    )  # fmt: skip


def _lock(number: int, configs: set[str]) -> Lock:
    kernels = {
        config: LockedKernel(
            text_sha256=text_hash(number, config), ptx_sha256="0" * 64, registers=200 + number, spill_stores=8,
            spill_loads=12, stack=0, static_smem=0, dynamic_smem=0, counts={}, main_loop={},
        )
        for config in configs
    }  # fmt: skip
    return Lock(history=("made up",), toolchain={}, flags={}, files={}, kernels=kernels)


def _gpu(name: str, capability: str) -> Gpu:
    return Gpu(
        name=name, uuid="GPU-0", form_factor=None, compute_capability=capability, n_sm=1, l2_bytes=1, memory_bytes=1,
        power_limit_w=None, max_sm_clock_mhz=None, ecc=None, mig=None, driver="580",
    )  # fmt: skip


def _group(length: int, speeds: Mapping[str, float]) -> Group:
    shape = Shape(batch=LENGTHS[length], seq_len=length, n_heads=16, d_head=128)
    reference_us = shape.flops / 300e6  # 300 TFLOP/s
    sample = Sample(
        t_s=0.0, sm_clock_mhz=1500, memory_clock_mhz=None, power_w=None, temperature_c=None, throttle_bits=0
    )  # fmt: skip

    def pairs(percent: float) -> tuple[Pair, ...]:
        jitter = (1 + 0.001 * (index - N_PAIRS / 2) for index in range(N_PAIRS))
        return tuple(Pair(0, 0, reference_us * wobble, reference_us * 100 / percent) for wobble in jitter)

    return Group(
        process=0, dtype="fp16", shape=shape, input_seeds=(0,), warm_up_s=0.0,
        blocks=(Block(index=0, kernel_first=True, order=(A_A, *speeds), samples=(sample, sample)),),
        series=(
            Series(kernel=A_A, pairs=pairs(100.0)),
            *(Series(kernel=key, pairs=pairs(speed), before=FINE, after=FINE) for key, speed in speeds.items()),
        ),
    )  # fmt: skip
