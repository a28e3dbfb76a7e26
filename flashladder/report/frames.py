"""A result as pandas frames: one row per raw pair, with the state of the GPU, or one row per summary.

>>> from flashladder.report.frames import pairs
>>> pairs(load_as(path, BenchResult)).groupby(["iteration", "seq_len"]).ratio.median()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashladder.results.schema import A_A, BenchResult

if TYPE_CHECKING:
    import pandas as pd

CLOCKS = ("sm_clock_mhz", "power_w", "temperature_c")


def pairs(result: BenchResult) -> pd.DataFrame:
    """Every raw pair of a timing, also those of dropped blocks and of the A/A floor (``kernel`` is ``fa2``).

    Returns:
        a row per pair: the kernel's identity, process, block and input set, whether the kernel went first in its
        block, why the block does not count (empty: it counts), microseconds of FA2 and of the kernel, their ratio
        (above 1: the kernel is faster), and clock, power and temperature when the block began.
    """
    import pandas as pd

    rows = []
    for group in result.groups:
        blocks = {block.index: block for block in group.blocks}
        for series in group.series:
            name = "fa2" if series.kernel == A_A else series.kernel
            own = {**_identity(result, name, group.dtype), **group.shape.model_dump(), "process": group.process}
            for pair in series.pairs:
                block, place = blocks[pair.block], {"block": pair.block, "input_set": pair.input_set}
                times = {"fa2_us": pair.reference_us, "kernel_us": pair.kernel_us}
                state = {"kernel_first": block.kernel_first, "dropped": block.dropped or ""}
                gpu = {clock: getattr(next(iter(block.samples), None), clock, None) for clock in CLOCKS}
                rows.append({**own, **place, "ratio": pair.reference_us / pair.kernel_us, **times, **state, **gpu})
    return pd.DataFrame(rows)


def summaries(result: BenchResult) -> pd.DataFrame:
    """Every summary: identity, median and interval in percent of FA2, verdict, microseconds, TFLOP/s."""
    import pandas as pd

    return pd.DataFrame([
        _identity(result, one.kernel, one.dtype) | one.shape.model_dump() | one.model_dump(exclude={"shape"})
        for one in result.summaries
    ])  # fmt: skip


def _identity(result: BenchResult, key: str, dtype: str) -> dict[str, object]:
    """Columns that identify a kernel of the ladder; a reference has only its name."""
    kernel = result.kernels.get(key)
    own = (kernel.iteration, kernel.variant, kernel.config) if kernel else (None, "", "")
    return {"kernel": key, **dict(zip(("iteration", "variant", "config"), own, strict=True)), "dtype": dtype}
