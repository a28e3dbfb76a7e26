"""Compares the paired timer with other timers, and each kernel with the fastest library; all from raw samples.

Each tool times the same launches on the paired timer's first input set. In every round each subject has its turn. A
missing tool is one line, not a failure. The tools:
``nvbench`` (PyPI ``cuda-bench``): single launches between CUDA events, with a cold L2. ``ncu``: the GPU's own duration;
caches are flushed, clocks are not locked. Both run this module in a process of its own. ``torch``:
`torch.utils.benchmark`, the host's clock around back-to-back launches. Python queues a launch in 20 to 120 us, which
hides shorter kernels; `HOST` records it. ``warm``: events around single launches without a flush. ``turns``: a flush
before each launch; all subjects alternate, in a new random order each round. In both the GPU sleeps before each launch,
so that the host is ahead.

A tool's ratio to FA2, or to the cell's fastest library, is the median over its samples, each against the other's median
in the same round, with a 95 % bootstrap interval over rounds. Two timers agree if their intervals overlap once the
paired one is widened by the A/A floor. The paired timer compares kernel and library by their ratios to FA2, because
each ran beside other launches of FA2: pair by pair if they share blocks, else by the medians of these ratios.

Run:
    python -m flashladder.bench 1 7 16 --seq-lens 4096 --method nvbench ncu --out opinions.json.gz    # needs a GPU
    python -m flashladder.bench.cross_checks opinions.json.gz   # prints the tables; exit 1 if they do not follow
    python -m flashladder.bench.cross_checks results/h200/hopper.json.gz    # of a bench or a sweep: beside libraries
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
import importlib
from importlib import metadata
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
from flashladder.arguments import module_parser
from flashladder.bench.references import BACKENDS, FA2, Subject, kernel_subject, reference_subject
from flashladder.bench.timing import FIRST_SEED, Event, cuda_event, flush_bytes
from flashladder.build.wheel import load_installed
from flashladder.cases.inputs import Case, make_tensors
from flashladder.errors import CheckFailed, FlashladderError, run_main
from flashladder.files import load_json
from flashladder.gpu.ncu import profile, run_ncu
from flashladder.ladder.config import KernelConfig
from flashladder.lazy_torch import torch
from flashladder.located import first_problem
from flashladder.names import CYCLES, DURATION, INSTRUCTIONS, KERNEL, LIBRARIES, TENSOR
from flashladder.problem import Problem
from flashladder.results import derive as summaries
from flashladder.results.derive import by_cell, kept_pairs, unequal, waited_for_host
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
from flashladder.results.statistics import SEED, LogSummary, interval, log_ratios, percent, resampled_medians, summarize

PAIRED = "paired"
HOST = "host_ns"  # counter of torch's timer: the host's time to queue one launch
HELD_UP = 0.9  # if queuing takes this share of a launch's time or more, the host limits the time, not the GPU
Cell = tuple[str, str, Problem]
Place = tuple[int, int, int]  # group, block, index of the pair in its series
Pairs = Mapping[Place, tuple[float, float]]  # a subject's microseconds, log ratio of FA2's time to them


@dataclass(frozen=True)
class Advantage:
    """A kernel's percentage of the speed of `over`, the fastest library of `among`, by one timer in one cell.

    `n`: pairs, or rounds. `host`: those of the kernel and `among` that the host held up; they may be faster than shown.
    """

    timer: str
    kernel: str
    dtype: str
    shape: Problem
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
    """The advantage of every kernel in every cell with a library; a second opinion has one by each timer."""
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
    """The pairs in blocks that count; subjects of one group have the same places."""
    return {
        (id(group), pair.block, index): (pair.kernel_us, float(log_ratios([pair.reference_us], [pair.kernel_us])[0]))
        for group, series in parts
        for index, pair in enumerate(kept_pairs(group, series))
    }


def _against(own: Pairs, theirs: Pairs) -> LogSummary:
    """Log ratio of a library's time to a kernel's: pair by pair if they share blocks, else from both medians."""
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
    """Percentage of the speed of `over`, and its 95 % interval; each sample against its median in the same round.

    Raises:
        FlashladderError: `over` was not timed in one of the rounds.
    """
    medians = by_round(opinion, over)
    if lacking := set(own.rounds) - medians.keys():
        raise FlashladderError(f"{opinion.method} has no time of {over}", where=own.subject, found=min(lacking))
    found = summarize(log_ratios([medians[number] for number in own.rounds], own.us), own.rounds)
    return percent(found.median), percent(found.low), percent(found.high)


def by_round(opinion: Opinion, subject: str) -> dict[int, float]:
    """A subject's median in each round, in microseconds; empty if it was not timed."""
    if (timings := opinion.of(subject)) is None:
        return {}
    numbers, times = np.asarray(timings.rounds), np.asarray(timings.us)
    return {number: float(np.median(times[numbers == number])) for number in dict.fromkeys(timings.rounds)}


def beside_libraries(found: Sequence[Advantage]) -> list[str]:
    """A table per dtype and length; empty if no library was timed."""
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
        title = f"{_titled(dtype, shape)}: speed over the best of {among}"
        lines += ["", title, *columns.table(rows, None, right={3, 4, 5, 7})]
    return lines


def _titled(dtype: str, shape: Problem) -> str:
    sizes = f"S={shape.seq_len}, B={shape.batch}, H={shape.n_heads}"
    return ", ".join(filter(None, (dtype, sizes, shape.kind)))


def held_up(timings: Timings) -> bool:
    """Whether the host, not the GPU, limited the time of most samples."""
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
        floor = 1.0 + paired.floors_pct[opinion.dtype] / 100.0  # the ratio by which two runs of FA2 may differ
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
    """What is wrong with a result: the paired timer's problems, impossible times, missing cells, wrong agreements."""
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
        for one in opinion.timings:
            found += summaries.too_fast(f"{where}: {one.subject}", min(one.us), opinion.shape, result.gpu.name)
    if found:
        return found
    written, derived = ([one.model_dump() for one in each.agreements] for each in (result, derive(result)))
    what = "agreements do not follow from the samples"
    if len(written) != len(derived):
        return [f"{what}: {len(written)} written, {len(derived)} derived"]
    return [f"{what}: agreement{field}: written {a}, derived {b}" for field, a, b in unequal(written, derived)]


def table(result: SecondOpinionResult) -> str:
    """Per dtype, shape and kernel one row of the paired timer and one of each tool."""
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
                verdict = f"{'agree' if one.agrees else 'differ'} ({one.off_pct:+.2f} %)"
                verdict += "; the host's time" if held_up(timings) else ""
                rows.append(_row(one.method, opinion.mode, one, clock, verdict))
        floor = f"A/A floor {result.paired.floors_pct[dtype]:.2f} points"
        lines.append(f"{_titled(dtype, shape)}; {floor}")
        lines += columns.table(rows, None, right={2, 3, 4, 5, 6})
    lines += [*beside_libraries(advantages(result)), ""]
    intervals = "95 %: intervals over pairs (paired) or rounds (others); agree: they overlap within the A/A floor"
    return "\n".join([*lines, intervals, *(f"left out: {line}" for line in result.left_out)])


def _row(timer: str, mode: str, one: Summary | Agreement, clock: float | None, verdict: str) -> tuple[str, ...]:
    """`clock`: the SM clock in MHz, None if the timer does not know it."""
    times = (f"{one.kernel_us:.1f}", f"{one.reference_us:.1f}", f"{clock:.0f}" if clock else "")
    return (timer, mode, *times, f"{one.pct:.2f}", f"{one.pct_low:.2f}-{one.pct_high:.2f}", verdict, one.kernel)


def _require_sound(result: SecondOpinionResult, path: Path | None) -> None:
    """Raises `CheckFailed` if times are impossible, or agreements do not follow from them."""
    if found := problems(result):
        raise CheckFailed(f"{len(found)} problems, the first: {found[0]}", where=path)


TIMEOUT_S = 240.0  # of one tool, per cell
ROUNDS: Mapping[Method, int] = {"nvbench": 8, "ncu": 24, "torch": 12, "warm": 12, "turns": 36}
"""Rounds per cell. A turn gives one sample under ncu, torch and turns, several under the others."""
MODES: Mapping[Method, str] = {"ncu": "ncu-base", "torch": "wall-free"}  # the others are event-free
WARM_UPS = 3  # launches of each subject before its first sample, for compilers, plans and allocations
SAMPLES = 12  # of one turn under NVBench
SAMPLE_TIMES = "nv/json/bin:nv/cold/sample_times"
METRICS = (DURATION, CYCLES, INSTRUCTIONS, TENSOR)
RUN_S = 0.06  # of one turn under torch's timer, about
FIRST = 10  # launches from which the number of launches of a run is computed
QUEUED = (3, 100)  # least and most launches while queuing is timed, which are a tenth of a run's
WARM_SAMPLES = 6  # of one turn
RUN_UP_S = 1.0  # of rounds before the first sample, until the clock has settled
# The GPU sleeps 0.5 or 2 ms before a launch. Queuing takes up to 1 ms after another subject.
SLEEP_CYCLES: Mapping[Method, int] = {"warm": 1_000_000, "turns": 4_000_000}
TRIES = 5  # of one launch until the host is ahead; the GPU sleeps twice as long before each further one

Launches = Mapping[str, Callable[[], object]]  # subject to what queues it once
Single = Callable[[str, Callable[[], object]], float]  # microseconds of one launch of a subject
Sample = tuple[float, Mapping[str, int]]  # microseconds of one launch, counters


@dataclass(frozen=True)
class Rounds:
    """What is launched: `subjects` (references by name, kernels by key), `rounds` times."""

    subjects: tuple[str, ...]
    dtype: str
    shape: Problem
    rounds: int

    def turns(self, *, shuffled: bool = False) -> Iterator[tuple[int, str]]:
        """Round and subject of each turn; `shuffled`: in a random order each round, the same in every run."""
        order = Random(self.shape.seq_len)  # noqa: S311 - no secret
        for number in range(self.rounds):
            for subject in order.sample(self.subjects, len(self.subjects)) if shuffled else self.subjects:
                yield number, subject

    def timings(self, take: Callable[[int, str], Iterable[Sample]], *, shuffled: bool = False) -> tuple[Timings, ...]:
        """The samples that `take` gives for round and subject, one or more in each turn."""
        samples: dict[str, list[tuple[int, float, Mapping[str, int]]]] = {key: [] for key in self.subjects}
        for number, key in self.turns(shuffled=shuffled):
            samples[key] += [(number, us, counters) for us, counters in take(number, key)]
        timings = []
        for key, taken in samples.items():
            numbers, us, each = zip(*taken, strict=True)
            counters = {name: tuple(one[name] for one in each) for name in each[0]}
            timings.append(Timings(subject=key, rounds=numbers, us=us, counters=counters))
        return tuple(timings)


CELLS = TypeAdapter(list[Rounds])


def command(cells: Sequence[Rounds], *nvbench: str) -> list[str]:
    """The command line that launches cells in a new process; `nvbench`: the JSON file that NVBench writes meanwhile."""
    spec = CELLS.dump_json(list(cells)).decode()
    return [sys.executable, "-m", "flashladder.bench.cross_checks", "--launch", spec, *nvbench]


def load(key: str, dtype: str, shape: Problem) -> Subject:
    """The reference, with the mask of a problem, or the installed kernel with this name."""
    if key in BACKENDS:
        return reference_subject(key, dtype, shape)
    number, _, form = key.partition(" ")
    installed, config = load_installed(int(number)), KernelConfig.parse(form)
    installed.require(config)
    return kernel_subject(int(number), config, installed.run)


def prepared(cells: Sequence[Rounds]) -> Iterator[tuple[Rounds, Launches]]:
    """Cells of the same subjects, dtype and mask, each with what launches its subjects."""
    subjects = [load(key, cells[0].dtype, cells[0].shape) for key in cells[0].subjects]
    for rounds in cells:
        case = Case("second opinion", rounds.shape, seed=FIRST_SEED + rounds.shape.seq_len)
        tensors = make_tensors(case, rounds.dtype, "cuda")
        yield rounds, {subject.key: partial(subject.launch, tensors) for subject in subjects}


def warm_up(launches: Launches) -> None:
    """Launches every subject `WARM_UPS` times."""
    for launch in launches.values():
        for _ in range(WARM_UPS):
            launch()


def ask_nvbench(cells: Sequence[Rounds], timeout_s: float) -> list[Opinion]:
    """NVBench's times of all cells, from one process; `FlashladderError`: not installed, failed, unreadable file."""
    try:
        version = metadata.version("cuda-bench")
        metadata.version("cuda-bindings")
    except metadata.PackageNotFoundError as error:
        what = f"the package {error.name} is not installed"
        raise FlashladderError(what, hint="pip install 'cuda-bench[cu13]'") from error
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "nvbench.json"
        profile(command(cells, str(out)), timeout_s, "NVBench")
        found = read_nvbench(out, cells)
    return [_opinion("nvbench", f"cuda-bench {version}", *one) for one in zip(cells, found, strict=True)]


def read_nvbench(path: Path, cells: Sequence[Rounds]) -> list[tuple[Timings, ...]]:
    """The timings of each cell from NVBench's JSON and the binary files beside it.

    Raises:
        FlashladderError: a turn is missing or was skipped, or a binary file has another size than the JSON says.
    """
    try:
        benches = load_json(path.read_bytes())["benchmarks"]
        states = {bench["name"]: bench["states"][0] for bench in benches}

        def take(cell: int, number: int, key: str) -> list[Sample]:
            return _nvbench_samples(path.parent, states[f"{cell} {number} {cells[cell].subjects.index(key)}"])

        return [rounds.timings(partial(take, cell)) for cell, rounds in enumerate(cells)]
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise FlashladderError("cannot read what NVBench wrote", found=f"{type(error).__name__}: {error}") from error


def _nvbench_samples(folder: Path, state: Mapping[str, Any]) -> list[Sample]:
    """The samples of one turn: little-endian float32 seconds in a file below `folder`."""
    if state.get("is_skipped"):
        raise ValueError(f"skipped: {state.get('skip_reason')}")
    data = {one["tag"]: one["data"] for one in state["summaries"]}.get(SAMPLE_TIMES, [])
    values = {one["name"]: one["value"] for one in data}
    seconds = np.fromfile(folder / values["filename"], dtype="<f4")
    if seconds.size != int(values["size"]) or not seconds.size:
        raise ValueError(f"expected {values['size']} samples, found {seconds.size}")
    return [(float(one) * 1e6, {}) for one in seconds]


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
    """Assigns kernels, in launch order, to the turns that launched them; a reference's several kernels are summed.

    Raises:
        FlashladderError: an unknown kernel, or another number of launches than turns.
    """
    turns = [key for rounds in cells for _, key in rounds.turns()]
    taken: list[dict[str, int]] = []
    for name, found in launches:
        short = re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0].strip()
        references = (key for key, one in BACKENDS.items() if re.search(one.marks, name))
        whose = KERNEL if short == KERNEL else next(references, None)
        last = turns[len(taken) - 1] if taken else None
        if last in BACKENDS and whose in {None, last}:
            taken[-1] = {metric: taken[-1].get(metric, 0) + value for metric, value in found.items()}
            continue
        expected = turns[len(taken)] if len(taken) < len(turns) else None
        if expected is None or whose != (expected if expected in BACKENDS else KERNEL):
            what = "ncu saw another kernel than was launched"
            raise FlashladderError(what, expected=expected or "no more", found=short)
        taken.append(dict(found))
    if len(taken) != len(turns):
        raise FlashladderError("ncu saw another number of launches", expected=len(turns), found=len(taken))
    samples = iter([(one[DURATION] / 1e3, {metric: one[metric] for metric in METRICS[1:]}) for one in taken])
    try:
        return [rounds.timings(lambda *_: [next(samples)]) for rounds in cells]
    except ValueError as error:
        raise FlashladderError("ncu's times are none", found=first_problem(error)) from error


def _torch_s(launch: Callable[[], object], count: int) -> float:
    """Seconds of one of `count` launches by torch's timer."""
    from torch.utils import benchmark

    return float(benchmark.Timer(stmt="launch()", globals={"launch": launch}).timeit(count).median)


def ask_torch(cells: Sequence[Rounds], _timeout_s: float) -> list[Opinion]:
    """Times of ``torch.utils.benchmark.Timer``: one sample a turn, the mean of as many launches as take about `RUN_S`.

    The counter `HOST` is the host's time to queue one launch.
    """
    opinions, wait = [], torch.cuda.synchronize
    for rounds, launches in prepared(cells):
        counts = {key: max(1, round(RUN_S / _torch_s(launch, FIRST))) for key, launch in launches.items()}

        def take(_: int, key: str, launches: Launches = launches, counts: Mapping[str, int] = counts) -> list[Sample]:
            queued = min(max(QUEUED[0], counts[key] // 10), QUEUED[1])
            wait()
            start = time.perf_counter()
            for _ in range(queued):
                launches[key]()
            host_ns = round((time.perf_counter() - start) / queued * 1e9)
            wait()
            return [(_torch_s(launches[key], counts[key]) * 1e6, {HOST: host_ns})]

        version = f"torch.utils.benchmark of torch {torch.__version__}"
        opinions.append(_opinion("torch", version, rounds, rounds.timings(take)))
    return opinions


def ask_events(method: Method, cells: Sequence[Rounds], _timeout_s: float) -> list[Opinion]:
    """Events around single launches: without a flush, or with the L2 flushed and all subjects alternating."""
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
    """Microseconds of one launch that the host had queued before the GPU was ready for it.

    `prepare` queues a sleep of the GPU, as many times as long as its argument says, and perhaps a flush.

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
            return float(start.elapsed_time(end) * 1e3)
    raise FlashladderError(f"the host was too slow {TRIES} times", where=key, hint="run it on an idle machine")


def warm_rounds(single: Single, rounds: Rounds, launches: Launches) -> tuple[Timings, ...]:
    """`WARM_SAMPLES` samples a turn; a turn's first launch is not a sample."""
    warm_up(launches)

    def take(_: int, key: str) -> list[Sample]:
        launches[key]()
        return [(single(key, launches[key]), {}) for _ in range(WARM_SAMPLES)]

    return rounds.timings(take)


def turn_rounds(single: Single, rounds: Rounds, launches: Launches) -> tuple[Timings, ...]:
    """One sample a turn in shuffled rounds, after `RUN_UP_S` seconds of launches in turn."""
    warm_up(launches)
    begun = time.perf_counter()
    while time.perf_counter() - begun < RUN_UP_S:
        for key, launch in launches.items():
            single(key, launch)
    return rounds.timings(lambda _, key: [(single(key, launches[key]), {})], shuffled=True)


def _opinion(method: Method, version: str, rounds: Rounds, timings: tuple[Timings, ...]) -> Opinion:
    facts = {"method": method, "mode": MODES.get(method, "event-free"), "version": version}
    return Opinion.model_validate({**facts, "dtype": rounds.dtype, "shape": rounds.shape, "timings": timings})


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
    """Times every cell of a fresh paired result with other tools, and prints the table; `rounds`: None for `ROUNDS`.

    A tool that fails is left out with its reason. `out` is written before the first tool and after each.

    Raises:
        CheckFailed: a tool's times are impossible; the file is still written.
    """
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
    _require_sound(result, out)
    return result


def _alike(paired: BenchResult, rounds: int) -> list[list[Rounds]]:
    """The cells of a paired result, grouped by subjects, dtype, heads and mask."""
    subjects: dict[tuple[str, Problem], tuple[str, ...]] = {}
    for one in paired.summaries:  # a kernel that was wrong has none
        subjects[one.dtype, one.shape] = (*subjects.get((one.dtype, one.shape), (FA2,)), one.kernel)
    cells = (Rounds(keys, dtype, shape, rounds) for (dtype, shape), keys in subjects.items())

    def alike(one: Rounds) -> tuple[object, ...]:
        return one.subjects, one.dtype, one.shape.n_heads, one.shape.n_kv_heads, one.shape.mask

    return list(columns.grouped(cells, alike).values())


def launch_cells(cells: str, nvbench: str | None = None) -> None:
    """Launches cells (JSON) on the current GPU: for ncu, or for NVBench, which then writes the file `nvbench`.

    ncu profiles the rounds alone. NVBench has one benchmark per turn, named ``CELL ROUND INDEX``.
    """
    loaded = list(prepared(CELLS.validate_json(cells)))
    torch.cuda.synchronize()
    if nvbench is None:
        profiler: Any = torch.cuda.profiler
        for rounds, launches in loaded:
            warm_up(launches)
            torch.cuda.synchronize()
            profiler.start()
            for _, key in rounds.turns():
                launches[key]()
            torch.cuda.synchronize()
            profiler.stop()
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


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the tables of result files."""
    description = "Prints what files say of other timers and of libraries."
    parser = module_parser("bench.cross_checks", description, "results/h200/opinions.json.gz")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--launch", nargs="+", help=argparse.SUPPRESS)  # what a profiler watches: `command`
    options = parser.parse_args(argv)
    if options.launch:
        launch_cells(*options.launch)
    elif not options.files:
        parser.error("expected result files")
    for path in options.files:
        result = load_result(path)
        if isinstance(result, SecondOpinionResult):
            _require_sound(result, path)
            print(table(result))
        elif not isinstance(result, BenchResult):
            raise FlashladderError("no timings", where=path, expected="bench or second-opinion", found=result.kind)
        elif beside := advantages(result):
            print("\n".join(beside_libraries(beside)).strip())
        else:
            raise FlashladderError("no kernel beside a library", where=path, expected=" or ".join(LIBRARIES))


if __name__ == "__main__":
    run_main(main)
