"""A small result of sustained runs for tests: one kernel and FA2 at one length, made-up joules."""

from __future__ import annotations

from typing import Any

from flashladder.problem import Shape
from flashladder.results.schema import EnergyResult, Sample, Sustained
from tests.null.bench_fixture import group, result

SHAPE = Shape(batch=16, seq_len=4096, n_heads=16, d_head=128)


def look(**other: Any) -> Sample:
    facts: dict[str, Any] = {
        "t_s": 1.0, "sm_clock_mhz": 1500, "memory_clock_mhz": 3200, "power_w": 600.0, "temperature_c": 50,
        "throttle_bits": 4,
    }  # fmt: skip
    return Sample(**facts | other)


def made(*runs: Sustained) -> EnergyResult:
    """A document about one kernel."""
    timed = result(group())
    return EnergyResult(
        rung=timed.rung, gpu=timed.gpu, host=timed.host, kernels={kernel(): timed.kernels[kernel()]},
        reference=timed.reference, seconds=1.0, runs=runs,
    )  # fmt: skip


def run(subject: str = "fa2", **other: Any) -> Sustained:
    facts: dict[str, Any] = {
        "subject": subject, "dtype": "fp16", "shape": SHAPE, "turn": 0, "launches": 1000, "seconds": 1.5,
        "joules": 900.0, "samples": (look(),),
    }  # fmt: skip
    return Sustained(**facts | other)


def kernel() -> str:
    return next(iter(result(group()).kernels))
