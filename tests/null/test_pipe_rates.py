"""The micro-benchmarks of instruction rates run what they say: counted by the emulator, and in what a GPU answered."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from analysis.pipe_rates import OPS, PER_SM, TRIPS, Kernel, Run, inputs, named, per_clock, runs
from flashladder.paths import RESULTS
import ptxemu

KERNELS = {(run.kernel.name, run.kernel.chains): run.kernel for run in runs()}


@pytest.mark.parametrize("key", [key for key in KERNELS if key[1] != 8], ids=lambda key: f"{key[0]}, {key[1]} chains")
def test_a_kernel_runs_as_many_instructions_as_it_divides_by(key: tuple[str, int]) -> None:
    kernel, counters = KERNELS[key], ptxemu.Counters()
    times, data = np.zeros((1, 2, 2), np.uint64), inputs()
    program = ptxemu.load(kernel.text())
    program.kernel().launch((1,), (64,), (times, data, 3), shared_bytes=PER_SM, observers=[counters])
    spent = ptxemu.Counters()
    program.kernel().launch((1,), (64,), (times, data, 1), shared_bytes=PER_SM, observers=[spent])
    for op, _ in kernel.round:
        opcode = OPS[op].text.split()[0]
        trips = counters.opcodes[opcode] - spent.opcodes[opcode]
        others = kernel.instructions[op] // OPS[op].instructions
        assert trips == 2 * 2 * others, op  # two warps, two more trips


def test_a_name_is_read_back() -> None:
    for kernel in KERNELS.values():
        assert named(kernel.name, kernel.chains) == kernel


@pytest.mark.parametrize("machine", ["h200"])
def test_the_readings_are_of_these_kernels(machine: str) -> None:
    found = json.loads(gzip.decompress((RESULTS / machine / "rates.json.gz").read_bytes()))
    assert found["gpu"]["compute_capability"] == "9.0"
    assert [
        (row["round"], row["chains"], row["warps"], row["alone"], row["instructions"], row["trips"])
        for row in found["runs"]
    ] == [(run.kernel.name, run.kernel.chains, run.warps, run.alone, run.kernel.instructions, TRIPS) for run in runs()]
    for run, row in zip(runs(), found["runs"], strict=True):
        ctas = 1 if run.alone else found["gpu"]["n_sm"]
        assert [len(spans) for spans in row["spans"]] == [ctas] * 5
        rate = per_clock(run, row["spans"])
        assert (rate > 3.9) if run.alone else (0.01 < rate < 4.0), run  # four schedulers issue one each per clock


def test_a_rate_is_instructions_over_clocks() -> None:
    kernel = Kernel((("ex2", 1),), 4)
    assert kernel.instructions == {"ex2": 64}
    assert per_clock(Run(kernel, 16), [[2 * 16 * 64 * TRIPS] * 3]) == 0.5
    assert per_clock(Run(kernel, 1, alone=True), [[17 * 64 * TRIPS]]) == 17
