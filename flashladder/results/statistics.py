"""From pairs of times to a ratio, its 95 % interval and an honest verdict.

Why: on a power-limited card a time alone means little; the median of pairwise log ratios, taken in turn with the
reference, does (rules 3 and 4 of the measurement protocol). Everything works on natural logarithms of
``reference time / kernel time``: above 0 the kernel is the faster one. Nothing here knows about GPUs.

    >>> summary = summarize(log_ratios([2.0] * 20, [1.0] * 20))
    >>> round(percent(summary.median), 6), verdict(summary, floor=0.01)
    (200.0, 'faster')

The interval that is printed beside a ratio says more than the bootstrap of one run's pairs, which knows nothing of what
would move them all: addresses, the order of arms, a card. It reaches from the least to the greatest of the samples' own
ends and other runs' medians, and beyond by the A/A floor (docs/decisions/019). Documents keep the samples' own.

    >>> found = widened(LogSummary(0.02, 0.019, 0.021, 24), 0.006, [0.024])
    >>> round(found.low, 3), round(found.high, 3)
    (0.013, 0.03)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
import math
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from flashladder.errors import FlashladderError
from flashladder.results.schema import BenchResult, Mean, Summary

Verdict = Literal["faster", "slower", "same", "ambiguous"]
Floats = NDArray[np.float64]
Key = tuple[str, str, tuple[int, ...]]  # digest of the machine code, dtype, batch and length, or all lengths
Either = TypeVar("Either", Summary, Mean)

CONFIDENCE = 0.95
RESAMPLES = 2000
ROUNDING = 1e-9  # relative: what another order of the same sums may give
SEED = 20_240_607  # of the bootstrap: the same samples always give the same interval


@dataclass(frozen=True)
class LogSummary:
    """Median of log ratios with its bootstrap interval; all three in natural-log units, `n` pairs behind them."""

    median: float
    low: float
    high: float
    n: int


def percent(log_ratio: float) -> float:
    """A log ratio as a percentage of the reference's speed: 0 is 100 %."""
    return 100.0 * math.exp(log_ratio)


def log_ratios(reference: Sequence[float], kernel: Sequence[float]) -> Floats:
    """``ln(reference / kernel)`` pair by pair, from two equally long sequences of times in one unit.

    Raises:
        FlashladderError: a time is not a finite positive number.
    """
    a, b = np.asarray(reference, dtype=np.float64), np.asarray(kernel, dtype=np.float64)
    if not bool(np.all((a > 0) & (b > 0) & np.isfinite(a) & np.isfinite(b))):
        raise FlashladderError("a time is not a finite positive number", found=f"smallest {min(a.min(), b.min())}")
    return np.asarray(np.log(a / b), dtype=np.float64)


def resampled_medians(
    values: Floats, clusters: Sequence[int] | None = None, *, resamples: int = RESAMPLES, seed: int = SEED
) -> Floats:
    """Medians of `resamples` bootstrap draws of `values`; shape (resamples,).

    With `clusters` (one number per value, the process it came from) whole clusters are drawn: samples of one process
    share its memory layout and clock history and are no independent evidence. One cluster alone is drawn by value.
    The array cannot be written to: it is kept for whoever asks for the same draws, as a ratio and its mean do.
    """
    groups = None if clusters is None else tuple(clusters)
    return _resampled(np.asarray(values, dtype=np.float64).tobytes(), groups, resamples, seed)


@lru_cache(maxsize=2048)  # of 16 KB
def _resampled(raw: bytes, clusters: tuple[int, ...] | None, resamples: int, seed: int) -> Floats:
    values = np.frombuffer(raw, dtype=np.float64)
    labels = np.zeros(values.size) if clusters is None else np.asarray(clusters)
    groups = [values[labels == label] for label in np.unique(labels)]
    alike = len({group.size for group in groups}) == 1
    drawn = groups[0] if len(groups) == 1 else np.stack(groups) if alike else groups
    picks = _picks(len(drawn), resamples, len(drawn), seed)
    if isinstance(drawn, np.ndarray):
        rows = drawn[picks].reshape(resamples, -1)
        rows.sort(axis=1)  # to the last bit what `np.median` gives, and ten times as fast here
        middle = rows.shape[1] // 2
        found = rows[:, middle] if rows.shape[1] % 2 else (rows[:, middle - 1] + rows[:, middle]) / 2
    else:
        found = np.array([np.median(np.concatenate([drawn[i] for i in pick])) for pick in picks], dtype=np.float64)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=64)  # all cells with as many pairs draw the same places
def _picks(high: int, rows: int, columns: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(high, size=(rows, columns))


def median(values: Floats) -> float:
    """To the last bit what `np.median` gives for numbers without NaN, in a fifth of its time for a few dozen."""
    ordered = np.sort(values)
    middle = ordered.size // 2
    return float(ordered[middle] if ordered.size % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


def interval(draws: Floats, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The percentile interval of bootstrap draws."""
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(draws, [tail, 1.0 - tail])
    return float(low), float(high)


def summarize(values: Floats, clusters: Sequence[int] | None = None) -> LogSummary:
    """Median and 95 % interval of log ratios."""
    low, high = interval(resampled_medians(values, clusters))
    return LogSummary(median(values), low, high, int(values.size))


def floor_of(summaries: Sequence[LogSummary]) -> float:
    """What the protocol sees between two runs of the reference itself: the farthest end of any A/A interval.

    Log units, at least 0. Raises `FlashladderError` when there is no A/A series: without a floor there is no verdict.
    """
    if not summaries:
        raise FlashladderError("no A/A series, so no noise floor", hint="time the reference against itself as well")
    return max(max(abs(summary.low), abs(summary.high)) for summary in summaries)


def verdict(summary: LogSummary, floor: float, *, enough: int = 1) -> Verdict:
    """What the interval says once noise of size `floor` (log units) is allowed for.

    `faster` and `slower`: the whole interval lies beyond the floor. `same`: the whole interval lies inside it.
    Everything else, and anything with fewer than `enough` pairs, is `ambiguous`, which is a valid answer.
    """
    if summary.n < enough:
        return "ambiguous"
    if summary.low > floor:
        return "faster"
    if summary.high < -floor:
        return "slower"
    if -floor <= summary.low and summary.high <= floor:
        return "same"
    return "ambiguous"


def harmonic_mean(ratios: Sequence[float]) -> float:
    """Harmonic mean of positive ratios."""
    return float(len(ratios) / np.sum(1.0 / np.asarray(ratios, dtype=np.float64)))


def harmonic_summary(series: Sequence[tuple[Floats, Sequence[int] | None]]) -> LogSummary:
    """Harmonic mean of the ratios of several lengths, with its bootstrap interval, as log units.

    Args:
        series: per length, its log ratios and their clusters (or None). Lengths are resampled independently.
    """
    mean = harmonic_mean([math.exp(median(values)) for values, _ in series])
    draws = np.stack(
        [resampled_medians(values, clusters, seed=SEED + index) for index, (values, clusters) in enumerate(series)]
    )
    means = len(series) / np.sum(np.exp(-draws), axis=0)
    low, high = interval(np.log(means))
    return LogSummary(math.log(mean), low, high, sum(int(values.size) for values, _ in series))


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation of two equally long sequences; equal values share the mean of their ranks.

    Raises:
        FlashladderError: fewer than two values, unequal lengths, or all values of one sequence equal.
    """
    if len(a) != len(b) or len(a) < 2 or len(set(a)) == 1 or len(set(b)) == 1:
        raise FlashladderError("no rank order", expected="two varying sequences of equal length", found=f"{a}, {b}")
    ranks = [[2 * sum(one < x for one in own) + sum(one == x for one in own) for x in own] for own in (a, b)]
    return float(np.corrcoef(*np.array(ranks, np.float64))[0, 1])


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
    known: dict[Key, list[float]] = {}
    for run in others:
        every: list[Summary | Mean] = [*run.summaries, *run.means]
        for key, value in {key: _log(one.pct) for one in every if (key := _key(run, one))}.items():
            known.setdefault(key, []).append(value)

    def printed(one: Either) -> Either:
        key = _key(result, one)
        own = LogSummary(_log(one.pct), _log(one.pct_low), _log(one.pct_high), 0)
        found = widened(own, floors.get(one.dtype, 0.0), known.get(key, ()) if key else ())
        return one.model_copy(update={"pct_low": percent(found.low), "pct_high": percent(found.high)})

    summaries = tuple(_judged(printed(one), floors[one.dtype]) for one in result.summaries)
    return result.model_copy(update={"summaries": summaries, "means": tuple(printed(one) for one in result.means)})


def _key(result: BenchResult, one: Summary | Mean) -> Key | None:
    """What makes two cells of different files the same; None where the machine code is not known."""
    kernel = result.kernels.get(one.kernel)
    if kernel is None or kernel.text_sha256 is None:
        return None
    place = (one.shape.batch, one.shape.seq_len) if isinstance(one, Summary) else (0, *one.seq_lens)
    return kernel.text_sha256, one.dtype, place


def _judged(one: Summary, floor: float) -> Summary:
    """The verdict that fits the printed interval: beyond 100 %, or `same` where others do not leave the floor."""
    inside = 2 * floor + ROUNDING
    fits = {
        "faster": one.pct_low > percent(0.0),
        "slower": one.pct_high < percent(0.0),
        "same": -inside <= _log(one.pct_low) and _log(one.pct_high) <= inside,
    }
    return one if fits.get(one.verdict, True) else one.model_copy(update={"verdict": "ambiguous"})


def _log(pct: float) -> float:
    return math.log(pct / 100.0)
