"""Do other timers agree with the paired one, and how fast is a kernel beside the best library? From raw samples alone.

A systematic error of the paired timer would be in every table; tools that share no code with it would not make the same
one. They time the same launches, on the tensors of the paired timer's first input set; in every round each subject has
its turn. A tool that is missing or refused is one line, no failure.
``nvbench`` (PyPI ``cuda-bench``): each launch alone, CUDA events, a cold L2. ``ncu``: the GPU's own duration, caches
flushed, clocks left alone. Both run this module in a process of its own. ``torch``: `torch.utils.benchmark`, the host's
clock around launches back to back. Python takes 20 to 120 us to queue a launch, so shorter kernels show that time:
`HOST` counts it. ``warm``: events around single launches without a flush; the GPU sleeps before each, so that the host
is ahead and the L2 stays warm. ``turns``: the L2 is flushed before each launch, and all subjects alternate in an order
drawn anew for every round. The paired timer compares two subjects through FA2's time beside each; at the power limit
that depends on what runs beside.

Another tool's ratio to FA2 is the median over its samples, each compared with FA2's median in the same round. Its
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

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
import importlib
from importlib import metadata
from itertools import islice
from pathlib import Path
from random import Random
import re
import sys
import tempfile
import time
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from flashladder import columns
from flashladder.arguments import Parser
from flashladder.bench.references import BACKENDS, FA2, Subject, kernel_subject, reference_subject
from flashladder.bench.timing import FIRST_SEED, Event, cuda_event, flush_bytes
from flashladder.build.wheel import load_installed
from flashladder.cases.inputs import Case, make_tensors
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import load_json
from flashladder.gpu.ncu import profile, run_ncu
from flashladder.ladder.config import KernelConfig
from flashladder.located import first_problem
from flashladder.names import CYCLES, DURATION, INSTRUCTIONS, KERNEL, LIBRARIES, TENSOR
from flashladder.problem import Shape
from flashladder.results import derive as summaries
from flashladder.results.derive import by_cell, unequal, waited_for_host
from flashladder.results.files import load_result, write_result
from flashladder.results.schema import (
    Agreement,
    BenchResult,
    Group,
    Method,
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
Pairs = Mapping[Place, tuple[float, float]]  # microseconds of a subject, log ratio of FA2's to them


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
    """Of blocks that count, by place."""
    found: dict[Place, tuple[float, float]] = {}
    for group, series in parts:
        dropped = {block.index for block in group.blocks if block.dropped is not None}
        seen: dict[int, int] = {}
        for pair in series.pairs:
            turn = seen[pair.block] = seen.get(pair.block, -1) + 1
            if pair.block not in dropped:
                ratio = float(log_ratios([pair.reference_us], [pair.kernel_us])[0])
                found[id(group), pair.block, turn] = (pair.kernel_us, ratio)
    return found


def _against(own: Pairs, theirs: Pairs) -> LogSummary:
    """Log ratio of a library's time to a kernel's: pair by pair where they share blocks, else of both medians."""
    if places := sorted(own.keys() & theirs.keys()):
        ratios = np.array([own[place][1] - theirs[place][1] for place in places])
        blocks = {block: number for number, block in enumerate(dict.fromkeys(place[:2] for place in places))}
        return summarize(ratios, [blocks[place[:2]] for place in places])
    mine, other = (np.array([ratio for _, ratio in pairs.values()]) for pairs in (own, theirs))
    low, high = interval(resampled_medians(mine) - resampled_medians(other, seed=SEED + 1))
    return LogSummary(float(np.median(mine) - np.median(other)), low, high, min(mine.size, other.size))


def _median_us(pairs: Pairs) -> float:
    return float(np.median([us for us, _ in pairs.values()]))


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
    medians = by_round(opinion, over)
    if lacking := set(own.rounds) - medians.keys():
        raise FlashladderError(f"{opinion.method} has no time of {over}", where=own.subject, found=min(lacking))
    found = summarize(log_ratios([medians[number] for number in own.rounds], own.us), own.rounds)
    return percent(found.median), percent(found.low), percent(found.high)


def by_round(opinion: Opinion, subject: str) -> dict[int, float]:
    """A subject's median of each round in microseconds; none where it was not timed."""
    if (timings := opinion.of(subject)) is None:
        return {}
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
    return lines


def held_up(timings: Timings) -> bool:
    """Whether the host, not the GPU, set the time of a subject's samples."""
    behind = [host / 1e3 >= HELD_UP * us for host, us in zip(timings.counters.get(HOST, ()), timings.us, strict=False)]
    return 2 * sum(behind) > len(behind)


def derive(result: SecondOpinionResult) -> SecondOpinionResult:
    """The same result with the paired tables and all agreements derived from raw samples."""
    paired = summaries.derive(result.paired)
    cells, found = _cells(paired), list[Agreement]()
    for opinion, timings in ((one, timings) for one in result.opinions for timings in one.timings):
        if (beside := cells.get((timings.subject, opinion.dtype, opinion.shape))) is None:
            continue
        pct, low, high = _against_rounds(opinion, timings, FA2)
        floor = 1.0 + paired.floors_pct[opinion.dtype] / 100.0  # the ratio that two runs of FA2 itself may differ by
        agreement = Agreement(
            method=opinion.method, kernel=timings.subject, dtype=opinion.dtype, shape=opinion.shape,
            pct=pct, pct_low=low, pct_high=high, kernel_us=float(np.median(timings.us)),
            reference_us=float(np.median(list(by_round(opinion, FA2).values()))), n_rounds=len(set(timings.rounds)),
            off_pct=100.0 * (pct / beside.pct - 1.0),
            agrees=low <= beside.pct_high * floor and beside.pct_low <= high * floor,
        )  # fmt: skip
        found.append(agreement)
    return result.model_copy(update={"paired": paired, "agreements": tuple(found)})


def _cells(paired: BenchResult) -> Mapping[Cell, Summary]:
    return {(one.kernel, one.dtype, one.shape): one for one in paired.summaries}


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
                timings = next(timed for timed in opinion.timings if timed.subject == one.kernel)
                cycles = timings.counters.get(CYCLES)
                clock = float(np.median(np.asarray(cycles) / np.asarray(timings.us))) if cycles else None
                told = f"{'agree' if one.agrees else 'differ'} ({one.off_pct:+.2f} %)"
                told += "; the host's time" if held_up(timings) else ""
                rows.append(_row(one.method, opinion.mode, one, clock, told))
        floor = f"A/A floor {result.paired.floors_pct[dtype]:.2f} points"
        lines.append(f"{dtype}, S={shape.seq_len}, B={shape.batch}, H={shape.n_heads}; {floor}")
        lines += columns.table(rows, None, right={2, 3, 4, 5, 6})
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


TIMEOUT_S = 240.0  # of one tool, for each cell
ROUNDS: Mapping[Method, int] = {"nvbench": 8, "ncu": 24, "torch": 12, "warm": 12, "turns": 36}
"""In each of which every subject has a turn: one sample under ncu, torch and turns, several under the others."""
MODES: Mapping[Method, str] = {"ncu": "ncu-base", "torch": "wall-free"}  # clocks and caches; of the others event-free
WARM_UPS = 3  # launches of each subject before its first sample: compilers, plans and allocations are behind it then
SAMPLES = 12  # of one turn under NVBench
SAMPLE_TIMES = "nv/json/bin:nv/cold/sample_times"
METRICS = (DURATION, CYCLES, INSTRUCTIONS, TENSOR)
RUN_S = 0.06  # of one turn under torch's timer, about
FIRST = 10  # launches that tell how many a run takes
QUEUED = (3, 100)  # launches, at least and at most, while queuing is timed: a tenth of a run's
WARM_SAMPLES = 6  # of one turn
RUN_UP_S = 1.0  # of rounds before the first sample: until the clock is that of these subjects
# The GPU sleeps 0.5 or 2 ms before a launch: longer than queuing takes, which is up to 1 ms after another subject.
SLEEP_CYCLES: Mapping[Method, int] = {"warm": 1_000_000, "turns": 4_000_000}
TRIES = 5  # of one launch, until the host was ahead: the GPU sleeps twice as long before each further one

Launches = Mapping[str, Callable[[], object]]  # subject to what queues it once
Single = Callable[[str, Callable[[], object]], float]  # microseconds of one launch of a subject
Samples = dict[str, list[tuple[int, float]]]  # subject to round and microseconds


@dataclass(frozen=True)
class Rounds:
    """What is launched: `subjects` (references by name, kernels by key) in this order, `rounds` times."""

    subjects: tuple[str, ...]
    dtype: str
    shape: Shape
    rounds: int

    def turns(self) -> Iterator[tuple[int, str]]:
        """Round and subject of each turn, in launch order."""
        for number in range(self.rounds):
            for subject in self.subjects:
                yield number, subject


CELLS = TypeAdapter(list[Rounds])


def command(cells: Sequence[Rounds], *nvbench: str) -> list[str]:
    """The command line that launches cells in a new process; `nvbench`: a JSON file that NVBench writes meanwhile."""
    return [
        sys.executable,
        "-m",
        "flashladder.bench.cross_checks",
        "--launch",
        CELLS.dump_json(list(cells)).decode(),
        *nvbench,
    ]


def load(key: str, dtype: str) -> Subject:
    """The reference or the installed kernel with this name."""
    if key in BACKENDS:
        return reference_subject(key, dtype)
    number, _, form = key.partition(" ")
    installed, config = load_installed(int(number)), KernelConfig.parse(form)
    installed.require(config)
    return kernel_subject(int(number), config, installed.run)


def prepared(cells: Sequence[Rounds]) -> Iterator[tuple[Rounds, Launches]]:
    """Cells of the same subjects and dtype, each with what launches its subjects."""
    subjects = [load(key, cells[0].dtype) for key in cells[0].subjects]
    for rounds in cells:
        case = Case("second opinion", rounds.shape, seed=FIRST_SEED + rounds.shape.seq_len)
        tensors = make_tensors(case, rounds.dtype, "cuda")
        yield rounds, {subject.key: partial(subject.launch, tensors) for subject in subjects}


def warm_up(launches: Launches) -> None:
    """Launches every subject `WARM_UPS` times."""
    for launch in launches.values():
        for _ in range(WARM_UPS):
            launch()


def launch_rounds(rounds: Rounds, launches: Launches, wait: Callable[[], object], window: Any) -> None:
    """Warms every subject up, then launches all rounds between ``window.start()`` and ``window.stop()``."""
    warm_up(launches)
    wait()
    window.start()
    for _, key in rounds.turns():
        launches[key]()
    wait()
    window.stop()


def ask_nvbench(cells: Sequence[Rounds], timeout_s: float) -> list[Opinion]:
    """NVBench's times of all cells, from one process.

    Raises:
        FlashladderError: it is not installed, failed, or wrote what we cannot read.
    """
    try:
        version = metadata.version("cuda-bench")
        metadata.version("cuda-bindings")
    except metadata.PackageNotFoundError as error:
        raise FlashladderError(
            f"the package {error.name} is not installed", hint="pip install 'cuda-bench[cu13]'"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "nvbench.json"
        profile(command(cells, str(out)), timeout_s, "NVBench")
        found = read_nvbench(out, cells)
    return [_opinion("nvbench", f"cuda-bench {version}", *one) for one in zip(cells, found, strict=True)]


def read_nvbench(path: Path, cells: Sequence[Rounds]) -> list[tuple[Timings, ...]]:
    """Per cell samples by subject from NVBench's JSON and the binary files beside it: little-endian float32 seconds.

    Raises:
        FlashladderError: a turn is missing, was skipped, or its samples are not those that the document tells of.
    """
    try:
        document = load_json(path.read_bytes())
        states = {bench["name"]: bench["states"][0] for bench in document["benchmarks"]}
        found: list[tuple[Timings, ...]] = []
        for cell, rounds in enumerate(cells):
            samples: Samples = {key: [] for key in rounds.subjects}
            for number, key in rounds.turns():
                state = states[f"{cell} {number} {rounds.subjects.index(key)}"]
                if state.get("is_skipped"):
                    raise ValueError(f"skipped: {state.get('skip_reason')}")  # noqa: TRY301 - one line for all
                told = {one["tag"]: one["data"] for one in state["summaries"]}
                values = {one["name"]: one["value"] for one in told.get(SAMPLE_TIMES, [])}
                seconds = np.fromfile(path.parent / values["filename"], dtype="<f4")
                if seconds.size != int(values["size"]) or not seconds.size:
                    raise ValueError(f"{seconds.size} samples, told {values['size']}")  # noqa: TRY301
                samples[key] += [(number, float(one) * 1e6) for one in seconds]
            found.append(_timings(rounds, samples))
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise FlashladderError("cannot read what NVBench wrote", found=f"{type(error).__name__}: {error}") from error
    return found


def ask_ncu(cells: Sequence[Rounds], timeout_s: float) -> list[Opinion]:
    """Nsight Compute's durations and counters of all cells, one per turn, from one process.

    Raises:
        FlashladderError: no ncu, counters are refused, it failed, or it saw other launches.
    """
    options = ("--profile-from-start", "off", "--print-kernel-base", "demangled")
    launches, version = run_ncu(command(cells), METRICS, timeout_s, *options)
    found = by_turn(launches, cells)
    return [_opinion("ncu", version, *one) for one in zip(cells, found, strict=True)]


def by_turn(launches: Sequence[tuple[str, Mapping[str, int]]], cells: Sequence[Rounds]) -> list[tuple[Timings, ...]]:
    """Assigns kernels, in launch order, to the turns that launched them; a reference's several kernels count together.

    Raises:
        FlashladderError: an unknown kernel, or another number of launches than turns.
    """
    turns = [turn for rounds in cells for turn in rounds.turns()]
    taken: list[dict[str, int]] = []
    for name, found in launches:
        short = re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0].strip()
        mine = (
            KERNEL
            if short == KERNEL
            else next((key for key, one in BACKENDS.items() if re.search(one.marks, name)), None)
        )
        last = turns[len(taken) - 1][1] if taken else None
        if last in BACKENDS and mine in {None, last}:
            taken[-1] = {metric: taken[-1].get(metric, 0) + value for metric, value in found.items()}
            continue
        expected = turns[len(taken)][1] if len(taken) < len(turns) else None
        if expected is None or mine != (expected if expected in BACKENDS else KERNEL):
            raise FlashladderError(
                "ncu saw another kernel than was launched", expected=expected or "no more", found=short
            )
        taken.append(dict(found))
    if len(taken) != len(turns):
        raise FlashladderError("ncu saw another number of launches", expected=len(turns), found=len(taken))
    try:
        rest = iter(taken)
        return [_counted(rounds, list(islice(rest, len(rounds.subjects) * rounds.rounds))) for rounds in cells]
    except ValueError as error:
        raise FlashladderError("ncu's times are none", found=first_problem(error)) from error


def _counted(rounds: Rounds, counted: Sequence[Mapping[str, int]]) -> tuple[Timings, ...]:
    samples: Samples = {key: [] for key in rounds.subjects}
    counters = {key: {metric: list[int]() for metric in METRICS[1:]} for key in rounds.subjects}  # without the duration
    for (number, key), found in zip(rounds.turns(), counted, strict=True):
        samples[key].append((number, found[DURATION] / 1e3))
        for metric, values in counters[key].items():
            values.append(found[metric])
    return _timings(rounds, samples, counters)


def _torch_s(launch: Callable[[], object], count: int) -> float:
    """Seconds of one of `count` launches by torch's timer."""
    from torch.utils import benchmark

    return float(benchmark.Timer(stmt="launch()", globals={"launch": launch}).timeit(count).median)


def ask_torch(cells: Sequence[Rounds], _timeout_s: float) -> list[Opinion]:
    """Times of ``torch.utils.benchmark.Timer``: one sample a turn, the mean of as many launches as take about `RUN_S`.

    The host's own time to queue one stands beside it.
    """
    import torch

    opinions, wait = [], torch.cuda.synchronize
    for rounds, launches in prepared(cells):
        counts = {key: max(1, round(RUN_S / _torch_s(launch, FIRST))) for key, launch in launches.items()}
        found: Samples = {key: [] for key in launches}
        host: dict[str, list[int]] = {key: [] for key in launches}
        for number, key in rounds.turns():
            queued = min(max(QUEUED[0], counts[key] // 10), QUEUED[1])
            wait()
            start = time.perf_counter()
            for _ in range(queued):
                launches[key]()
            host[key].append(round((time.perf_counter() - start) / queued * 1e9))
            wait()
            found[key].append((number, _torch_s(launches[key], counts[key]) * 1e6))
        timings = _timings(rounds, found, {key: {HOST: values} for key, values in host.items()})
        opinions.append(_opinion("torch", f"torch.utils.benchmark of torch {torch.__version__}", rounds, timings))
    return opinions


def ask_events(method: Method, cells: Sequence[Rounds], _timeout_s: float) -> list[Opinion]:
    """Events around single launches: without a flush, or with the L2 flushed and all subjects alternating."""
    import torch

    buffer: Any = None
    if method == "turns":
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        buffer = torch.empty(flush_bytes(l2_bytes), dtype=torch.uint8, device="cuda")

    def prepare(longer: int) -> None:
        torch.cuda._sleep(longer * SLEEP_CYCLES[method])  # type: ignore[no-untyped-call]  # noqa: SLF001 - its only name
        if buffer is not None:
            buffer.zero_()

    single = partial(one_launch, cuda_event, prepare, torch.cuda.synchronize)
    timed: Callable[..., tuple[Timings, ...]] = turn_rounds if method == "turns" else warm_rounds
    version = f"events of torch {torch.__version__}"
    return [_opinion(method, version, one, timed(single, one, own)) for one, own in prepared(cells)]


def one_launch(
    event: Callable[[], Event],
    prepare: Callable[[int], object],
    wait: Callable[[], object],
    key: str,
    launch: Callable[[], object],
) -> float:
    """Microseconds of one launch that the host had queued before the GPU came to it.

    `prepare` queues what comes before: a sleep of the GPU, so many times as long as first, and perhaps a flush.

    Raises:
        FlashladderError: the GPU waited for the host before a launch `TRIES` times.
    """
    for tried in range(TRIES):
        start, end = event(), event()
        prepare(2**tried)
        start.record()
        launch()
        end.record()
        late = start.query()
        wait()
        if not late:
            return start.elapsed_time(end) * 1e3
    raise FlashladderError(f"the host was too slow {TRIES} times", where=key, hint="run it on an idle machine")


def warm_rounds(single: Single, rounds: Rounds, launches: Launches) -> tuple[Timings, ...]:
    """`WARM_SAMPLES` samples a turn; a turn's first launch is no sample."""
    warm_up(launches)
    found: Samples = {key: [] for key in launches}
    for number, key in rounds.turns():
        launches[key]()
        found[key] += [(number, single(key, launches[key])) for _ in range(WARM_SAMPLES)]
    return _timings(rounds, found)


def turn_rounds(single: Single, rounds: Rounds, launches: Launches) -> tuple[Timings, ...]:
    """One sample a turn, in each round in another order, the same in every run, after `RUN_UP_S` of such rounds."""
    warm_up(launches)
    begun = time.perf_counter()
    while time.perf_counter() - begun < RUN_UP_S:
        for key, launch in launches.items():
            single(key, launch)
    found: Samples = {key: [] for key in launches}
    order = Random(rounds.shape.seq_len)  # noqa: S311 - no secret
    for number in range(rounds.rounds):
        for key in order.sample(rounds.subjects, len(rounds.subjects)):
            found[key].append((number, single(key, launches[key])))
    return _timings(rounds, found)


def _timings(
    rounds: Rounds, samples: Samples, counters: Mapping[str, Mapping[str, Sequence[int]]] | None = None
) -> tuple[Timings, ...]:
    return tuple(
        Timings(
            subject=key,
            rounds=tuple(number for number, _ in samples[key]),
            us=tuple(us for _, us in samples[key]),
            counters={name: tuple(values) for name, values in (counters or {}).get(key, {}).items()},
        )
        for key in rounds.subjects
    )


def _opinion(method: Method, version: str, rounds: Rounds, timings: tuple[Timings, ...]) -> Opinion:
    mode = MODES.get(method, "event-free")
    facts = {"method": method, "mode": mode, "version": version, "dtype": rounds.dtype, "shape": rounds.shape}
    return Opinion.model_validate({**facts, "timings": timings})


ASK: Mapping[Method, Callable[[Sequence[Rounds], float], list[Opinion]]] = {
    "nvbench": ask_nvbench,
    "ncu": ask_ncu,
    "torch": ask_torch,
    "warm": partial(ask_events, "warm"),
    "turns": partial(ask_events, "turns"),
}


def compare(
    out: Path | None, paired: BenchResult, methods: Sequence[Method], rounds: int | None = None
) -> SecondOpinionResult:
    """Has every cell of a fresh paired result timed by other tools; a tool that cannot is left out with its reason.

    Writes what there is before the first tool and after each, and prints the table; `rounds`: None for each tool's own.

    Raises:
        CheckFailed: a tool's times cannot be; the file is written all the same.
    """
    import torch

    torch.cuda.empty_cache()  # the tools' processes need the memory
    facts = {name: getattr(paired, name) for name in ("rung", "gpu", "host", "kernels")}
    result = derive(SecondOpinionResult(**facts, paired=paired, opinions=()))
    if out:
        write_result(out, result)
    for method in methods:
        opinions, left_out = result.opinions, result.left_out
        try:
            for cells in _alike(paired, rounds or ROUNDS[method]):
                opinions = (*opinions, *ASK[method](cells, TIMEOUT_S * len(cells)))
        except FlashladderError as error:
            left_out = (*left_out, f"{method}: {error}")
        result = derive(result.model_copy(update={"opinions": opinions, "left_out": left_out}))
        if out:
            write_result(out, result)
    print(table(result))
    if found := problems(result):
        raise CheckFailed(f"{len(found)} problems, the first: {found[0]}", where=out)
    return result


def _alike(paired: BenchResult, rounds: int) -> list[list[Rounds]]:
    """Per dtype and shape FA2 and what was timed beside it; cells of the same subjects, dtype and heads together."""
    subjects: dict[tuple[str, Shape], tuple[str, ...]] = {}
    for one in paired.summaries:  # a kernel that was wrong has none
        subjects[one.dtype, one.shape] = (*subjects.get((one.dtype, one.shape), (FA2,)), one.kernel)
    found: dict[tuple[object, ...], list[Rounds]] = {}
    for (dtype, shape), keys in subjects.items():
        found.setdefault((keys, dtype, shape.n_heads), []).append(Rounds(keys, dtype, shape, rounds))
    return list(found.values())


def launch_cells(cells: str, nvbench: str | None = None) -> None:
    """Launches cells (JSON) on the current GPU: for ncu, or for NVBench, which then writes `nvbench`.

    NVBench has one benchmark per turn, named ``CELL ROUND INDEX``; cold L2, isolated, at its own throttle rule.
    """
    import torch

    loaded = list(prepared(CELLS.validate_json(cells)))
    torch.cuda.synchronize()
    if nvbench is None:
        from torch.cuda import profiler

        for rounds, launches in loaded:
            launch_rounds(rounds, launches, torch.cuda.synchronize, profiler)
        return
    bench = importlib.import_module("cuda.bench")  # optional package

    def benchmark(launch: Callable[[], object]) -> Callable[[Any], None]:
        def isolated(how: Any) -> None:
            external: Any = torch.cuda.ExternalStream
            with torch.cuda.stream(external(how.get_stream().addressof())):
                launch()

        def run(state: Any) -> None:
            state.exec(isolated, batched=False)

        return run

    for cell, (rounds, launches) in enumerate(loaded):
        for number, key in rounds.turns():
            name = f"{cell} {number} {rounds.subjects.index(key)}"
            made = bench.register(benchmark(launches[key])).set_name(name)
            made.set_cold_warmup_runs(WARM_UPS)
    count = str(SAMPLES)
    stop = ["--stopping-criterion", "sample-count", "--target-samples", count, "--min-samples", count]
    bench.run_all_benchmarks(["flashladder", "--devices", "0", *stop, "--jsonbin", nvbench])


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables of result files."""
    parser = Parser(
        prog="python -m flashladder.bench.cross_checks",
        description="Prints what files say of other timers and of libraries.",
        epilog="example: python -m flashladder.bench.cross_checks results/h200/opinions.json.gz",
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--launch", nargs="+", help=argparse.SUPPRESS)  # what a profiler watches: `command`
    options = parser.parse_args(argv)
    if options.launch:
        launch_cells(*options.launch)
    elif not options.files:
        parser.error("expected result files")
    for path in options.files:
        print_tables(path)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
