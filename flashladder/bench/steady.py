"""What sustained runs say of a subject: medians over its turns, and what holds it, the power limit or its structure.

Why apart from `flashladder.bench.energy`: the command's table and the report's page are made of the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from statistics import median

from flashladder.results.blocks import NO_THROTTLE, SW_POWER_CAP, reason_names
from flashladder.results.schema import EnergyResult, Gpu, Sustained

FULL_CLOCK = 0.96  # of the highest: from here on a card is not held back
FULL_POWER = 0.95  # of the limit: from here on it is
POWER, STRUCTURE, UNKNOWN = "power", "structure", "?"
LEGEND = (
    f"Limited by power: below {100 * FULL_CLOCK:.0f} % of the highest clock, and at {100 * FULL_POWER:.0f} % of the "
    "power limit or more, or held back for it by the driver's own word; fewer joules per FLOP make such a kernel "
    "faster. By structure: at the highest clock, where it waits for something else."
)


@dataclass(frozen=True)
class Steady:
    """A subject at one dtype and length: medians over its turns.

    Attributes:
        subject: a kernel's key, ``fa2``, or a reference's name.
        mhz: of the SMs; None where the GPU does not tell.
        limit: ``power``, ``structure``, another reason of the driver, or ``?``.
    """

    subject: str
    dtype: str
    seq_len: int
    tflops: float
    watts: float
    mhz: float | None
    pj_per_flop: float
    limit: str


def steady(result: EnergyResult) -> tuple[Steady, ...]:
    """One entry per subject, dtype and length, in the order of their first runs."""
    cells: dict[tuple[str, str, int], list[Sustained]] = {}
    for run in result.runs:
        cells.setdefault((run.subject, run.dtype, run.shape.seq_len), []).append(run)
    return tuple(
        Steady(
            *cell,
            tflops=median(run.tflops for run in runs),
            watts=median(run.watts for run in runs),
            mhz=_clock(runs),
            pj_per_flop=median(run.pj_per_flop for run in runs),
            limit=limit_of(result.gpu, runs),
        )
        for cell, runs in cells.items()
    )


def limit_of(gpu: Gpu, runs: Sequence[Sustained]) -> str:
    """What holds a kernel, from its clock, its power and the driver's reasons; ``?`` where they do not tell."""
    clock = _clock(runs)
    if clock is None or not gpu.max_sm_clock_mhz:
        return UNKNOWN
    if clock >= FULL_CLOCK * gpu.max_sm_clock_mhz:
        return STRUCTURE
    looks = [one.throttle_bits for run in runs for one in run.samples if one.throttle_bits is not None]
    capped = 2 * sum(bool(bits & SW_POWER_CAP) for bits in looks) > len(looks)
    if capped or (gpu.power_limit_w and median(run.watts for run in runs) >= FULL_POWER * gpu.power_limit_w):
        return POWER
    always = reduce(and_, looks) & ~NO_THROTTLE if looks else 0
    return ", ".join(reason_names(always)) or UNKNOWN


def _clock(runs: Sequence[Sustained]) -> float | None:
    clocks = [clock for run in runs if (clock := run.sm_clock_mhz) is not None]
    return median(clocks) if clocks else None
