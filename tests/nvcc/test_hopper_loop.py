"""A Hopper attention kernel on the emulator: right, without a hazard in any order, and how fast the emulator is.

hopper_loop/attention.cu has two consumer warpgroups and a producer warp, with TMA, rings of mbarriers, setmaxnreg, and
wgmma with two groups in flight. Speeds are measured with ``--benchmark-enable -n 0`` (`analysis/emulator_speed.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from flashladder.build import compile as compiling
from flashladder.build.store import fill_all, ptx_entry
from flashladder.emulate.kernel import attention_fp64, forward, kernel_of, make_tensors
from flashladder.ladder.iteration import load_iteration
from flashladder.problem import Problem
import ptxemu
from ptxemu import Counters
from ptxemu.machine.tensor_map import TensorMap
from ptxemu.run.launch import Kernel
from ptxemu.values import Array

pytestmark = pytest.mark.nvcc

FOLDER = Path(__file__).parent / "hopper_loop"
TILE = 128
SHARED_BYTES = 5 * 2 * TILE * TILE + 9 * 8
THREADS = 384
LENGTHS = (256, 512, 1024, 2048)
ROUNDS = 5


@cache
def attention(before: str = "") -> Kernel:
    """The kernel for sm_90a, with the text `before` in front of its source, from the store or compiled."""
    tools = compiling.tools_of()
    flags = ("-arch=sm_90a", *(flag for flag in tools.nvcc_flags if not flag.startswith("-arch=")))
    source = FOLDER / "attention.cu"
    entry = ptx_entry(before + '#include "attention.cu"\n', FOLDER, [source], replace(tools, nvcc_flags=flags))
    fill_all([entry])
    return ptxemu.load(entry.ptx.read_text(encoding="utf-8"), path="attention.ptx").kernel()


@cache
def tensors(length: int) -> tuple[Array, Array, Array]:
    """Q, K and V, (length, 128) of f16."""
    generator = np.random.default_rng(length)
    q, k, v = (generator.standard_normal((length, TILE)).astype(np.float16) for _ in range(3))
    return q, k, v


def box(matrix: Array) -> TensorMap:
    """The tensor map of a tile: two halves of 64 columns, each row with 128 swizzled bytes."""
    return TensorMap(matrix, "f16", (64, len(matrix), 2), (256, 128), (64, TILE, 2), swizzle="128B")


def launch(kernel: Kernel, length: int, *observers: ptxemu.Counters | ptxemu.Hazards, **options: object) -> Array:
    """Attention of one head: (length, 128) of f32."""
    out = np.zeros((length, TILE), np.float32)
    blocks, scale = length // TILE, np.float32(np.log2(np.e) / np.sqrt(TILE))
    arguments = (out, *map(box, tensors(length)), np.int32(blocks), scale)
    kernel.launch((blocks,), (THREADS,), arguments, shared_bytes=SHARED_BYTES, observers=observers, **options)  # type: ignore[arg-type]  # passed through
    return out


@cache
def expected(length: int) -> Array:
    """The same in float64."""
    q, k, v = (each[None, :, None] for each in tensors(length))
    return attention_fp64(q, k, v)[0, :, 0]


@pytest.mark.parametrize("schedule", ["together", "reverse", 3])
def test_it_is_right_and_nothing_is_reported_in_any_order(schedule: str | int) -> None:
    hazards = ptxemu.Hazards()
    found = launch(attention(), 384, hazards, schedule=schedule)
    assert hazards.render() == ""
    assert np.abs(found - expected(384)).max() < 5e-4


def test_a_stage_that_is_given_back_too_early_is_a_race() -> None:
    hazards = ptxemu.Hazards()
    launch(attention("#define RELEASED_EARLY true\n"), 512, hazards)
    assert hazards.reports
    assert {each.kind for each in hazards.reports} <= {"WAR", "async overwrite"}
    assert {each.first.opcode.split(".")[0] for each in hazards.reports} == {"wgmma"}
    assert {each.second.opcode.split(".")[1] for each in hazards.reports} == {"async"}


def timed(benchmark: BenchmarkFixture, run: Callable[[Counters], object], **info: object) -> None:
    """Times `run`; the benchmark also holds its lane-instructions, which are the same each time."""
    counted: list[Counters] = []

    def once() -> None:
        counted.append(Counters())
        run(counted[-1])

    pedantic: Callable[..., None] = benchmark.pedantic
    pedantic(once, rounds=ROUNDS, warmup_rounds=1)
    (lane_instructions,) = {one.lane_instructions for one in counted}
    benchmark.extra_info.update(info | {"lane_instructions": lane_instructions})


@pytest.mark.parametrize("length", LENGTHS)
def test_speed(benchmark: BenchmarkFixture, length: int) -> None:
    kernel = attention()  # compiled and parsed before the clock starts

    def run(counters: Counters) -> None:
        launch(kernel, length, counters, ptxemu.Hazards())

    timed(benchmark, run, program="Hopper attention", seq_len=length, heads=1)


CASES = [(number, length, 1) for number in (1, 16) for length in LENGTHS] + [(1, 1024, 16), (16, 1024, 16)]


@pytest.mark.parametrize(("number", "seq_len", "heads"), CASES)
def test_speed_of_the_ladder(benchmark: BenchmarkFixture, number: int, seq_len: int, heads: int) -> None:
    iteration = load_iteration(number)
    config = iteration.configs["a100"]
    kernel_of(iteration, config)  # compiled and parsed before the clock starts
    tensors = make_tensors(iteration, config, Problem(batch=1, seq_len=seq_len, n_heads=heads, d_head=config.d_head))

    def run(counters: Counters) -> None:
        forward(iteration, config, tensors, observers=(counters,))

    timed(benchmark, run, iteration=number, seq_len=seq_len, heads=heads)
    assert np.isfinite(tensors[3].astype(np.float32)).all()
