"""A small, complete bench result for tests: two kernels, one length, twelve pairs in four blocks, made-up times."""

from __future__ import annotations

import random

from flashladder.bench.references import REFERENCE_OP
from flashladder.problem import Shape
from flashladder.results.schema import (
    A_A,
    Accuracy,
    BenchResult,
    Block,
    Gpu,
    Group,
    Host,
    Kernel,
    Pair,
    Process,
    Reference,
    Sample,
    Series,
    Settings,
)

FAST = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles"
SLOW = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
SHAPE = Shape(batch=16, seq_len=4096, n_heads=16, d_head=128)
GOOD = Accuracy(max_error=1e-4, max_allowed=3e-4, rms_error=2e-4, rms_allowed=5e-4, finite=True)
GPU = Gpu(
    name="NVIDIA Example 1", uuid="GPU-0", form_factor="SXM5", compute_capability="9.0", n_sm=132, l2_bytes=60_000_000,
    memory_bytes=1, power_limit_w=700.0, max_sm_clock_mhz=1980, ecc=True, mig=False, driver="580.0",
)  # fmt: skip


def sample(bits: int = 0) -> Sample:
    return Sample(t_s=1.0, sm_clock_mhz=1700, memory_clock_mhz=1, power_w=600.0, temperature_c=50, throttle_bits=bits)


def pairs(speed: float, seed: int, shape: Shape = SHAPE) -> tuple[Pair, ...]:
    draw = random.Random(seed)
    base = shape.flops / 350e12 * 1e6
    return tuple(
        Pair(block, turn, base * draw.uniform(0.999, 1.001), base / speed * draw.uniform(0.999, 1.001))
        for block in range(4)
        for turn in range(3)
    )


def kernel(number: int, config: str, text: str | None = "ab" * 32) -> Kernel:
    return Kernel(
        iteration=number, config=config, dtype="fp16", arch="sm_90", text_sha256=text, toolchain={"nvcc": "13.0.88"}
    )


def group(process: int = 0, shape: Shape = SHAPE, bits: tuple[int, int] = (0, 0)) -> Group:
    blocks = tuple(
        Block(
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
        rung="GPU", gpu=GPU, host=Host(digest="0", cpu="c", n_cpus=1, system="s", python="3.12"),
        kernels={one.key: one for one in kernels},
        reference=Reference(op=REFERENCE_OP, torch="2.11", cuda="13.0", kernels={}),
        settings=Settings(pairs=12, blocks=4, min_pairs=9, flush_bytes=2**28),
        processes=(Process(index=0, started_utc="2026-01-01T00:00:00+00:00", foreign_before=0),),
        groups=groups or (group(),),
    )  # fmt: skip
