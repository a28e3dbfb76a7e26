"""Made-up tuning runs of iteration 16 on an H200."""

from __future__ import annotations

import random

from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.results.derive import derive
from flashladder.results.schema import (
    A_A,
    BenchResult,
    Block,
    Failure,
    Group,
    Kernel,
    Pair,
    Series,
    Settings,
    Sweep,
    kernel_key,
)
from flashladder.sweep.plan import Settings as CellSettings
from flashladder.sweep.plan import cell_of, with_code
from tests.null.bench_fixture import GOOD, SHAPE, result, sample

PRESENT = load_iteration(16).configs["h200"]
FAST = KernelConfig.parse(PRESENT.short_form().replace("2_2_0", "2_2_2"))
ONLY_FP16 = KernelConfig.parse(PRESENT.short_form().replace("2_2_0", "0_2_2"))


def made(speeds: dict[KernelConfig, dict[str, float]], n: int, seed: int = 0) -> BenchResult:
    """A document of iteration 16 on an H200 in which these configurations have these ratios, and `n` pairs each."""
    draw, groups, kernels = random.Random(seed), [], {}
    for dtype in ("fp16", "bf16"):
        series = [Series(kernel=A_A, pairs=_pairs(1.0, n, draw))]
        for config, by_dtype in speeds.items():
            form = config.with_dtype(dtype).short_form()
            key = kernel_key(16, form)
            kernels[key] = Kernel(
                iteration=16, config=form, dtype=dtype, arch="sm_90", text_sha256="ab" * 32, toolchain={}
            )  # fmt: skip
            series.append(Series(kernel=key, pairs=_pairs(by_dtype[dtype], n, draw), before=GOOD, after=GOOD))
        order = tuple(one.kernel for one in series)
        blocks = [
            Block(index=index, kernel_first=bool(index % 2), order=order, samples=(sample(), sample()))
            for index in range(n)
        ]
        groups.append(
            Group(
                process=0, dtype=dtype, shape=SHAPE, input_seeds=(1,), warm_up_s=1.0, blocks=tuple(blocks),
                series=tuple(series),
            )
        )  # fmt: skip
    base = result(*groups)
    update = {
        "kernels": kernels,
        "purpose": "tune",
        "gpu": base.gpu.model_copy(update={"name": "NVIDIA H200"}),
        "settings": Settings(pairs=2, blocks=2, min_pairs=20, flush_bytes=2**28),
    }
    return derive(base.model_copy(update=update))


def _pairs(ratio: float, n: int, draw: random.Random) -> tuple[Pair, ...]:
    return tuple(Pair(index, 0, 6000 * draw.lognormvariate(0, 0.003), 6000 / ratio) for index in range(n))


def both(ratio: float) -> dict[str, float]:
    return {"fp16": ratio, "bf16": ratio}


def with_a_failure() -> BenchResult:
    """Three candidates per dtype, one of which has two pairs alone, and one that crashed; registers and spills."""
    rungs = made({PRESENT: both(1.05), FAST: both(1.08)}, 24)
    few = made({ONLY_FP16: both(1.2)}, 2)
    kernels = {
        key: kernel.model_copy(
            update={"registers": 255, "spill_stores": 8 * (kernel.dtype == "fp16"), "spill_loads": 4}
        )
        for key, kernel in (rungs.kernels | few.kernels).items()
    }
    form, shape = FAST.with_dtype("bf16").short_form().replace("64, 4", "32, 4"), rungs.groups[0].shape
    planned = with_code(cell_of("16", form, "bf16", shape), "c", CellSettings("h200", "tune", 2, 2, 20))
    failure = Failure(address=planned.address, kind="crash", message="signal SIGSEGV")
    sweep = Sweep(grid="tune", grid_sha256="0" * 64, planned=(planned,), failures=(failure,))
    update = {"groups": (*rungs.groups, *few.groups), "kernels": kernels, "sweep": sweep}
    return derive(rungs.model_copy(update=update))
