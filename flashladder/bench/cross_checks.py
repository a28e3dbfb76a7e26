"""Do other timers agree with the paired one, and how fast is a kernel beside the best library? From raw samples alone.

A systematic error of the paired timer would be in every table; tools that share no code with it would not make the same
one. Another tool's ratio to FA2 is the median over its samples, each compared with FA2's median in the same round. Its
95 % interval is a bootstrap over rounds. The timers ``agree`` if the intervals overlap, the paired one widened by the
A/A floor (rule 4 of the measurement protocol).

Everything is paired with FA2, which is not the fastest library. The best one is chosen in each cell and by each timer
anew. The paired timer compares kernel and library by their ratios to FA2, pair by pair in the same block, with a
95 % bootstrap interval over blocks; if a sweep timed them in different blocks, by the medians of these ratios. The
microseconds may give another ratio: each was taken beside other launches of FA2. Another tool's ratio is
each sample against the library's median in the same round.

Run:
    python -m flashladder.bench 1 7 16 --seq-lens 4096 --method nvbench ncu --out opinions.json.gz    # needs a GPU
    python -m flashladder.bench.cross_checks opinions.json.gz   # prints the tables; exit 1 if they do not follow
    python -m flashladder.bench.cross_checks results/h200/hopper.json.gz    # of a bench or a sweep: beside libraries
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
import sys

import numpy as np

from flashladder import columns
from flashladder.bench.references import FA2
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.names import CYCLES, LIBRARIES
from flashladder.problem import Shape
from flashladder.results import derive as summaries
from flashladder.results.derive import by_cell, unequal, waited_for_host
from flashladder.results.files import load_result
from flashladder.results.schema import (
    Agreement,
    BenchResult,
    Group,
    Opinion,
    SecondOpinionResult,
    Series,
    Summary,
    Timings,
)
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
HOST = "host_ns"  # counter of torch's timer: what it takes the host to queue one launch
HELD_UP = 0.9  # if queuing takes this share of a launch's time or more, the host sets the time, not the GPU
Cell = tuple[str, str, Shape]
Place = tuple[int, int, int]  # group, block, which of the block's pairs
Pairs = Mapping[Place, tuple[float, float]]  # microseconds of FA2 and of a subject


@dataclass(frozen=True)
class Advantage:
    """A kernel's percentage of the speed of `over`, the fastest library of `among`, by one timer in one cell.

    `n`: pairs, or rounds. `host`: which of the kernel and `among` were held up by the host. They may be faster
    than shown.
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


def advantages(result: BenchResult | SecondOpinionResult) -> tuple[Advantage, ...]:
    """Of every kernel in every cell with one of the libraries; by all timers of a second opinion."""
    if isinstance(result, BenchResult):
        return tuple(_paired(result))
    others = (one for opinion in result.opinions for one in _others(opinion, result.paired.kernels))
    return (*_paired(result.paired), *others)


def _paired(result: BenchResult) -> Iterator[Advantage]:
    timed = by_cell(result.groups)
    cells = {cell: _pairs(parts) for cell, parts in timed.items()}
    for (kernel, dtype, shape), own in cells.items():
        libraries = {name: theirs for name in LIBRARIES if (theirs := cells.get((name, dtype, shape)))}
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


def _others(opinion: Opinion, kernels: Mapping[str, object]) -> Iterator[Advantage]:
    libraries = {name: timings for name in LIBRARIES if (timings := opinion.of(name)) is not None}
    if not libraries:
        return
    over = min(libraries, key=lambda name: float(np.median(libraries[name].us)))
    for own in (one for one in opinion.timings if one.subject in kernels):
        pct, low, high = _against_rounds(opinion, own, over)
        slow = tuple(one.subject for one in (own, *libraries.values()) if held_up(one))
        yield Advantage(
            opinion.method, own.subject, opinion.dtype, opinion.shape, over, tuple(libraries), pct, low, high,
            float(np.median(own.us)), float(np.median(libraries[over].us)), len(set(own.rounds)), slow,
        )  # fmt: skip


def _against_rounds(opinion: Opinion, own: Timings, over: str) -> tuple[float, float, float]:
    """Percentage of the speed of `over`, and its 95 % interval: each sample against its median in the same round.

    Raises:
        FlashladderError: `over` was not timed in one of the rounds.
    """
    other = opinion.of(over)
    medians = by_round(other) if other else {}
    if lacking := set(own.rounds) - medians.keys():
        raise FlashladderError(f"{opinion.method} has no time of {over}", where=own.subject, found=min(lacking))
    found = summarize(log_ratios([medians[number] for number in own.rounds], own.us), own.rounds)
    return percent(found.median), percent(found.low), percent(found.high)


def by_round(timings: Timings) -> dict[int, float]:
    """Median of each round in microseconds."""
    numbers, times = np.asarray(timings.rounds), np.asarray(timings.us)
    return {number: float(np.median(times[numbers == number])) for number in dict.fromkeys(timings.rounds)}


def beside_libraries(found: Sequence[Advantage]) -> list[str]:
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
        among = columns.listed(list(dict.fromkeys(name for one in own for name in one.among)))
        title = f"{dtype}, S={shape.seq_len}, B={shape.batch}, H={shape.n_heads}: speed over the best of {among}"
        lines += ["", title, *columns.table(rows, None, right={3, 4, 5, 7})]
    return [line.rstrip() for line in lines]


def held_up(timings: Timings | None) -> bool:
    """Whether the host, not the GPU, set the time of a subject's samples."""
    if timings is None or HOST not in timings.counters:
        return False
    behind = [host / 1e3 >= HELD_UP * us for host, us in zip(timings.counters[HOST], timings.us, strict=True)]
    return 2 * sum(behind) > len(behind)


def derive(result: SecondOpinionResult) -> SecondOpinionResult:
    """The same result with the paired tables and all agreements derived from raw samples."""
    paired = summaries.derive(result.paired)
    cells = _cells(paired)
    found = tuple(
        _agreement(opinion, timings, cells[cell], 1.0 + paired.floors_pct[opinion.dtype] / 100.0)
        for opinion in result.opinions
        for timings in opinion.timings
        if (cell := (timings.subject, opinion.dtype, opinion.shape)) in cells
    )
    return result.model_copy(update={"paired": paired, "agreements": found})


def _cells(paired: BenchResult) -> Mapping[Cell, Summary]:
    return {(one.kernel, one.dtype, one.shape): one for one in paired.summaries}


def _agreement(opinion: Opinion, timings: Timings, paired: Summary, floor: float) -> Agreement:
    """One tool's ratio of one cell; `floor` is the ratio that two runs of FA2 itself may differ by."""
    pct, low, high = _against_rounds(opinion, timings, FA2)
    fa2 = opinion.of(FA2)
    assert fa2 is not None, "its rounds were compared"
    return Agreement(
        method=opinion.method,
        kernel=timings.subject,
        dtype=opinion.dtype,
        shape=opinion.shape,
        pct=pct,
        pct_low=low,
        pct_high=high,
        kernel_us=float(np.median(timings.us)),
        reference_us=float(np.median(list(by_round(fa2).values()))),
        n_rounds=len(set(timings.rounds)),
        off_pct=100.0 * (pct / paired.pct - 1.0),
        agrees=low <= paired.pct_high * floor and paired.pct_low <= high * floor,
    )


def problems(result: SecondOpinionResult) -> list[str]:
    """What is wrong with a result: of the paired timer, times that cannot be, missing cells, numbers out of nowhere."""
    found = [f"paired: {line}" for line in summaries.problems(result.paired)]
    origin = ("rung", "gpu", "host", "kernels", "protocol_version")
    other = [name for name in origin if getattr(result, name) != getattr(result.paired, name)]
    found += [f"{name} is not that of the pairs" for name in other]
    cells = _cells(result.paired)
    for opinion in result.opinions:
        where = f"{opinion.method} {opinion.dtype} S={opinion.shape.seq_len}"
        expected = {FA2} | {key for key, dtype, shape in cells if (dtype, shape) == (opinion.dtype, opinion.shape)}
        timed = [one.subject for one in opinion.timings]
        found += [f"{where}: {key}: not timed" for key in sorted(expected - set(timed))]
        surplus = sorted({key for key in timed if key not in expected or timed.count(key) > 1})
        found += [f"{where}: {key}: not timed by the paired timer, or twice" for key in surplus]
        limit = summaries.fastest_possible_us(opinion.shape, result.gpu.name) or 0.0
        found += [
            f"{where}: {one.subject}: {min(one.us):.1f} us is below the {limit:.1f} us that the GPU's peaks allow"
            for one in opinion.timings
            if min(one.us) < limit
        ]
    if found:
        return found
    written, derived = ([one.model_dump() for one in each.agreements] for each in (result, derive(result)))
    told = "agreements do not follow from the samples"
    if len(written) != len(derived):
        return [f"{told}: {len(written)} written, {len(derived)} derived"]
    return [f"{told}: agreement{field}: written {a}, derived {b}" for field, a, b in unequal(written, derived)]


def table(result: SecondOpinionResult) -> str:
    """Per dtype and shape a row of each kernel by the paired timer, and one by each tool."""
    lines = [f"{result.gpu.name}, rung: {result.rung}, FA2 of torch {result.paired.reference.torch}"]
    opinions: dict[object, Opinion] = {(one.method, one.dtype, one.shape): one for one in result.opinions}
    for dtype, shape in dict.fromkeys((one.dtype, one.shape) for one in result.paired.summaries):
        rows: list[tuple[str, ...]] = [
            ("timer", "mode", "us", "FA2 us", "MHz", "% of FA2", "95 %", "beside the paired timer", "kernel")
        ]
        for cell, paired in _cells(result.paired).items():
            if cell[1:] != (dtype, shape):
                continue
            rows.append(_row(PAIRED, result.paired.mode, paired, paired.sm_clock_mhz, ""))
            for one in result.agreements:
                if (one.kernel, one.dtype, one.shape) != cell:
                    continue
                opinion = opinions[one.method, one.dtype, one.shape]
                timings = opinion.of(one.kernel)
                cycles = timings.counters.get(CYCLES) if timings else None
                clock = float(np.median(np.asarray(cycles) / np.asarray(timings.us))) if timings and cycles else None
                told = f"{'agree' if one.agrees else 'differ'} ({one.off_pct:+.2f} %)"
                told += "; the host's time" if held_up(timings) else ""
                rows.append(_row(one.method, opinion.mode, one, clock, told))
        floor = f"A/A floor {result.paired.floors_pct[dtype]:.2f} points"
        lines.append(f"{dtype}, S={shape.seq_len}, B={shape.batch}, H={shape.n_heads}; {floor}")
        lines += [line.rstrip() for line in columns.table(rows, None, right={2, 3, 4, 5, 6})]
    lines += [*beside_libraries(advantages(result)), ""]
    intervals = "95 %: intervals over pairs (paired) or rounds (others); agree: they overlap within the A/A floor"
    return "\n".join([*lines, intervals, *(f"left out: {line}" for line in result.left_out)])


def _row(timer: str, mode: str, one: Summary | Agreement, clock: float | None, told: str) -> tuple[str, ...]:
    """`clock`: of the SMs in MHz, where the timer knows it."""
    times = (f"{one.kernel_us:.1f}", f"{one.reference_us:.1f}", f"{clock:.0f}" if clock else "")
    return (timer, mode, *times, f"{one.pct:.2f}", f"{one.pct_low:.2f}-{one.pct_high:.2f}", told, one.kernel)


def print_tables(path: Path) -> None:
    """Prints what a file says of other timers and of libraries.

    Raises:
        CheckFailed: a second opinion is implausible or does not follow from its samples.
        FlashladderError: it holds no timings, or no library beside a kernel.
    """
    result = load_result(path)
    if isinstance(result, SecondOpinionResult):
        if found := problems(result):
            raise CheckFailed(f"{len(found)} problems, the first: {found[0]}", where=path)
        print(table(result))
    elif isinstance(result, BenchResult):
        if not (beside := advantages(result)):
            raise FlashladderError("no kernel beside a library", where=path, expected=" or ".join(LIBRARIES))
        print("\n".join(beside_libraries(beside)).strip())
    else:
        raise FlashladderError("no timings", where=path, expected="bench or second-opinion", found=result.kind)


def main(paths: Sequence[str]) -> int:
    """Prints the tables of result files."""
    if not paths or "--help" in paths:
        print("usage: python -m flashladder.bench.cross_checks FILE...   example: ... results/h200/opinions.json.gz")
        return 0 if paths else 2
    for name in paths:
        print_tables(Path(name))
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main(sys.argv[1:]))
