"""The interval that is printed beside a ratio: what the samples, the A/A floor and other runs of the same code say.

Why: a bootstrap of one run's pairs knows nothing of what would move them all: memory addresses, the order of arms, a
card. FA2 beside itself in the same protocol shows how far that goes, and another process or another card shows more of
it. So the interval reaches from the least to the greatest of the samples' own ends and the other runs' medians, and
beyond by the floor (docs/decisions/019). Documents keep the samples' own interval; tables print this one.

    >>> summary = widened(LogSummary(0.02, 0.019, 0.021, 24), 0.006, [0.024])
    >>> round(summary.low, 3), round(summary.high, 3)
    (0.013, 0.03)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import TypeVar

from flashladder.results.schema import ROUNDING, BenchResult, Mean, Summary
from flashladder.results.statistics import LogSummary, Verdict, percent

Key = tuple[str, str, tuple[int, ...]]  # digest of the machine code, dtype, batch and length, or all lengths
Either = TypeVar("Either", Summary, Mean)


def widened(own: LogSummary, floor: float, others: Sequence[float] = ()) -> LogSummary:
    """An interval of samples with what the floor (log units) and other runs' medians add."""
    return LogSummary(own.median, min([own.low, *others]) - floor, max([own.high, *others]) + floor, own.n)


def stated(result: BenchResult, others: Sequence[BenchResult] = ()) -> BenchResult:
    """A result for tables: intervals as they are printed, verdicts that fit them. Never to be written to a file.

    Args:
        result: as derived from its samples.
        others: other runs of some of the same machine code on the same GPU model.
    """
    floors = {dtype: math.log1p(floor / 100.0) for dtype, floor in result.floors_pct.items()}
    known = [_medians(one) for one in others]
    return result.model_copy(
        update={
            "summaries": tuple(
                _judged(_one(one, result, floors, known), floors[one.dtype]) for one in result.summaries
            ),
            "means": tuple(_one(one, result, floors, known) for one in result.means),
        }
    )


def _key(result: BenchResult, one: Summary | Mean) -> Key | None:
    """What makes two cells of different files the same; None where the machine code is not known."""
    kernel = result.kernels.get(one.kernel)
    if kernel is None or kernel.text_sha256 is None:
        return None
    place = (one.shape.batch, one.shape.seq_len) if isinstance(one, Summary) else (0, *one.seq_lens)
    return kernel.text_sha256, one.dtype, place


def _medians(result: BenchResult) -> dict[Key, float]:
    """Log ratios of all cells and means with known machine code."""
    every: list[Summary | Mean] = [*result.summaries, *result.means]
    return {key: _log(one.pct) for one in every if (key := _key(result, one))}


def _one(one: Either, result: BenchResult, floors: Mapping[str, float], known: Sequence[Mapping[Key, float]]) -> Either:
    key = _key(result, one)
    others = [medians[key] for medians in known if key is not None and key in medians]
    own = LogSummary(_log(one.pct), _log(one.pct_low), _log(one.pct_high), 0)
    found = widened(own, floors.get(one.dtype, 0.0), others)
    return one.model_copy(update={"pct_low": percent(found.low), "pct_high": percent(found.high)})


def _judged(one: Summary, floor: float) -> Summary:
    """The verdict that fits the printed interval: beyond 100 %, or `same` where others do not leave the floor."""
    said: Verdict = one.verdict
    if (said == "faster" and one.pct_low <= percent(0.0)) or (said == "slower" and one.pct_high >= percent(0.0)):
        said = "ambiguous"
    inside = 2 * floor + ROUNDING
    if said == "same" and not (-inside <= _log(one.pct_low) and _log(one.pct_high) <= inside):
        said = "ambiguous"
    return one.model_copy(update={"verdict": said})


def _log(pct: float) -> float:
    return math.log(pct / 100.0)
