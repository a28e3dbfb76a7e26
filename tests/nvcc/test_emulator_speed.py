"""How fast the emulator is, with counters on, and how its time grows with the sequence length.

In the test suite every case runs once (pyproject disables the timing: a slow machine is not a failure, and nothing is
gated on time). `analysis/emulator_speed.py` runs them as benchmarks and keeps the figures for emulator/docs/speed.md.

Run: pytest tests/nvcc/test_emulator_speed.py --benchmark-enable -n 0
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from flashladder.emulate.kernel import forward, kernel_of, make_tensors
from flashladder.ladder.iteration import load_iteration
from flashladder.problem import Shape
from ptxemu import Counters

pytestmark = pytest.mark.nvcc

ROUNDS = 5
LENGTHS = (256, 512, 1024, 2048)
CASES = [(number, length, 1) for number in (1, 16) for length in LENGTHS] + [(1, 1024, 16), (16, 1024, 16)]


@pytest.mark.parametrize(("number", "seq_len", "heads"), CASES)
def test_speed(benchmark: BenchmarkFixture, number: int, seq_len: int, heads: int) -> None:
    iteration = load_iteration(number)
    config = iteration.configs["a100"]
    kernel_of(iteration, config)  # compiled and parsed before the clock starts
    tensors = make_tensors(iteration, config, Shape(batch=1, seq_len=seq_len, n_heads=heads, d_head=config.d_head))
    counted: list[Counters] = []

    def once() -> None:
        counted.append(Counters())
        forward(iteration, config, tensors, observers=(counted[-1],))

    pedantic: Callable[..., None] = benchmark.pedantic
    pedantic(once, rounds=ROUNDS, warmup_rounds=1)
    assert np.isfinite(tensors[3].astype(np.float32)).all()
    assert len({counters.lane_instructions for counters in counted}) == 1
    benchmark.extra_info.update(
        iteration=number, seq_len=seq_len, heads=heads, lane_instructions=counted[-1].lane_instructions
    )
