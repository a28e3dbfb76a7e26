"""What NVBench and ncu write for a few rounds, made up; and a second opinion on the fixture's two kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from pathlib import Path

import numpy as np

from flashladder.bench.cross_checks import derive
from flashladder.bench.cross_timers import METRICS, SAMPLE_TIMES, Rounds
from flashladder.names import CYCLES, DURATION
from flashladder.results.derive import derive as derive_paired
from flashladder.results.schema import BenchResult, Opinion, SecondOpinionResult, Timings
from tests.null.bench_fixture import FAST, SHAPE, SLOW, kernel, pairs, result

KERNELS = (kernel(1, SLOW).key, kernel(16, FAST).key)
ROUNDS = Rounds(("fa2", *KERNELS), "fp16", SHAPE, 4)
SPEED = {"fa2": 1.0, KERNELS[0]: 0.16, KERNELS[1]: 1.1}  # of the fixture's pairs
FA2_US = SHAPE.flops / 350e12 * 1e6
NAMES = {
    "fa2": "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<(int)128>>(Params)",
    "flash-attn": "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(flash::Flash_fwd_params)",
    "cudnn": "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
    "fa4": "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at",
}
HEADER = '"ID","Process ID","Process Name","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'


def write_nvbench(path: Path, *cells: Rounds, samples: int = 3, skipped: str | None = None) -> None:
    """The JSON of ``--jsonbin`` and its binary files: subject k takes 1 ms times k + 1, ten times that in cell 1."""
    folder = path.with_name(path.name + "-bin")
    folder.mkdir()
    benchmarks: list[dict[str, object]] = []
    for cell, number in ((cell, number) for cell, one in enumerate(cells) for number in range(one.rounds)):
        for index in range(len(cells[cell].subjects)):
            name = f"{folder.name}/{len(benchmarks)}.bin"
            np.full(samples, 1e-3 * 10**cell * (index + 1), dtype="<f4").tofile(path.parent / name)
            data = [
                {"name": "filename", "type": "string", "value": name},
                {"name": "size", "type": "int64", "value": str(samples)},
            ]
            other = {"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "type": "float64", "value": "0.5"}]}
            state = {"name": "Device=0", "device": 0, "is_skipped": False, "axis_values": None}
            state["summaries"] = [other, {"tag": SAMPLE_TIMES, "hint": "file/sample_times", "data": data}]
            if skipped == f"{cell} {number} {index}":
                state |= {"is_skipped": True, "skip_reason": "too short", "summaries": None}
            benchmarks.append({"name": f"{cell} {number} {index}", "axes": None, "states": [state]})
    path.write_text(json.dumps({"meta": {}, "devices": [], "benchmarks": benchmarks}), encoding="utf-8")


def ncu_row(number: int, name: str, found: Mapping[str, int]) -> list[str]:
    return [
        f'"{number}","1","python3","{name}","Command line profiler metrics","{m}","","{v}"' for m, v in found.items()
    ]


def ncu_csv(kernels: Sequence[str], ns: Mapping[str, int] | None = None) -> str:
    """What ncu logs of launches with these kernel names: 1000 ns each unless told, at 1.5 GHz."""
    lines = ["==PROF== Connected to process 1", HEADER]
    for number, name in enumerate(kernels):
        time = (ns or {}).get(name, 1000)
        found = dict.fromkeys(METRICS, 7) | {DURATION: time, CYCLES: time * 3 // 2}
        lines += ncu_row(number, name, found)
    return "\n".join([*lines, "==PROF== Disconnected from process 1"])


def opinion(method: str, faster: float = 1.0) -> Opinion:
    """An opinion on the fixture's kernels in which they are `faster` times as fast as the pairs say."""
    timings = []
    for index, subject in enumerate(ROUNDS.subjects):
        us = FA2_US / SPEED[subject] / (1.0 if subject == "fa2" else faster)
        drawn = tuple(us * (1 + 1e-4 * ((number + index) % 3 - 1)) for number in range(8))
        counters = {CYCLES: tuple(round(1700 * one) for one in drawn)} if method == "ncu" else {}
        timings.append(Timings(subject=subject, rounds=tuple(range(8)), us=drawn, counters=counters))
    mode = "ncu-base" if method == "ncu" else "event-free"
    return Opinion.model_validate(
        {"method": method, "mode": mode, "version": "1", "dtype": "fp16", "shape": SHAPE, "timings": timings}
    )


def paired() -> BenchResult:
    assert pairs(1.1, 2)  # the times behind `SPEED`
    return derive_paired(result())


def judged(*opinions: Opinion, left_out: tuple[str, ...] = ()) -> SecondOpinionResult:
    of = paired()
    return derive(
        SecondOpinionResult(
            rung=of.rung, gpu=of.gpu, host=of.host, kernels=of.kernels, paired=of, opinions=opinions, left_out=left_out
        )
    )
