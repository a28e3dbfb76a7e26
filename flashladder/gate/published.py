"""Measured against published, and run against run: cell by cell on the same GPU model, by rank order on another.

Published figures are data with tolerances (`flashladder.results.published`). Where a cell is outside its tolerance, the
line names what differs between the two runs. Nothing to run here; `invoke gate` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from flashladder.files import relative
from flashladder.ladder.gpus import load_gpus
from flashladder.names import DTYPES, HEADLINE_LENGTH, PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.report.data import Ladder, Machine, bench_files, swept
from flashladder.results.derive import Found
from flashladder.results.files import load_as
from flashladder.results.published import (
    N_ITERATIONS,
    PUBLISHED,
    Statistic,
    load_description,
    read_csv,
)
from flashladder.results.schema import BenchResult, Mean, Summary
from flashladder.results.statistics import spearman

PEER_GPU, PEER_FILE = "h200", "peer_h200_progression.csv"  # where published kernels were timed beside FA2
PEER_POINTS = 3.0  # points below its peer that a kernel may lie: other toolchains, another card
BEST_FROM = 9  # the iterations among which the ladder's best kernel is looked for
BEST_AT_LEAST = {"S=4096": 107.0, "harmonic mean": 106.0}  # percent of FA2, on the GPU of the peers
COMPILERS = ("nvidia-cuda-nvcc", "nvidia-nvvm")
SHARES = {"clock_mhz": 0.03, "fa2_tflops": 0.05}  # by which clock and speed move with a card's temperature
DIFFERENCES = {
    "config": "configuration", "compiler": "toolchain", "code": "machine code", "clock_mhz": "clock (MHz)",
    "fa2_tflops": "clock or FA2 (TFLOP/s)", "driver": "driver", "torch": "torch", "card": "card",
}  # fmt: skip
"""What can differ between two runs of a cell, the likeliest cause of another ratio first; in words."""
LEAST_RANKED = 4  # cells, below which a rank order says nothing
NONE = "nothing that was recorded differs; look at the host, other processes on the GPU and the samples"

Known = Mapping[str, str | float | None]  # what a cell's run is known by: keys of `DIFFERENCES`; None: not recorded


def probable_cause(expected: Known, found: Known) -> str:
    """What differs between two runs, the likeliest cause of another ratio first."""
    pairs = {name: (expected.get(name), found.get(name)) for name in DIFFERENCES}
    differing = {name: pair for name, pair in pairs.items() if None not in pair and _apart(name, *pair)}
    if differing.keys() & {"config", "compiler"}:
        differing.pop("code", None)
    if None not in pairs["clock_mhz"]:
        differing.pop("fa2_tflops", None)
    told = {name: [f"{one:.0f}" if isinstance(one, float) else one for one in pair] for name, pair in differing.items()}
    return "; ".join(f"another {DIFFERENCES[name]}: {b} instead of {a}" for name, (a, b) in told.items()) or NONE


def _apart(name: str, a: str | float | None, b: str | float | None) -> bool:
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


def failing(where: str, cell: tuple[float, float], found: float, known: tuple[Known, Known]) -> list[str]:
    """A line about a cell whose percent of FA2 is outside its tolerance.

    `cell`: the percent that is expected, and the tolerance in points. `known`: what both are known by.
    """
    expected, points = cell
    if abs(found - expected) <= points:
        return []
    told = f"{where}: expected {expected:.1f} % of FA2 within {points:g} points, found {found:.1f} %"
    return [f"{told}; probably {probable_cause(*known)}"]


def same_model(expected: BenchResult, found: BenchResult, names: tuple[str, str]) -> Found:
    """Every cell and harmonic mean that two runs on one GPU model share; `names` are those of the two files."""
    tolerance, wanted = load_description().tolerance, _cells(expected)
    shared = {key: one for key, one in _cells(found).items() if key in wanted}
    problems: list[str] = []
    for key, one in shared.items():
        statistic = f"seq{one.shape.seq_len}" if isinstance(one, Summary) else "hmean"
        where = f"{names[1]}: {one.kernel} {one.dtype} {statistic}, beside {names[0]}"
        cell = (wanted[key].pct, tolerance.points(statistic))
        problems += failing(where, cell, one.pct, (_known(expected, wanted[key]), _known(found, one)))
    return Found(problems, len(shared))


def _cells(result: BenchResult) -> dict[tuple[object, ...], Summary | Mean]:
    """Cells of the ladder's kernels with pairs enough, and their means, by a name that other files share."""
    own = {name for name, kernel in result.kernels.items() if not kernel.variant}
    cells: dict[tuple[object, ...], Summary | Mean] = {
        (one.kernel, one.dtype, one.shape): one
        for one in result.summaries
        if one.kernel in own and one.n_pairs >= result.settings.min_pairs
    }
    return cells | {(one.kernel, one.dtype, one.seq_lens): one for one in result.means if one.kernel in own}


def in_rank_order(expected: BenchResult, found: BenchResult) -> tuple[str, tuple[str, ...]]:
    """The rank correlation of cells on another GPU model, in words, and a line where it is too low."""
    theirs = {(one.kernel, one.dtype, one.shape): one.pct for one in expected.summaries}
    pairs = [(one.pct, theirs[key]) for one in found.summaries if (key := (one.kernel, one.dtype, one.shape)) in theirs]
    if len(pairs) < LEAST_RANKED:
        return f"{len(pairs)} cells give no rank order", (f"rerun: expected at least {LEAST_RANKED} cells to rank",)
    bound = load_description().tolerance.other_gpu_spearman_at_least
    value = spearman([one for one, _ in pairs], [one for _, one in pairs])
    told = f"Spearman {value:.3f}, at least {bound:g}"
    return told, () if value >= bound else (f"rerun: rank order of {len(pairs)} cells: {told}; probably another card",)


def against_published(ladder: Ladder, folder: Path | None = None) -> tuple[list[str], str]:
    """Every machine's fp16 progression: by cell on a GPU model with published figures, by rank on another.

    A machine that was only swept (``<machine>/<machine>.json.gz`` in `folder`) is judged by that.
    """
    problems: list[str] = []
    told = []
    for machine in (*ladder.machines, *(swept(ladder, folder) if folder else ())):
        judge = _by_cell if machine.key in ladder.published.gpus else _by_rank
        lines, what = judge(ladder, machine)
        problems += [f"{machine.name}{line}" for line in lines]
        told.append(f"{machine.name}: {what}")
    return problems, "; ".join(told) or "nothing was measured"


def _by_rank(ladder: Ladder, machine: Machine) -> tuple[list[str], str]:
    """Another GPU runs the published A100 kernels where they were timed, so that code is compared with like code."""
    theirs, own = (_headline_percents(ladder, machine, configs_of) for configs_of in (PUBLISHED_GPU, None))
    measured = theirs if len(theirs) == N_ITERATIONS else own
    if len(measured) != N_ITERATIONS:
        text = f"only {len(measured)} iterations have a figure at S={HEADLINE_LENGTH}"
        return [f": {text}"], text
    found = spearman([measured[one] for one in sorted(measured)], ladder.published.column(PUBLISHED_GPU, "seq4096"))
    bound = ladder.published.description.tolerance.other_gpu_spearman_at_least
    order = f"rank order of {len(measured)} iterations: Spearman {found:.3f} with the published {PUBLISHED_GPU}"
    text = f"{order}, at least {bound:g}"
    cause = f"probably another card: a {machine.gpu.name} and no {PUBLISHED_GPU}"
    return ([] if found >= bound else [f": {text}; {cause}"]), text


def _headline_percents(ladder: Ladder, machine: Machine, configs_of: str | None) -> dict[int, float]:
    timings = {row.iteration.number: row.headline for row in ladder.rows(machine, "fp16", configs_of)}
    return {step: summary.pct for step, summary in timings.items() if summary and step <= N_ITERATIONS}


def _by_cell(ladder: Ladder, machine: Machine) -> tuple[list[str], str]:
    """Cell by cell on the GPU model that the figures were published for."""
    key = machine.key or PUBLISHED_GPU
    boost, published = load_gpus()[key].peaks.get("boost_clock"), ladder.published  # what the model is sold at
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
                where = f", iteration {row.iteration.number}, {statistic}"
                told = f"{where}: expected {cell.value:g} % within {cell.tolerance:g} points, found no measurement"
                within = (cell.value, cell.tolerance)
                problems += failing(where, within, one.pct, (expected, found)) if one else [told]
    return problems, f"{n} cells"


def beside_committed(own: Path, committed: Path = RESULTS) -> Found:
    """Timings of one's own folder of results, cell by cell beside the committed ones of the same GPU model."""
    every = [(a, b) for a in bench_files(own) for b in bench_files(committed) if a.parent.name == b.parent.name]
    return _joined(
        same_model(load_as(b, BenchResult), load_as(a, BenchResult), (relative(b), relative(a))) for a, b in every
    )


def against_peers(ladder: Ladder) -> Found:
    """On the GPU where the published kernels were timed: none of ours is slower, and the best one outruns FA2."""
    machines = [machine for machine in ladder.machines if machine.key == PEER_GPU]
    return _joined(one for machine in machines for one in (_peers(ladder, machine), _best(ladder, machine)))


def _joined(parts: Iterable[Found]) -> Found:
    every = list(parts)
    return Found([line for one in every for line in one.problems], sum(one.n for one in every))


def _peers(ladder: Ladder, machine: Machine) -> Found:
    peer = peer_percents()
    rows = {row.iteration.number: row for row in ladder.rows(machine, "fp16", PUBLISHED_GPU)}
    found = []
    for (step, seq_len), theirs in peer.items():
        measured = rows[step].measured if step in rows else None
        ours = measured.summaries.get(seq_len) if measured else None
        expected = f"expected at least {theirs - PEER_POINTS:.1f} % of FA2, its published peer's {theirs:.1f} less"
        if ours is None or not ours.pct >= theirs - PEER_POINTS:
            told = f"{ours.pct:.1f} %" if ours else "no measurement"
            found.append(f"{machine.name}, iteration {step}, S={seq_len}: {expected} {PEER_POINTS:g}, found {told}")
    return Found(found, len(peer))


def peer_percents() -> Mapping[tuple[int, int], float]:
    """Percent of FA2 of each published kernel by iteration and length, timed on a GPU of `PEER_GPU`."""
    rows = read_csv(PUBLISHED, PEER_FILE, load_description())
    return {(int(row["iteration"]), int(row["seq_len"])): float(row["pct_of_fa2_paired_median"]) for row in rows}


def _best(ladder: Ladder, machine: Machine) -> Found:
    found = []
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
                found.append(f"{where}: expected at least {least:g} % of FA2, found {best:.1f} %")
    return Found(found, len(DTYPES) * len(BEST_AT_LEAST))
