"""Compares our figures with the published ones, and one of our runs with another.

On the GPU model of the published figures this compares cell by cell, on another model by rank order. Published figures
are data with tolerances (`flashladder.results.published`). If a cell is outside its tolerance, the line names what
differs between the two runs. A "peer" is a published kernel that we timed again on our H200. `invoke gate` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from flashladder.files import relative
from flashladder.ladder.gpus import load_gpus
from flashladder.names import DTYPES, HEADLINE_LENGTH, PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.report.data import Ladder, Machine, bench_files, swept
from flashladder.results.files import load_as
from flashladder.results.published import N_ITERATIONS, PUBLISHED, Statistic, load_description, read_csv
from flashladder.results.schema import BenchResult, Mean, Summary
from flashladder.results.statistics import spearman

PEER_GPU, PEER_FILE = "h200", "peer_h200_progression.csv"  # percent of FA2 of the peers
PEER_POINTS = 3.0  # a kernel may be so many percentage points below its peer: other toolchain, other card
BEST_FROM = 9  # the fastest kernel from this iteration to the last published one must reach `BEST_AT_LEAST`
BEST_AT_LEAST = {"S=4096": 107.0, "harmonic mean": 106.0}  # percent of FA2, on `PEER_GPU`
COMPILERS = ("nvidia-cuda-nvcc", "nvidia-nvvm")
SHARES = {"clock_mhz": 0.03, "fa2_tflops": 0.05}  # a relative change up to this comes from the card's temperature
DIFFERENCES = {
    "config": "configuration", "compiler": "toolchain", "code": "machine code", "clock_mhz": "clock (MHz)",
    "fa2_tflops": "FA2 speed (clock or FA2 itself, TFLOP/s)", "driver": "driver", "torch": "torch", "card": "card",
}  # fmt: skip
"""What can differ between two runs of a cell: key to words, the most likely cause of a differing percentage first."""
LEAST_RANKED = 4  # cells that a comparison of ranks needs
NONE = "nothing that was recorded differs; look at the host, other processes on the GPU and the samples"

Known = Mapping[str, str | float | None]  # facts of a cell's run by keys of `DIFFERENCES`; None: not recorded
Comparison = tuple[Sequence[str], int]  # one line per problem; the number of compared figures


def probable_cause(expected: Known, found: Known) -> str:
    """What differs between two runs, the most likely cause of a differing percentage first."""
    pairs = {name: (expected.get(name), found.get(name)) for name in DIFFERENCES}
    differing = {name: pair for name, pair in pairs.items() if None not in pair and _differ(name, *pair)}
    if differing.keys() & {"config", "compiler"}:
        differing.pop("code", None)
    if None not in pairs["clock_mhz"]:
        differing.pop("fa2_tflops", None)
    shown = {name: [f"{x:.0f}" if isinstance(x, float) else x for x in pair] for name, pair in differing.items()}
    return "; ".join(f"another {DIFFERENCES[name]}: {b} instead of {a}" for name, (a, b) in shown.items()) or NONE


def _differ(name: str, a: str | float | None, b: str | float | None) -> bool:
    return abs(b / a - 1) > SHARES[name] if isinstance(a, float) and isinstance(b, float) else a != b


def _known(result: BenchResult, one: Summary | Mean) -> Known:
    kernel = result.kernels.get(one.kernel)
    versions = [f"{name} {kernel.toolchain[name]}" for name in COMPILERS if kernel and name in kernel.toolchain]
    return {
        "config": kernel.config if kernel else None, "code": kernel.text_sha256 if kernel else None,
        "compiler": ", ".join(versions) or None, "clock_mhz": getattr(one, "sm_clock_mhz", None),
        "fa2_tflops": getattr(one, "reference_tflops", None), "driver": result.gpu.driver,
        "torch": result.reference.torch, "card": result.gpu.uuid,
    }  # fmt: skip


def outside_tolerance(where: str, expected: tuple[float, float], found: float, known: tuple[Known, Known]) -> list[str]:
    """One line if a cell's percent of FA2 is outside its tolerance, else none.

    `expected`: percent, and tolerance in percentage points. `known`: facts of the expected and of the found run.
    """
    percent, points = expected
    if abs(found - percent) <= points:
        return []
    percents = f"expected {percent:.1f} % of FA2 within {points:g} points, found {found:.1f} %"
    return [f"{where}: {percents}; probably {probable_cause(*known)}"]


def compare_same_gpu(expected: BenchResult, found: BenchResult, names: tuple[str, str]) -> Comparison:
    """Compares every cell and harmonic mean that two runs on one GPU model share; `names`: the two files."""
    tolerance, wanted = load_description().tolerance, _cells(expected)
    shared = {key: one for key, one in _cells(found).items() if key in wanted}
    problems: list[str] = []
    for key, one in shared.items():
        statistic = f"seq{one.shape.seq_len}" if isinstance(one, Summary) else "hmean"
        where = f"{names[1]}: {one.kernel} {one.dtype} {statistic}, compared with {names[0]}"
        expectation = (wanted[key].pct, tolerance.points(statistic))
        problems += outside_tolerance(where, expectation, one.pct, (_known(expected, wanted[key]), _known(found, one)))
    return problems, len(shared)


def _cells(result: BenchResult) -> dict[tuple[object, ...], Summary | Mean]:
    """Cells of the ladder's kernels that have enough pairs, and their means; the keys are the same in all files."""
    own = {name for name, kernel in result.kernels.items() if not kernel.variant}
    cells: dict[tuple[object, ...], Summary | Mean] = {
        (one.kernel, one.dtype, one.shape): one
        for one in result.summaries
        if one.kernel in own and one.n_pairs >= result.settings.min_pairs
    }
    return cells | {(one.kernel, one.dtype, one.seq_lens): one for one in result.means if one.kernel in own}


def compare_ranks(expected: BenchResult, found: BenchResult) -> tuple[list[str], str]:
    """Compares the ranks of cells on two GPU models: one line if they correlate too little, and the correlation."""
    theirs = {(one.kernel, one.dtype, one.shape): one.pct for one in expected.summaries}
    pairs = [(one.pct, theirs[key]) for one in found.summaries if (key := (one.kernel, one.dtype, one.shape)) in theirs]
    if len(pairs) < LEAST_RANKED:
        return [f"rerun: expected at least {LEAST_RANKED} cells to rank"], f"{len(pairs)} cells give no rank order"
    high_enough, correlation = _correlation(pairs)
    line = f"rerun: rank order of {len(pairs)} cells: {correlation}; probably another card"
    return [] if high_enough else [line], correlation


def _correlation(pairs: list[tuple[float, float]], beside: str = "") -> tuple[bool, str]:
    """Whether two rank orders agree well enough, and their rank correlation."""
    bound = load_description().tolerance.other_gpu_spearman_at_least
    value = spearman([mine for mine, _ in pairs], [theirs for _, theirs in pairs])
    return value >= bound, f"Spearman {value:.3f}{beside}, at least {bound:g}"


def compare_with_published(ladder: Ladder, folder: Path | None = None) -> tuple[list[str], str]:
    """Compares each machine's fp16 progression: by cell on a GPU model with published figures, by rank on another.

    If a machine has only a sweep (``<machine>/<machine>.json.gz`` in `folder`), the figures come from the sweep.
    """
    problems, summaries = list[str](), list[str]()
    for machine in (*ladder.machines, *(swept(ladder, folder) if folder else ())):
        compare = _by_cell if machine.key in ladder.published.gpus else _by_rank
        lines, summary = compare(ladder, machine)
        problems += [f"{machine.name}{line}" for line in lines]
        summaries.append(f"{machine.name}: {summary}")
    return problems, "; ".join(summaries) or "nothing was measured"


def _by_rank(ladder: Ladder, machine: Machine) -> tuple[list[str], str]:
    """Ranks our kernels in the A100's configurations if this machine timed all of them, else in its own."""
    theirs, own = (_headline_percents(ladder, machine, configs_of) for configs_of in (PUBLISHED_GPU, None))
    measured = theirs if len(theirs) == N_ITERATIONS else own
    if len(measured) != N_ITERATIONS:
        text = f"only {len(measured)} iterations have a figure at S={HEADLINE_LENGTH}"
        return [f": {text}"], text
    published = ladder.published.column(PUBLISHED_GPU, "seq4096")
    pairs = list(zip((measured[step] for step in sorted(measured)), published, strict=True))
    high_enough, correlation = _correlation(pairs, f" with the published {PUBLISHED_GPU}")
    text = f"rank order of {len(measured)} iterations: {correlation}"
    cause = f"probably another card: a {machine.gpu.name} and no {PUBLISHED_GPU}"
    return [] if high_enough else [f": {text}; {cause}"], text


def _headline_percents(ladder: Ladder, machine: Machine, configs_of: str | None) -> dict[int, float]:
    timings = {row.iteration.number: row.headline for row in ladder.rows(machine, "fp16", configs_of)}
    return {step: summary.pct for step, summary in timings.items() if summary and step <= N_ITERATIONS}


def _by_cell(ladder: Ladder, machine: Machine) -> tuple[list[str], str]:
    """Compares cell by cell, on a GPU model that has published figures."""
    key = machine.key or PUBLISHED_GPU
    boost, published = load_gpus()[key].peaks.get("boost_clock"), ladder.published
    problems: list[str] = []
    n = 0
    for row in ladder.rows(machine, "fp16", key):
        summary, config = row.headline, row.iteration.configs[key].with_dtype(published.description.shape.dtype)
        expected: Known = {
            "config": config.short_form(), "clock_mhz": float(boost.value) if boost else None,
            "fa2_tflops": published.fa2_tflops.get((key, "seq4096")),
        }  # fmt: skip
        found: Known = {
            "config": row.measured.kernel.config if row.measured else None, "card": machine.gpu.uuid,
            "clock_mhz": summary.sm_clock_mhz if summary else None,
            "fa2_tflops": summary.reference_tflops if summary else None,
        }  # fmt: skip
        figures: dict[Statistic, Summary | Mean | None] = {"seq4096": summary}
        figures["hmean"] = row.measured.mean if row.measured else None
        for statistic, one in figures.items():
            if cell := published.find(row.iteration.number, key, statistic):
                n += 1
                where, expectation = f", iteration {row.iteration.number}, {statistic}", (cell.value, cell.tolerance)
                missing = f"{where}: expected {cell.value:g} % within {cell.tolerance:g} points, found no measurement"
                problems += outside_tolerance(where, expectation, one.pct, (expected, found)) if one else [missing]
    return problems, f"{n} cells"


def compare_with_committed(own: Path, committed: Path = RESULTS) -> Comparison:
    """Compares the timings in a new results folder with the committed timings of the same GPU model."""
    problems, n = list[str](), 0
    for mine, theirs in product(bench_files(own), bench_files(committed)):
        if mine.parent.name == theirs.parent.name:
            names = (relative(theirs), relative(mine))
            lines, n_shared = compare_same_gpu(load_as(theirs, BenchResult), load_as(mine, BenchResult), names)
            problems += lines
            n += n_shared
    return problems, n


def compare_with_peers(ladder: Ladder) -> Comparison:
    """On `PEER_GPU`: no kernel is more than `PEER_POINTS` below its peer, and the best reach `BEST_AT_LEAST`."""
    machines = [machine for machine in ladder.machines if machine.key == PEER_GPU]
    problems = [line for one in machines for line in (*_slower_than_peers(ladder, one), *_best_too_slow(ladder, one))]
    return problems, len(machines) * (len(peer_percents()) + len(DTYPES) * len(BEST_AT_LEAST))


def _slower_than_peers(ladder: Ladder, machine: Machine) -> Iterator[str]:
    rows = {row.iteration.number: row for row in ladder.rows(machine, "fp16", PUBLISHED_GPU)}
    for (step, seq_len), theirs in peer_percents().items():
        measured = rows[step].measured if step in rows else None
        ours = measured.summaries.get(seq_len) if measured else None
        if ours is None or not ours.pct >= theirs - PEER_POINTS:
            found = f"{ours.pct:.1f} %" if ours else "no measurement"
            why = f"published kernel on this GPU: {theirs:.1f} %, less {PEER_POINTS:g} points"
            expected = f"expected at least {theirs - PEER_POINTS:.1f} % of FA2 ({why})"
            yield f"{machine.name}, iteration {step}, S={seq_len}: {expected}, found {found}"


def peer_percents() -> Mapping[tuple[int, int], float]:
    """Percent of FA2 of each peer, by iteration and length."""
    rows = read_csv(PUBLISHED, PEER_FILE, load_description())
    return {(int(row["iteration"]), int(row["seq_len"])): float(row["pct_of_fa2_paired_median"]) for row in rows}


def _best_too_slow(ladder: Ladder, machine: Machine) -> Iterator[str]:
    steps = range(BEST_FROM, N_ITERATIONS + 1)
    for dtype in DTYPES:
        rows = [row for row in ladder.rows(machine, dtype) if row.iteration.number in steps]
        percents = {
            "S=4096": [summary.pct for row in rows if (summary := row.headline)],
            "harmonic mean": [row.measured.mean.pct for row in rows if row.measured and row.measured.mean],
        }
        for statistic, least in BEST_AT_LEAST.items():
            best = max(percents[statistic], default=0.0)
            if not best >= least:
                where = f"{machine.name}, {dtype}, {statistic}: the best of iterations {steps[0]} to {steps[-1]}"
                yield f"{where}: expected at least {least:g} % of FA2, found {best:.1f} %"
