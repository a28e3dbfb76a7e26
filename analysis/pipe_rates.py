"""Question: how many instructions of each kind does an SM of this GPU take per clock, and how long is one's latency?

Why: the model of what binds a kernel (`configs/gpus/*.yaml`) needs rates that no document gives. Every SM runs one CTA
of 4, 8 or 16 warps with independent chains (rate), or one warp with a single chain (latency); spans are SM clocks, so
that the card's clock, which falls under load, plays no part. Each span of each SM is kept.

Run on a machine with a GPU: ``python analysis/pipe_rates.py --out results/h200/rates.json.gz``
Needs torch, for the GPU's identity, and NVIDIA's driver, which compiles the PTX.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
import gzip
import json
from pathlib import Path
import statistics
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from analysis.pipe_ptx import OPS, Kernel
from flashladder.errors import one_line_errors
from flashladder.files import write_atomic
from flashladder.gpu.device import open_device
from ptxemu.chip import GpuProgram, open_gpu

PER_SM = 120 * 1024  # bytes of shared memory, more than half of an SM's: one CTA on each
TRIPS = 64
REPEATS = 5  # after one that is not kept
DATA_BYTES = 4 << 20  # of zeros, in L2
PAIRS = (
    "mma.f16 + ex2", "mma.f16 + 2 ex2", "mma.f16 + 2 fma", "mma.f16 + 4 fma", "mma.f16 + 2 mul", "mma.f16 + 4 iadd",
    "mma.f16 + cvt.f16x2", "mma.f16 + shfl.bfly", "2 mma.f16 + ldmatrix.x4", "mma.f16 + ldmatrix.x4",
    "ex2 + 4 fma", "ex2 + cvt.f16x2", "ex2 + shfl.bfly", "ldmatrix.x4 + shfl.bfly", "ldmatrix.x4 + 4 fma",
    "fma + iadd", "fma + max, min", "fma + imad", "cvt.f16x2 + 2 fma",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A kernel with so many warps on each SM, or on one SM alone."""

    kernel: Kernel
    warps: int
    alone: bool = False


def named(text: str, chains: int) -> Kernel:
    """``2 mma.f16 + ldmatrix.x4`` as a kernel."""
    parts = [part.split(" ", 1) if part.split(" ", 1)[0].isdigit() else ["1", part] for part in text.split(" + ")]
    return Kernel(tuple((op, int(count)) for count, op in parts), chains)


def runs() -> Iterator[Run]:
    """Latencies, rates of each instruction alone, and of pairs."""
    yield from (Run(named(op, 1), 1, alone=True) for op in OPS)
    yield from (Run(named(op, chains), warps) for op in OPS for chains in (4, 8) for warps in (4, 8, 16))
    yield from (Run(named(pair, 4), warps) for pair in PAIRS for warps in (4, 8, 16))


def inputs() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """What the kernels read: zero, 1.0, two factors near one, six words of small halves; then zeros."""
    data = np.zeros(DATA_BYTES + (1 << 20), np.uint8)
    data[4:16].view(np.float32)[:] = (1.0, 0.9990234375, 0.0009765625)
    data[16:40].view(np.uint32)[:] = 0x11001100
    return data


def measure(program: GpuProgram, run: Run, sms: int, data: np.ndarray[Any, np.dtype[np.uint8]]) -> list[list[int]]:
    """Clocks from the first warp's begin to the last one's end, for each SM, of each repeat."""
    data.flags.writeable = False  # not copied back
    ctas, spans = 1 if run.alone else sms, []
    for _ in range(REPEATS + 1):
        times = np.zeros((ctas, run.warps, 2), np.uint64)
        program.kernel().launch(ctas, 32 * run.warps, (times, data, TRIPS), shared_bytes=PER_SM)
        spans.append((times[..., 1].max(1) - times[..., 0].min(1)).astype(int).tolist())
    return spans[1:]


def per_clock(run: Run, spans: Sequence[Sequence[int]]) -> float:
    """Instructions of the round's first kind per clock and SM; for a latency, clocks per instruction."""
    count = TRIPS * next(iter(run.kernel.instructions.values()))
    middle = statistics.median(span for repeat in spans for span in repeat)
    return middle / count if run.alone else count * run.warps / middle


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the file to write (.json.gz)")
    options = parser.parse_args(argv)
    with one_line_errors(), open_gpu() as gpu:
        device = open_device()
        data, found = inputs(), []
        for run in runs():
            program = gpu.load(run.kernel.text())
            spans = measure(program, run, device.gpu.n_sm, data)
            program.unload()
            row = {"round": run.kernel.name, "chains": run.kernel.chains, "warps": run.warps, "alone": run.alone}
            found.append(row | {"instructions": run.kernel.instructions, "trips": TRIPS, "spans": spans})
            print(f"{run.kernel.name:24} {run.kernel.chains} chains {run.warps:2} warps {per_clock(run, spans):8.3f}")
        finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
        who = {"gpu": device.gpu.model_dump(mode="json"), "host": device.host.model_dump(mode="json")}
        document = {"what": "spans in SM clocks", "finished": finished, **who, "runs": found}
        write_atomic(options.out, gzip.compress(json.dumps(document).encode(), mtime=0))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
