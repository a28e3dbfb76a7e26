"""Measured against published: progressions cell by cell or by rank, and kernels beside their published peers.

Why apart from `flashladder.gate.results`: that asks whether files are what they were made from; this asks whether the
numbers in them are those that the ladder promises. Each function makes one outcome over all machines.

Nothing to run here; `invoke gate` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import get_args

from flashladder.files import files_in, relative
from flashladder.gate.evidence import cross, rule12
from flashladder.gate.outcome import Outcome, outcome
from flashladder.ladder.config import DTYPES
from flashladder.ladder.gpus import load_gpus
from flashladder.lock.schema import LOCKS, read_lock
from flashladder.names import HEADLINE_LENGTH, PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.report.data import MODE, Ladder, Machine, Row, bench_files, machine_of, other_files
from flashladder.report.tables import headline
from flashladder.results.differences import Found
from flashladder.results.files import load_as
from flashladder.results.published import N_ITERATIONS, PUBLISHED, Cell, Statistic, load_description, number, read_csv
from flashladder.results.schema import BenchResult
from flashladder.results.statistics import spearman

PEER_GPU, PEER_FILE = "h200", "peer_h200_progression.csv"  # where published kernels were timed beside FA2
PEER_POINTS = 3.0  # points below its peer that a kernel may lie: other toolchains, another card
BEST_FROM = 9  # the iterations among which the ladder's best kernel is looked for
BEST_AT_LEAST = {"S=4096": 107.0, "harmonic mean": 106.0}  # percent of FA2, on the GPU of the peers


def against_published(ladder: Ladder, folder: Path | None = None) -> Outcome:
    """Every machine's fp16 progression: by cell on a GPU model with published figures, by rank on another.

    A machine that was only swept (``<machine>/<machine>.json.gz`` in `folder`) is judged by that.
    """
    details: list[str] = []
    told = []
    for machine in (*ladder.machines, *(swept(ladder, folder) if folder else ())):
        problems, what = _cells(ladder, machine) if machine.key in ladder.published.gpus else _order(ladder, machine)
        details += problems
        told.append(f"{machine.name}: {what}")
    return outcome("progressions fit the published ones", details, "; ".join(told) or "nothing was measured")


def _order(ladder: Ladder, machine: Machine) -> tuple[list[str], str]:
    """Another GPU runs the published A100 kernels where they were timed, so that code is compared with like code."""
    theirs, own = (_headline_percents(ladder, machine, configs_of) for configs_of in (PUBLISHED_GPU, None))
    measured = theirs if len(theirs) == N_ITERATIONS else own
    if len(measured) != N_ITERATIONS:
        text = f"only {len(measured)} iterations have a figure at S={HEADLINE_LENGTH}"
        return [f"{machine.name}: {text}"], text
    published = ladder.published.column(PUBLISHED_GPU, "seq4096")
    found = spearman([measured[number] for number in sorted(measured)], published)
    bound = ladder.published.description.tolerance.other_gpu_spearman_at_least
    text = (
        f"rank order of {len(measured)} iterations: Spearman {found:.3f} with the published {PUBLISHED_GPU}, "
        f"at least {bound:g}"
    )
    more = rule12.farthest(measured, published)
    return ([] if found >= bound else [f"{machine.name}: {text}; {more}; {_rank_cause(ladder, machine)}"]), text


def _rank_cause(ladder: Ladder, machine: Machine) -> str:
    """Another GPU is another card by definition; what else could turn its order around: clocks that moved meanwhile."""
    clocks = [summary.sm_clock_mhz for row in ladder.rows(machine, "fp16") if (summary := headline(row))]
    seen = [clock for clock in clocks if clock]
    if seen and max(seen) / min(seen) - 1 > rule12.CLOCK_SHARE:
        return f"probably another clock: SM at {min(seen):.0f} to {max(seen):.0f} MHz from kernel to kernel"
    return f"probably another card: a {machine.gpu.name} and no {PUBLISHED_GPU}"


def swept(ladder: Ladder, folder: Path) -> list[Machine]:
    """Machines under `folder` without a file of the ladder's tables, by their own sweep."""
    known = {machine.name for machine in ladder.machines}
    found = []
    for path in files_in(folder, "*/*.json.gz"):
        name = path.parent.name
        if path.name == f"{name}.json.gz" and name not in known:
            result = load_as(path, BenchResult)
            locks = {kernel.arch: read_lock(kernel.arch, folder / LOCKS.name) for kernel in result.kernels.values()}
            found.append(machine_of(path.parent, [(path, result)], locks, ladder.published))
    return found


def beside_committed(own: Path, committed: Path = RESULTS) -> Outcome:
    """Timings of one's own folder of results, cell by cell beside the committed ones of the same GPU model."""
    name = "cells are those of results/"
    problems: list[str] = []
    n = 0
    for path in bench_files(own):
        for other in (one for one in bench_files(committed) if one.parent.name == path.parent.name):
            found = rule12.same_model(
                load_as(other, BenchResult), load_as(path, BenchResult), (relative(other), relative(path))
            )
            problems += found.problems
            n += found.n
    return outcome(name, problems, f"{n} cells") if n else Outcome(name, "skipped", ("no results of this GPU model",))


def repeats_hold(folder: Path) -> Outcome:
    """Every other run of the ladder on a machine's GPU model, cell by cell beside the files of the tables."""
    problems: list[str] = []
    n = 0
    for path in bench_files(folder):
        expected = load_as(path, BenchResult)
        if expected.mode != MODE or expected.purpose != "report":
            continue
        manifest = cross.timings(path.parent)
        for other in other_files(path):
            owed = manifest.get(other.name)
            apart = owed.apart.cells if owed and owed.apart else ()
            found = rule12.same_model(expected, load_as(other, BenchResult), (path.name, relative(other)), apart)
            problems += found.problems
            n += found.n
    return outcome("other runs fit the tables", problems, f"{n} cells")


def _headline_percents(ladder: Ladder, machine: Machine, configs_of: str | None) -> dict[int, float]:
    """Percent of FA2 at S=4096, fp16, of every published iteration that has one."""
    timings = {row.iteration.number: headline(row) for row in ladder.rows(machine, "fp16", configs_of)}
    return {number: summary.pct for number, summary in timings.items() if summary and number <= N_ITERATIONS}


def _cells(ladder: Ladder, machine: Machine) -> tuple[list[str], str]:
    """Cell by cell on the GPU model that the figures were published for."""
    key = machine.key or PUBLISHED_GPU
    details = []
    statistics: Sequence[Statistic] = get_args(Statistic)
    rows = ladder.rows(machine, "fp16", key)
    places = [(row, ladder.published.find(row.iteration.number, key, one)) for row, one in product(rows, statistics)]
    compared = [(row, cell) for row, cell in places if cell]
    for row, cell in compared:
        statistic = cell.statistic
        mean = row.measured.mean if row.measured else None
        one = mean if statistic == "hmean" else headline(row)
        where = f"{machine.name}, iteration {row.iteration.number}, {statistic}"
        if one is None or row.measured is None:
            expected = f"expected {cell.value:g} % within {cell.tolerance:g} points"
            details.append(f"{where}: {expected}, found no measurement")
            continue
        known = _published_known(ladder, row, cell), _measured_known(machine, row)
        line = rule12.failing(where, (cell.value, cell.tolerance), one.pct, known)
        details += [line] if line else []
    return details, f"{len(compared)} cells"


def _published_known(ladder: Ladder, row: Row, cell: Cell) -> rule12.Known:
    """What a published figure is known by: its configuration, the clock that the model is sold at, FA2's own speed."""
    boost = load_gpus()[cell.gpu].peaks.get("boost_clock")
    config = row.iteration.configs[cell.gpu].with_dtype(ladder.published.description.shape.dtype).short_form()
    fa2 = ladder.published.fa2_tflops.get((cell.gpu, "seq4096"))
    return rule12.Known(config=config, clock_mhz=float(boost.value) if boost else None, fa2_tflops=fa2)


def _measured_known(machine: Machine, row: Row) -> rule12.Known:
    summary = headline(row)
    return rule12.Known(
        config=row.measured.kernel.config if row.measured else None,
        clock_mhz=summary.sm_clock_mhz if summary else None,
        fa2_tflops=summary.reference_tflops if summary else None,
        card=machine.gpu.uuid,
    )


def against_peers(ladder: Ladder) -> Outcome:
    """On the GPU where the published kernels were timed: none of ours is slower, and the best one outruns FA2."""
    name = "kernels keep up with their published peers"
    machines = [machine for machine in ladder.machines if machine.key == PEER_GPU]
    if not machines:
        return Outcome(name, "skipped", (f"nothing was measured on a GPU of configs/gpus/{PEER_GPU}.yaml",))
    found = [one for machine in machines for one in (_peers(ladder, machine), _best(ladder, machine))]
    n = sum(one.n for one in found)
    return outcome(name, [line for one in found for line in one.problems], f"{n} figures")


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
    where = relative(PUBLISHED / PEER_FILE)
    return {
        (number(row, "iteration", int, where), number(row, "seq_len", int, where)): number(
            row, "pct_of_fa2_paired_median", float, where
        )
        for row in read_csv(PUBLISHED, PEER_FILE, load_description())
    }


def _best(ladder: Ladder, machine: Machine) -> Found:
    """The fastest of the last iterations, in each dtype, by both statistics."""
    found = []
    steps = range(BEST_FROM, N_ITERATIONS + 1)
    for dtype in DTYPES:
        rows = [row for row in ladder.rows(machine, dtype) if row.iteration.number in steps]
        percents = {
            "S=4096": [summary.pct for row in rows if (summary := headline(row))],
            "harmonic mean": [row.measured.mean.pct for row in rows if row.measured and row.measured.mean],
        }
        for statistic, least in BEST_AT_LEAST.items():
            best = max(percents[statistic], default=0.0)
            if not best >= least:
                where = f"{machine.name}, {dtype}, {statistic}: the best of iterations {steps[0]} to {steps[-1]}"
                found.append(f"{where}: expected at least {least:g} % of FA2, found {best:.1f} %")
    return Found(found, len(DTYPES) * len(BEST_AT_LEAST))
