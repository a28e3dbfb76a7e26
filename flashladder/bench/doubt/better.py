"""Kernels beside the best of several libraries, cell by cell and timer by timer, from raw samples.

Why: everything is paired with FA2, which is not the fastest that one can install. Which one is the best is decided in
each cell and by each timer anew. Of the paired timer a ratio is that of two pairs of one block, FA2's time in both
taken out; their median, and a 95 % bootstrap interval over blocks; where a sweep timed kernel and library in blocks of
their own, that of both medians. So it is not the ratio of the microseconds beside it, which were taken beside other
launches of FA2, at the clock of that company. Of another tool: each sample against the library's median in the same
round, and the interval over rounds.

Run:
    python -m flashladder.bench.doubt.better results/h200/hopper.json.gz    # or of second opinions
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
import sys

import numpy as np

from flashladder.bench.doubt.timers import held_up
from flashladder.columns import listed, table
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.names import LIBRARIES
from flashladder.problem import Shape
from flashladder.results.derive import by_cell, waited_for_host
from flashladder.results.files import load_result
from flashladder.results.schema import BenchResult, Group, Opinion, SecondOpinionResult, Series, Timings
from flashladder.results.statistics import (
    SEED,
    LogSummary,
    interval,
    log_ratios,
    percent,
    resampled_medians,
    summarize,
)

PAIRED = "paired"
Place = tuple[int, int, int]  # group, block, which of the block's pairs
Pairs = Mapping[Place, tuple[float, float]]  # microseconds of FA2 and of a subject


@dataclass(frozen=True)
class Advantage:
    """A kernel's percentage of a library's speed, by one timer in one cell.

    Attributes:
        timer: ``paired``, or the method of a second opinion.
        over: the library, the fastest of `among`.
        among: the libraries that this timer timed there.
        n: pairs, or rounds.
        host: whose time the host, not the GPU, set, by name: the kernel's, or that of any of `among`, which may be
            faster than it shows.
    """

    timer: str
    kernel: str
    dtype: str
    shape: Shape
    over: str
    among: tuple[str, ...]
    pct: float
    low: float
    high: float
    kernel_us: float
    over_us: float
    n: int
    host: tuple[str, ...] = ()


def advantages(result: BenchResult | SecondOpinionResult, among: Sequence[str] = LIBRARIES) -> tuple[Advantage, ...]:
    """Of every kernel in every cell with one of the libraries; by all timers of a second opinion."""
    if isinstance(result, BenchResult):
        return tuple(_paired(result, among))
    kernels = result.paired.kernels
    others = (one for opinion in result.opinions for one in _others(opinion, kernels, among))
    return (*_paired(result.paired, among), *others)


def _paired(result: BenchResult, among: Sequence[str]) -> Iterator[Advantage]:
    timed = by_cell(result.groups)
    cells = {cell: _pairs(parts) for cell, parts in timed.items()}
    for (kernel, dtype, shape), own in cells.items():
        libraries = {name: theirs for name in among if (theirs := cells.get((name, dtype, shape)))}
        if kernel not in result.kernels or not own or not libraries:
            continue
        each = {name: _against(own, theirs) for name, theirs in libraries.items()}
        over = min(each, key=lambda name: each[name].median)
        found = each[over]
        yield Advantage(
            PAIRED, kernel, dtype, shape, over, tuple(libraries),
            percent(found.median), percent(found.low), percent(found.high),
            _median_us(own), _median_us(libraries[over]), found.n,
            tuple(name for name in (kernel, *libraries) if waited_for_host(timed[name, dtype, shape])),
        )  # fmt: skip


def _pairs(parts: Sequence[tuple[Group, Series]]) -> Pairs:
    """Times of FA2 and of a subject in microseconds, of blocks that count, by place."""
    found: dict[Place, tuple[float, float]] = {}
    for group, series in parts:
        dropped = {block.index for block in group.blocks if block.dropped is not None}
        seen: dict[int, int] = {}
        for pair in series.pairs:
            turn = seen[pair.block] = seen.get(pair.block, -1) + 1
            if pair.block not in dropped:
                found[id(group), pair.block, turn] = (pair.reference_us, pair.kernel_us)
    return found


def _against(own: Pairs, theirs: Pairs) -> LogSummary:
    """Log ratio of a library's time to a kernel's: pair by pair where they share blocks, else of both medians."""
    if places := sorted(own.keys() & theirs.keys()):
        ratios = np.array([_log(own[place]) - _log(theirs[place]) for place in places])
        blocks = {block: number for number, block in enumerate(dict.fromkeys(place[:2] for place in places))}
        return summarize(ratios, [blocks[place[:2]] for place in places])
    mine, other = (np.array([_log(pair) for pair in pairs.values()]) for pairs in (own, theirs))
    low, high = interval(resampled_medians(mine) - resampled_medians(other, seed=SEED + 1))
    return LogSummary(float(np.median(mine) - np.median(other)), low, high, min(mine.size, other.size))


def _median_us(pairs: Pairs) -> float:
    return float(np.median([us for _, us in pairs.values()]))


def _log(pair: tuple[float, float]) -> float:
    return float(log_ratios(pair[:1], pair[1:])[0])


def _others(opinion: Opinion, kernels: Mapping[str, object], among: Sequence[str]) -> Iterator[Advantage]:
    libraries = {name: timings for name in among if (timings := opinion.of(name)) is not None}
    if not libraries:
        return
    over = min(libraries, key=lambda name: float(np.median(libraries[name].us)))
    medians = by_round(libraries[over])
    for own in (one for one in opinion.timings if one.subject in kernels):
        if lacking := set(own.rounds) - medians.keys():
            raise FlashladderError(f"{opinion.method} has no time of {over}", where=own.subject, found=min(lacking))
        ratios = log_ratios([medians[number] for number in own.rounds], own.us)
        found = summarize(ratios, own.rounds)
        slow = tuple(one.subject for one in (own, *libraries.values()) if held_up(one))
        yield Advantage(
            opinion.method, own.subject, opinion.dtype, opinion.shape, over, tuple(libraries),
            percent(found.median), percent(found.low), percent(found.high),
            float(np.median(own.us)), float(np.median(libraries[over].us)), len(set(own.rounds)), slow,
        )  # fmt: skip


def by_round(timings: Timings) -> dict[int, float]:
    """Median of each round in microseconds."""
    numbers, times = np.asarray(timings.rounds), np.asarray(timings.us)
    return {number: float(np.median(times[numbers == number])) for number in dict.fromkeys(timings.rounds)}


def render(found: Sequence[Advantage]) -> list[str]:
    """A table per dtype and length; nothing where no library was timed."""
    lines: list[str] = []
    for dtype, shape in dict.fromkeys((one.dtype, one.shape) for one in found):
        own = [one for one in found if (one.dtype, one.shape) == (dtype, shape)]
        rows = [("kernel", "timer", "over", "us", "its us", "%", "95 %", "n", "")]
        rows += [
            (
                one.kernel.partition(" ")[0], one.timer, one.over, f"{one.kernel_us:.1f}", f"{one.over_us:.1f}",
                f"{one.pct:.2f}", f"{one.low:.2f}-{one.high:.2f}", str(one.n),
                f"{' and '.join(name.partition(' ')[0] for name in one.host)}: the host's time" if one.host else "",
            )
            for one in sorted(own, key=lambda one: one.kernel)
        ]  # fmt: skip
        among = listed(list(dict.fromkeys(name for one in own for name in one.among)))
        title = f"{dtype}, S={shape.seq_len}, B={shape.batch}, H={shape.n_heads}: speed over the best of {among}"
        lines += ["", title, *table(rows, None, right={3, 4, 5, 7})]
    return [line.rstrip() for line in lines]


def main(paths: Sequence[str]) -> int:
    """Prints the tables of result files."""
    if not paths or "--help" in paths:
        print("usage: python -m flashladder.bench.doubt.better FILE...   example: ... results/h200/hopper.json.gz")
        return 0 if paths else 2
    for name in paths:
        result = load_result(Path(name))
        if not isinstance(result, BenchResult | SecondOpinionResult):
            raise FlashladderError("no timings", where=name, expected="bench or second-opinion", found=result.kind)
        found = advantages(result)
        if not found:
            raise FlashladderError("no kernel beside a library", where=name, expected=" or ".join(LIBRARIES))
        print("\n".join(render(found)).strip())
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main(sys.argv[1:]))
