"""A small results/ folder with invented timings, for tests of report and gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
import shutil

from flashladder.files import sha256
from flashladder.ladder.iteration import load_all
from flashladder.lock.schema import Lock, LockedKernel, LockFile, write_lock
from flashladder.problem import Problem
from flashladder.results import schema
from flashladder.results.derive import derive
from flashladder.results.files import write_result
from flashladder.results.published import PUBLISHED
from flashladder.results.schema import A_A, BenchResult, Block, Group, Kernel, Pair, Process, Series, kernel_key
from tests.null.bench_fixture import GOOD, GPU, HOST, sample

LENGTHS = {512: 16, 1024: 16, 2048: 16, 4096: 16, 8192: 8, 16384: 4}
N_PAIRS = 6
TIMED = tuple(one.number for one in load_all() if "sm_90" in one.family.targets.arches)  # steps in a file of `make`


@dataclass(frozen=True)
class Fixture:
    """The folder of the invented results, and the bench file in it."""

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

    The file omits iterations without code for the GPU's exact architecture.
    `stale`: iteration -> another text hash than the locked one (None: compiled by the driver).
    """
    shutil.copytree(PUBLISHED, folder / "published")
    arch = "sm_90" if "NVIDIA H" in gpu else "sm_80"
    ladder = [one for one in load_all() if arch in one.family.targets.arches]
    configs = {one.number: one.configs[configs_of].short_form() for one in ladder}
    forms = {one.number: map(str, one.configs.values()) for one in ladder}
    locks = {n: lock({form: text_hash(n, form) for form in own}, registers=200 + n) for n, own in forms.items()}
    for known in ("sm_80", "sm_90"):
        write_lock(LockFile(arch=known, iterations=locks), folder / "locks")
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
        gpu=GPU.model_copy(
            update={"name": gpu, "compute_capability": f"{arch[3:4]}.0", "n_sm": 1, "l2_bytes": 1, "driver": "580"}
        ),
        host=HOST,
        kernels=kernels,
        reference=schema.Reference(op="fa2", torch="2.13.0", cuda="13.0", kernels={}),
        settings=schema.Settings(pairs=N_PAIRS, blocks=1, min_pairs=1, flush_bytes=2),
        processes=(Process(index=0, started_utc="2026-01-01T00:00:00Z", foreign_before=0),),
        groups=tuple(_group(length, speeds) for length in lengths),
    )
    path = folder / "machine" / "bench.json.gz"
    write_result(path, derive(result))
    return Fixture(folder, path)


def lock(texts: Mapping[str, str], registers: int = 1) -> Lock:
    """An iteration's lock; `texts` maps short forms to digests of machine code."""
    zeros = dict.fromkeys(("spill_stores", "spill_loads", "stack", "static_smem", "dynamic_smem"), 0)
    kernels = {
        form: LockedKernel(text_sha256=text, ptx_sha256="0" * 64, registers=registers, counts={}, main_loop={}, **zeros)
        for form, text in texts.items()
    }
    return Lock(history=("made up",), toolchain={}, flags={}, files={}, kernels=kernels)


def _group(length: int, speeds: Mapping[str, float]) -> Group:
    shape = Problem(batch=LENGTHS[length], seq_len=length, n_heads=16, d_head=128)
    reference_us = shape.flops / 300e6  # 300 TFLOP/s
    looked = sample().model_copy(update={"sm_clock_mhz": 1500})

    def pairs(percent: float) -> tuple[Pair, ...]:
        jitter = (1 + 0.001 * (index - N_PAIRS / 2) for index in range(N_PAIRS))
        return tuple(Pair(0, 0, reference_us * wobble, reference_us * 100 / percent) for wobble in jitter)

    return Group(
        process=0, dtype="fp16", shape=shape, input_seeds=(0,), warm_up_s=0.0,
        blocks=(Block(index=0, kernel_first=True, order=(A_A, *speeds), samples=(looked, looked)),),
        series=(
            Series(kernel=A_A, pairs=pairs(100.0)),
            *(Series(kernel=key, pairs=pairs(speed), before=GOOD, after=GOOD) for key, speed in speeds.items()),
        ),
    )  # fmt: skip
