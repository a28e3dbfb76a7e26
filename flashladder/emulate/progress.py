"""How much work an emulation is, before it is done: the end of its progress bar.

Why: 65,536 positions take minutes, and a count without an end says nothing. A warp of these kernels executes a fixed
number of instructions plus so many per tile of K and V, whatever the data; two short runs give both numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import math
from typing import Any

from tqdm import tqdm

from flashladder.emulate.kernel import forward, make_tensors
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.results.schema import Shape

SHORT = (4, 5)  # lengths that are tried, in multiples of what both tiles divide: past what the loop's ends do specially
DELAY = 0.5  # seconds before a bar shows


def expected_instructions(iteration: Iteration, config: KernelConfig, shape: Shape) -> int:
    """Warp instructions of a forward pass, from at most two runs on one head that are no longer than itself."""
    step = math.lcm(config.B_r, config.B_c)
    warps = _warps(iteration, config, shape)
    short, longer = (step * multiple for multiple in SHORT)
    if shape.seq_len <= longer:
        return round(warps * _per_warp(iteration, config, shape.seq_len))
    first, second = (_per_warp(iteration, config, length) for length in (short, longer))
    return round(warps * (second + (second - first) * (shape.seq_len - longer) / (longer - short)))


def _per_warp(iteration: Iteration, config: KernelConfig, seq_len: int) -> float:
    counted = 0

    def tick(count: int) -> None:
        nonlocal counted
        counted += count

    shape = Shape(batch=1, seq_len=seq_len, n_heads=1, d_head=config.d_head)
    forward(iteration, config, make_tensors(iteration, config, shape), progress=tick)
    return counted / _warps(iteration, config, shape)


def _warps(iteration: Iteration, config: KernelConfig, shape: Shape) -> int:
    """Warps of the whole grid."""
    sizes = (shape.batch, shape.seq_len, shape.n_heads, shape.d_head)
    return math.prod(iteration.family.grid(config, sizes)) * config.n_threads // 32


@contextmanager
def ticking(what: str, unit: str, total: Callable[[], int], *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, and the function that moves it; `total` is asked for only where there is a bar."""
    settings: dict[str, Any] = {"unit": f" {unit}", "unit_scale": True, "leave": False, "delay": DELAY}
    with tqdm(desc=what, disable=None if shown else True, **settings) as bar:

        def tick(count: int) -> None:
            bar.update(count)

        if not bar.disable:
            bar.reset(total())  # its clock begins now
        yield tick
