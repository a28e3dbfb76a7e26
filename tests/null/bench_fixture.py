"""Made-up measurements for tests: a complete bench result, sustained runs, what NVBench and ncu write.

The bench result has two kernels, one length and twelve pairs in four blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from pathlib import Path
import random
from typing import Any

import numpy as np

from flashladder.bench.cross_checks import METRICS, SAMPLE_TIMES, Rounds, derive
from flashladder.bench.references import REFERENCE_OP
from flashladder.names import CYCLES, DURATION
from flashladder.problem import Problem
from flashladder.results import schema
from flashladder.results.derive import derive as derive_paired
from flashladder.results.schema import A_A, BenchResult, EnergyResult, Group, Kernel, Opinion, Sample, Series, Sustained

FAST = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles"
SLOW = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
SHAPE = Problem(batch=16, seq_len=4096, n_heads=16, d_head=128)
GOOD = schema.Accuracy(max_error=1e-4, max_allowed=3e-4, rms_error=2e-4, rms_allowed=5e-4, finite=True)
GPU = schema.Gpu(
    name="NVIDIA Example 1", uuid="GPU-0", form_factor="SXM5", compute_capability="9.0", n_sm=132, l2_bytes=60_000_000,
    memory_bytes=1, power_limit_w=700.0, max_sm_clock_mhz=1980, ecc=True, mig=False, driver="580.0",
)  # fmt: skip


HOST = schema.Host(digest="0", cpu="c", n_cpus=1, system="s", python="3.12")


def sample(bits: int = 0) -> Sample:
    return Sample(t_s=1.0, sm_clock_mhz=1700, memory_clock_mhz=1, power_w=600.0, temperature_c=50, throttle_bits=bits)


def pairs(speed: float, seed: int, shape: Problem = SHAPE) -> tuple[schema.Pair, ...]:
    draw = random.Random(seed)
    base = shape.flops / 350e12 * 1e6
    return tuple(
        schema.Pair(block, turn, base * draw.uniform(0.999, 1.001), base / speed * draw.uniform(0.999, 1.001))
        for block in range(4)
        for turn in range(3)
    )


def kernel(number: int, config: str, text: str | None = "ab" * 32) -> Kernel:
    return Kernel(
        iteration=number, config=config, dtype="fp16", arch="sm_90", text_sha256=text, toolchain={"nvcc": "13.0.88"}
    )


def group(process: int = 0, shape: Problem = SHAPE, bits: tuple[int, int] = (0, 0)) -> Group:
    blocks = tuple(
        schema.Block(
            index=index, kernel_first=bool(index % 2), order=(A_A, kernel(16, FAST).key, kernel(1, SLOW).key),
            samples=(sample(bits[0]), sample(bits[1])) if index == 0 else (sample(), sample()),
        )
        for index in range(4)
    )  # fmt: skip
    return Group(
        process=process, dtype="fp16", shape=shape, input_seeds=(1, 2, 3), warm_up_s=1.0, blocks=blocks,
        series=(
            Series(kernel=A_A, pairs=pairs(1.0, 1 + process, shape)),
            Series(kernel=kernel(16, FAST).key, pairs=pairs(1.1, 2 + process, shape), before=GOOD, after=GOOD),
            Series(kernel=kernel(1, SLOW).key, pairs=pairs(0.16, 3 + process, shape), before=GOOD, after=GOOD),
        ),
    )  # fmt: skip


def result(*groups: Group) -> BenchResult:
    kernels = [kernel(16, FAST), kernel(1, SLOW)]
    return BenchResult(
        rung="GPU", gpu=GPU, host=HOST,
        kernels={one.key: one for one in kernels},
        reference=schema.Reference(op=REFERENCE_OP, torch="2.11", cuda="13.0", kernels={}),
        settings=schema.Settings(pairs=12, blocks=4, min_pairs=9, flush_bytes=2**28),
        processes=(schema.Process(index=0, started_utc="2026-01-01T00:00:00+00:00", foreign_before=0),),
        groups=groups or (group(),),
    )  # fmt: skip


KERNELS = (kernel(1, SLOW).key, kernel(16, FAST).key)
ROUNDS = Rounds(("fa2", *KERNELS), "fp16", SHAPE, 4)
SPEED = {"fa2": 1.0, KERNELS[0]: 0.16, KERNELS[1]: 1.1}  # of the fixture's pairs
FA2_US = SHAPE.flops / 350e12 * 1e6
NAMES = {
    "fa2": "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64>>(Params)",
    "flash-attn": "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(flash::Flash_fwd_params)",
    "fa3": (
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
        "cute::tuple<cute::C<2>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<128>, cute::C<176>, cute::C<128> >, 128>"
    ),
    "cudnn": "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
    "fa4": "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at",
}
HEADER = '"ID","Process ID","Process Name","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'


def write_nvbench(path: Path, *cells: Rounds, samples: int = 3, skipped: str | None = None) -> None:
    """The JSON of ``--jsonbin`` and its binary files: subject k takes 1 ms times k + 1, ten times that in cell 1."""
    folder = path.with_name(path.name + "-bin")
    folder.mkdir()
    benchmarks: list[dict[str, object]] = []
    for cell, rounds in enumerate(cells):
        for number, key in rounds.turns():
            index, file = rounds.subjects.index(key), f"{folder.name}/{len(benchmarks)}.bin"
            np.full(samples, 1e-3 * 10**cell * (index + 1), dtype="<f4").tofile(path.parent / file)
            data = [{"name": "filename", "value": file}, {"name": "size", "type": "int64", "value": str(samples)}]
            mean = {"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "value": "0.5"}]}
            name, timed = f"{cell} {number} {index}", [mean, {"tag": SAMPLE_TIMES, "data": data}]
            state: dict[str, object] = {"is_skipped": False, "summaries": timed}
            if skipped == name:
                state = {"is_skipped": True, "skip_reason": "too short", "summaries": None}
            benchmarks.append({"name": name, "states": [state]})
    path.write_text(json.dumps({"devices": [], "benchmarks": benchmarks}), encoding="utf-8")


def ncu_csv(kernels: Sequence[str], ns: Mapping[str, int] | None = None) -> str:
    """What ncu logs of launches with these kernel names: 1000 ns each unless told, at 1.5 GHz."""
    lines = ["==PROF== Connected to process 1", HEADER]
    for number, name in enumerate(kernels):
        time = (ns or {}).get(name, 1000)
        found = dict.fromkeys(METRICS, 7) | {DURATION: time, CYCLES: time * 3 // 2}
        lines += [f'"{number}","1","python3","{name}","metrics","{m}","","{v}"' for m, v in found.items()]
    return "\n".join([*lines, "==PROF== Disconnected from process 1"])


def opinion(method: str, faster: float = 1.0) -> Opinion:
    """An opinion on the fixture's kernels in which they are `faster` times as fast as the pairs say."""
    timings = []
    for index, subject in enumerate(ROUNDS.subjects):
        us = FA2_US / SPEED[subject] / (1.0 if subject == "fa2" else faster)
        drawn = tuple(us * (1 + 1e-4 * ((number + index) % 3 - 1)) for number in range(8))
        counters = {CYCLES: tuple(round(1700 * one) for one in drawn)} if method == "ncu" else {}
        timings.append(schema.Timings(subject=subject, rounds=tuple(range(8)), us=drawn, counters=counters))
    mode = "ncu-base" if method == "ncu" else "event-free"
    return Opinion.model_validate(
        {"method": method, "mode": mode, "version": "1", "dtype": "fp16", "shape": SHAPE, "timings": timings}
    )


def judged(*opinions: Opinion, left_out: tuple[str, ...] = ()) -> schema.SecondOpinionResult:
    of = derive_paired(result())
    origin = {name: getattr(of, name) for name in ("rung", "gpu", "host", "kernels")}
    return derive(schema.SecondOpinionResult(**origin, paired=of, opinions=opinions, left_out=left_out))


KEY = kernel(16, FAST).key  # of the kernel whose sustained runs are made up


def look(**other: Any) -> Sample:
    """A sample of a sustained run, which the power limit slows down."""
    return sample(4).model_copy(update={"sm_clock_mhz": 1500, "memory_clock_mhz": 3200} | other)


def sustained(subject: str = "fa2", **other: Any) -> Sustained:
    """A run of 1.5 seconds and 900 joules."""
    facts: dict[str, Any] = {
        "subject": subject, "dtype": "fp16", "shape": SHAPE, "turn": 0, "launches": 1000, "seconds": 1.5,
        "joules": 900.0, "samples": (look(),),
    }  # fmt: skip
    return Sustained(**facts | other)


def energy_of(*runs: Sustained) -> EnergyResult:
    """A document about one kernel and FA2."""
    of = result()
    origin = {name: getattr(of, name) for name in ("rung", "gpu", "host", "reference")}
    return EnergyResult(**origin, kernels={KEY: of.kernels[KEY]}, seconds=1.0, runs=runs)
