"""Measured against published: progressions cell by cell or by rank, and kernels beside their published peers.

Why apart from `flashladder.gate.results`: that asks whether files are what they were made from; this asks whether the
numbers in them are those that the ladder promises. Each function makes one outcome over all machines.

Nothing to run here; `invoke gate` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import get_args

from flashladder.files import relative
from flashladder.gate.outcome import Outcome, outcome
from flashladder.ladder.config import DTYPES
from flashladder.names import PUBLISHED_GPU
from flashladder.report.data import HEADLINE_LENGTH, Ladder, Machine
from flashladder.report.tables import headline
from flashladder.results.differences import Found
from flashladder.results.published import N_ITERATIONS, PUBLISHED, Statistic, load_description, number, read_csv
from flashladder.results.statistics import spearman

PEER_GPU, PEER_FILE = "h200", "peer_h200_progression.csv"  # where published kernels were timed beside FA2
PEER_POINTS = 3.0  # points below its peer that a kernel may lie at S = 4096: other toolchains, another card
BEST_FROM = 9  # the iterations among which the ladder's best kernel is looked for
BEST_AT_LEAST = {"S=4096": 107.0, "harmonic mean": 106.0}  # percent of FA2, on the GPU of the peers


def against_published(ladder: Ladder) -> Outcome:
    """Every machine's fp16 progression: by cell on a GPU model with published figures, by rank on another."""
    details: list[str] = []
    told = []
    for machine in ladder.machines:
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
    return ([] if found >= bound else [f"{machine.name}: {text}"]), text


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
        expected = f"expected {cell.value:g} % within {cell.tolerance:g} points"
        if one is None:
            details.append(f"{where}: {expected}, found no measurement")
        elif not abs(one.pct - cell.value) <= cell.tolerance:
            details.append(f"{where}: {expected}, found {one.pct:.1f} %")
    return details, f"{len(compared)} cells"


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
    measured = _headline_percents(ladder, machine, PUBLISHED_GPU)
    found = []
    for step, theirs in peer.items():
        expected = f"expected at least {theirs - PEER_POINTS:.1f} % of FA2, its published peer's {theirs:.1f} less"
        ours = f"{measured[step]:.1f} %" if step in measured else "no measurement"
        if not measured.get(step, 0.0) >= theirs - PEER_POINTS:
            found.append(f"{machine.name}, iteration {step}: {expected} {PEER_POINTS:g}, found {ours}")
    return Found(found, len(peer))


def peer_percents() -> Mapping[int, float]:
    """Percent of FA2 of each published kernel at S = 4096, timed on a GPU of `PEER_GPU`."""
    where = relative(PUBLISHED / PEER_FILE)
    return {
        number(row, "iteration", int, where): number(row, "pct_of_fa2_paired_median", float, where)
        for row in read_csv(PUBLISHED, PEER_FILE, load_description())
        if row["seq_len"] == str(HEADLINE_LENGTH)
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
