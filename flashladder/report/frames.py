"""A result as pandas frames: one row per summary, or one per raw pair with what was known when it was taken.

>>> from flashladder.report.frames import pairs
>>> pairs(load_as(path, BenchResult)).groupby(["iteration", "seq_len"]).ratio.median()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from flashladder.results.schema import A_A, BenchResult, Group, Kernel

if TYPE_CHECKING:
    import pandas as pd

IDENTITY = ("kernel", "iteration", "variant", "config", "dtype", "seq_len", "batch", "n_heads", "d_head")
PAIR = ("process", "block", "input_set", "kernel_first", "dropped", "fa2_us", "kernel_us", "ratio")
CLOCKS = ("sm_clock_mhz", "power_w", "temperature_c")


def pairs(result: BenchResult) -> pd.DataFrame:
    """Every raw pair of a timing, those of dropped blocks and of the A/A floor (``kernel`` ``fa2``) among them.

    Returns:
        a row per pair: the kernel's identity, process, block and input set, whether the kernel went first in its
        block, why the block does not count (empty: it does), microseconds of FA2 and of the kernel, their ratio (above
        1: the kernel is faster), and clock, power and temperature when the block began.
    """
    import pandas as pd

    rows = [row for group in result.groups for row in _pairs(group, result.kernels)]
    return pd.DataFrame(rows, columns=[*IDENTITY, *PAIR, *CLOCKS])


def summaries(result: BenchResult) -> pd.DataFrame:
    """Every derived summary: identity, median and interval in percent of FA2, verdict, microseconds, TFLOP/s."""
    import pandas as pd

    rows = [
        {
            **_identity(one.kernel, one.dtype, result.kernels),
            **one.shape.model_dump(),
            **one.model_dump(exclude={"kernel", "dtype", "shape"}),
        }
        for one in result.summaries
    ]
    return pd.DataFrame(rows)


def _identity(key: str, dtype: str, kernels: Mapping[str, Kernel]) -> dict[str, object]:
    """A kernel of the ladder by number and configuration; a reference by its name alone."""
    kernel = kernels.get(key)
    return {
        "kernel": key,
        "iteration": None if kernel is None else kernel.iteration,
        "variant": "" if kernel is None else kernel.variant,
        "config": "" if kernel is None else kernel.config,
        "dtype": dtype,
    }


def _pairs(group: Group, kernels: Mapping[str, Kernel]) -> Iterator[dict[str, object]]:
    blocks = {block.index: block for block in group.blocks}
    for series in group.series:
        name = "fa2" if series.kernel == A_A else series.kernel
        identity = {**_identity(name, group.dtype, kernels), **group.shape.model_dump(), "process": group.process}
        for pair in series.pairs:
            block = blocks[pair.block]
            began = block.samples[0] if block.samples else None
            yield {
                **identity,
                "block": pair.block,
                "input_set": pair.input_set,
                "kernel_first": block.kernel_first,
                "dropped": block.dropped or "",
                "fa2_us": pair.reference_us,
                "kernel_us": pair.kernel_us,
                "ratio": pair.reference_us / pair.kernel_us,
                **{name: None if began is None else getattr(began, name) for name in CLOCKS},
            }
