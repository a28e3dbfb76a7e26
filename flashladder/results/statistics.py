"""Turns pairs of times into a ratio, its 95 % interval and a verdict.

On a power-limited card a time alone says little. The median of log ratios of adjacent launches is stable (rules 3 and 4
of the measurement protocol). A log ratio is ``ln(reference time / kernel time)``: above 0 the kernel is faster.

    >>> summary = summarize(log_ratios([2.0] * 20, [1.0] * 20))
    >>> round(percent(summary.median), 6), verdict(summary, floor=0.01)
    (200.0, 'faster')

A bootstrap over one run's pairs misses what moves all of them: addresses, the order of arms, the card. Documents keep
that interval. Tables print a wider one: it also covers other runs' medians, and the A/A floor is added at both ends
(docs/decisions/019).

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
Key = tuple[str, str, tuple[int, ...]]  # digest of the machine code, dtype, batch and length (or all lengths)
Either = TypeVar("Either", Summary, Mean)

TAIL = (1.0 - 0.95) / 2.0  # of a bootstrap's draws, outside a 95 % interval at each end
RESAMPLES = 2000
ROUNDING = 1e-9  # in log units: another order of the same sums may change that much
SEED = 20_240_607  # of the bootstrap: the same samples always give the same interval


@dataclass(frozen=True)
class LogSummary:
    """Median of the log ratios of `n` pairs, with its bootstrap interval; all in natural-log units."""

    median: float
    low: float
    high: float
    n: int


def percent(log_ratio: float) -> float:
    """A log ratio as a percentage of the reference's speed: 0 gives 100."""
    return 100.0 * math.exp(log_ratio)


def log_ratios(reference: Sequence[float], kernel: Sequence[float]) -> Floats:
    """``ln(reference / kernel)`` pair by pair; `FlashladderError`: a time is not a finite positive number."""
    a, b = np.asarray(reference, dtype=np.float64), np.asarray(kernel, dtype=np.float64)
    if not bool(np.all((a > 0) & (b > 0) & np.isfinite(a) & np.isfinite(b))):
        raise FlashladderError("a time is not a finite positive number", found=f"smallest {min(a.min(), b.min())}")
    return np.asarray(np.log(a / b), dtype=np.float64)


def resampled_medians(values: Floats, clusters: Sequence[int] | None = None, *, seed: int = SEED) -> Floats:
    """Medians of `RESAMPLES` bootstrap draws of `values`, as a read-only array.

    `clusters` holds the process of each value. Then whole processes are drawn: samples of one process share its memory
    layout and clock history, so they are not independent. If there is only one process, values are drawn.
    """
    groups = None if clusters is None else tuple(clusters)
    return _resampled(np.asarray(values, dtype=np.float64).tobytes(), groups, seed)


@lru_cache(maxsize=2048)  # of 16 KB; a ratio and its mean ask for the same draws
def _resampled(raw: bytes, clusters: tuple[int, ...] | None, seed: int) -> Floats:
    values = np.frombuffer(raw, dtype=np.float64)
    labels = np.zeros(values.size) if clusters is None else np.asarray(clusters)
    groups = [values[labels == label] for label in np.unique(labels)]
    alike = len({group.size for group in groups}) == 1
    drawn = groups[0] if len(groups) == 1 else np.stack(groups) if alike else groups
    picks = _picks(len(drawn), seed)
    if isinstance(drawn, np.ndarray):
        found = _medians(drawn[picks].reshape(RESAMPLES, -1))
    else:
        found = np.array([np.median(np.concatenate([drawn[i] for i in pick])) for pick in picks], dtype=np.float64)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=64)  # all cells with as many pairs draw the same places
def _picks(count: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))


def _medians(rows: Floats) -> Floats:
    """`np.median` along the last axis, bit by bit, for numbers without NaN; up to ten times as fast for a few dozen."""
    ordered = np.sort(rows, axis=-1)
    middle = ordered.shape[-1] // 2
    return ordered[..., middle] if ordered.shape[-1] % 2 else (ordered[..., middle - 1] + ordered[..., middle]) / 2


def median(values: Floats | Sequence[float]) -> float:
    """The median of one or more numbers without NaN."""
    return float(_medians(np.asarray(values, dtype=np.float64)))


def interval(draws: Floats) -> tuple[float, float]:
    """The 95 % percentile interval of bootstrap draws."""
    low, high = np.quantile(draws, [TAIL, 1.0 - TAIL])
    return float(low), float(high)


def summarize(values: Floats, clusters: Sequence[int] | None = None) -> LogSummary:
    """Median and 95 % interval of log ratios."""
    low, high = interval(resampled_medians(values, clusters))
    return LogSummary(median(values), low, high, int(values.size))


def floor_of(summaries: Sequence[LogSummary]) -> float:
    """The A/A floor in log units: the farthest end of any A/A interval; `FlashladderError`: there is none."""
    if not summaries:
        raise FlashladderError("no A/A series, so no noise floor", hint="time the reference against itself as well")
    return max(max(abs(summary.low), abs(summary.high)) for summary in summaries)


def verdict(summary: LogSummary, floor: float, *, enough: int = 1) -> Verdict:
    """Compares an interval with the A/A floor (log units).

    `faster`, `slower`: the whole interval lies beyond the floor. `same`: the whole interval lies inside it.
    `ambiguous`: neither, or fewer than `enough` pairs.
    """
    if summary.n < enough:
        return "ambiguous"
    if summary.low > floor:
        return "faster"
    if summary.high < -floor:
        return "slower"
    return "same" if -floor <= summary.low and summary.high <= floor else "ambiguous"


def harmonic_mean(ratios: Sequence[float]) -> float:
    """Harmonic mean of positive ratios."""
    return float(len(ratios) / np.sum(1.0 / np.asarray(ratios, dtype=np.float64)))


def harmonic_summary(series: Sequence[tuple[Floats, Sequence[int] | None]]) -> LogSummary:
    """Harmonic mean over lengths, each resampled alone; `series`: log ratios and clusters (or None) per length."""
    mean = harmonic_mean([math.exp(median(values)) for values, _ in series])
    draws = np.stack(
        [resampled_medians(values, clusters, seed=SEED + index) for index, (values, clusters) in enumerate(series)]
    )
    means = len(series) / np.sum(np.exp(-draws), axis=0)
    low, high = interval(np.log(means))
    return LogSummary(math.log(mean), low, high, sum(int(values.size) for values, _ in series))


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation, mean ranks for ties; `FlashladderError`: unequal lengths, or one is constant."""
    if len(a) != len(b) or len(a) < 2 or len(set(a)) == 1 or len(set(b)) == 1:
        raise FlashladderError("no rank order", expected="two varying sequences of equal length", found=f"{a}, {b}")
    ranks = [[2 * sum(y < x for y in values) + sum(y == x for y in values) for x in values] for values in (a, b)]
    return float(np.corrcoef(*np.array(ranks, np.float64))[0, 1])


def widened(samples: LogSummary, floor: float, others: Sequence[float] = ()) -> LogSummary:
    """The samples' interval, extended to other runs' medians and then by the floor (log units) at both ends."""
    low, high = min([samples.low, *others]) - floor, max([samples.high, *others]) + floor
    return LogSummary(samples.median, low, high, samples.n)


def stated(result: BenchResult, others: Sequence[BenchResult] = ()) -> BenchResult:
    """A derived result with the intervals that tables print, and verdicts that fit them. Never write it to a file.

    `others` are other runs of some of the same machine code on the same GPU model.
    """
    floors = {dtype: math.log1p(floor / 100.0) for dtype, floor in result.floors_pct.items()}
    known: dict[Key, list[float]] = {}
    for run in others:
        every: list[Summary | Mean] = [*run.summaries, *run.means]
        for key, value in {key: _log(one.pct) for one in every if (key := _key(run, one))}.items():
            known.setdefault(key, []).append(value)

    def printed(one: Either) -> Either:
        key = _key(result, one)
        samples = LogSummary(_log(one.pct), _log(one.pct_low), _log(one.pct_high), 0)
        found = widened(samples, floors.get(one.dtype, 0.0), known.get(key, ()) if key else ())
        return one.model_copy(update={"pct_low": percent(found.low), "pct_high": percent(found.high)})

    summaries = tuple(_judged(printed(one), floors[one.dtype]) for one in result.summaries)
    return result.model_copy(update={"summaries": summaries, "means": tuple(printed(one) for one in result.means)})


def _key(result: BenchResult, one: Summary | Mean) -> Key | None:
    """Equal for equal cells of different files; None if the machine code is unknown."""
    kernel = result.kernels.get(one.kernel)
    if kernel is None or kernel.text_sha256 is None:
        return None
    place = (one.shape.batch, one.shape.seq_len) if isinstance(one, Summary) else (0, *one.seq_lens)
    return kernel.text_sha256, one.dtype, place


def _judged(one: Summary, floor: float) -> Summary:
    """`ambiguous`, unless the printed interval supports the verdict: beyond 100 %, or for `same` within the floor."""
    inside = 2 * floor + ROUNDING
    fits = {
        "faster": one.pct_low > percent(0.0),
        "slower": one.pct_high < percent(0.0),
        "same": -inside <= _log(one.pct_low) and _log(one.pct_high) <= inside,
    }
    return one if fits.get(one.verdict, True) else one.model_copy(update={"verdict": "ambiguous"})


def _log(pct: float) -> float:
    return math.log(pct / 100.0)
