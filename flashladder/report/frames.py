"""A result as pandas frames: one row per summary, or one per raw pair with what was known when it was taken.

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
    """Every raw pair of a timing, those of dropped blocks and of the A/A floor (``kernel`` ``fa2``) among them.

    Returns:
        a row per pair: the kernel's identity, process, block and input set, whether the kernel went first in its
        block, why the block does not count (empty: it does), microseconds of FA2 and of the kernel, their ratio (above
        1: the kernel is faster), and clock, power and temperature when the block began.
    """
    import pandas as pd

    rows = []
    for group in result.groups:
        blocks = {}
        for one in group.blocks:
            clocks = {name: getattr(one.samples[0], name) if one.samples else None for name in CLOCKS}
            blocks[one.index] = {"kernel_first": one.kernel_first, "dropped": one.dropped or "", **clocks}
        for series in group.series:
            name = "fa2" if series.kernel == A_A else series.kernel
            own = {**_identity(result, name, group.dtype), **group.shape.model_dump(), "process": group.process}
            for pair in series.pairs:
                times = {"fa2_us": pair.reference_us, "kernel_us": pair.kernel_us}
                place = {"block": pair.block, "input_set": pair.input_set, "ratio": pair.reference_us / pair.kernel_us}
                rows.append({**own, **place, **times, **blocks[pair.block]})
    return pd.DataFrame(rows)


def summaries(result: BenchResult) -> pd.DataFrame:
    """Every derived summary: identity, median and interval in percent of FA2, verdict, microseconds, TFLOP/s."""
    import pandas as pd

    return pd.DataFrame([
        _identity(result, one.kernel, one.dtype) | one.shape.model_dump() | one.model_dump(exclude={"shape"})
        for one in result.summaries
    ])  # fmt: skip


def _identity(result: BenchResult, key: str, dtype: str) -> dict[str, object]:
    """A kernel of the ladder by number and configuration; a reference by its name alone."""
    kernel = result.kernels.get(key)
    own = (kernel.iteration, kernel.variant, kernel.config) if kernel else (None, "", "")
    return {"kernel": key, **dict(zip(("iteration", "variant", "config"), own, strict=True)), "dtype": dtype}
