"""The gate: published against measured, and everything committed against what it was made from.

Why: numbers rot. Committed files are the sealed ones, results are derived again from their raw samples, every timed
kernel was checked and passed, sanitizers found nothing, tables and plot are rendered again byte for byte, machine-code
locks, claims and the emulator's counters are verified, and measured progressions are compared with the published ones:
cell by cell within tolerance on the same GPU model, by rank order on any other. None of this needs a GPU.

Run: ``invoke gate``, or ``python -m flashladder.gate --json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib import metadata
import io
from itertools import product
import os
from pathlib import Path

from flashladder import counter_claims, emulator_agreement, gate_results
from flashladder.emulator_reading import NAME
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import RESULTS, dump_json, relative
from flashladder.published import PUBLISHED, Statistic
from flashladder.published import problems as published_problems
from flashladder.report_data import PUBLISHED_GPU, Ladder, Machine, collect
from flashladder.report_tables import headline
from flashladder.results import seal_problems
from flashladder.statistics import spearman

BROUGHT_BY_TORCH = {"nvidia-cuda-runtime"}  # a CUDA build of torch needs it as well: no sign of a toolchain


@dataclass(frozen=True)
class Outcome:
    """One check: ``ok``, ``failed`` or ``skipped``, and a line per failing cell (or why it was skipped)."""

    name: str
    status: str
    details: tuple[str, ...] = ()
    summary: str = ""


def published_intact(folder: Path = PUBLISHED) -> Outcome:
    """Every published CSV is the bytes that were taken over."""
    return _over("published figures are as taken over", [folder], published_problems)


def results_sealed(folder: Path = RESULTS) -> Outcome:
    """Every file of a machine's folder is the one that was sealed."""
    return _over("result files are as sealed", gate_results.machine_folders(folder), seal_problems)


def results_hold(folder: Path = RESULTS) -> Outcome:
    """Summaries of every committed benchmark and tuning run follow from its raw samples."""
    files = gate_results.sampled_files(folder)
    return _over("results follow from their raw samples", files, gate_results.sample_problems)


def checks_passed(folder: Path = RESULTS) -> Outcome:
    """Every timed kernel passed every numerical check, in locked machine code."""
    return _over("checks passed", gate_results.checked_folders(folder), gate_results.check_problems)


def sanitizers_clean(folder: Path = RESULTS) -> Outcome:
    """All four sanitizers found nothing, in locked machine code."""
    return _over("sanitizers clean", sorted(folder.glob("*/sanitizer.json.gz")), gate_results.sanitizer_problems)


def counter_tables_fresh(folder: Path = RESULTS) -> Outcome:
    """Tables of counters are what the readings give."""
    files = counter_claims.counter_files(folder)
    return _over("tables of counters are up to date", files, gate_results.counter_table_problems)


def results_locked(ladder: Ladder) -> Outcome:
    """Every committed timing belongs to locked machine code."""
    n = sum(len(machine.measured) for machine in ladder.machines)
    return _outcome("results belong to locked machine code", ladder.refused, f"{n} kernels")


def report_fresh(ladder: Ladder) -> Outcome:
    """Tables and plot are what the committed results give."""
    from flashladder import report

    files = report.render(ladder, report.read_readme())
    return _outcome("tables and plot are up to date", report.stale(files), f"{len(files)} files")


def locks_hold() -> Outcome:
    """Every locked kernel still compiles to the locked machine code; skipped without a compiler."""
    from flashladder import lock

    return _needs_toolchain("machine code is the locked one", lock.check)


def claims_hold() -> Outcome:
    """Claims about machine code in iterations/*.yaml; skipped without a compiler."""
    from flashladder import claims

    return _needs_toolchain("claims about machine code", claims.check)


def counter_claims_hold(folder: Path = RESULTS) -> Outcome:
    """Claims about hardware counters, in the committed readings; skipped where none is committed."""
    name = "claims about counters"
    if not counter_claims.counter_files(folder):
        return Outcome(name, "skipped", ("no readings under results/<machine>/counters.json.gz",))
    return _printed(name, lambda: counter_claims.check(folder))


def emulator_agrees(folder: Path = RESULTS) -> Outcome:
    """The emulator counts what Nsight Compute counted on GPUs, in the published kernels and in ours."""
    name, files = "the emulator counts what GPUs count", emulator_agreement.hardware_files(folder)
    return _over(name, files, emulator_agreement.problems)


def emulated_claims_hold() -> Outcome:
    """Claims about counters, in the emulator's."""
    return _printed("claims about counters, emulated", emulator_agreement.check_claims)


def emulated_kernels_sound(folder: Path = RESULTS) -> Outcome:
    """The emulator found no race, in the locked PTX."""
    return _over("emulated kernels are locked and free of races", [folder / NAME], emulator_agreement.reading_problems)


def emulated_current() -> Outcome:
    """Emulated counters and races are what the PTX gives; skipped without a compiler."""
    from flashladder import emulator_counters

    return _needs_toolchain("emulated counters are up to date", emulator_counters.check)


def published_hold(ladder: Ladder) -> list[Outcome]:
    """One outcome per measured machine: its fp16 progression against the published ones."""
    return [_against_published(ladder, machine) for machine in ladder.machines]


def _against_published(ladder: Ladder, machine: Machine) -> Outcome:
    name = f"{machine.name} against published"
    if machine.key in ladder.published.gpus:
        return _cells(ladder, machine, name, machine.key)
    # Another GPU runs the published A100 kernels where they were timed, so that code is compared with like code.
    theirs, own = (_headline_percents(ladder, machine, configs_of) for configs_of in (PUBLISHED_GPU, None))
    measured = theirs if len(theirs) == len(ladder.iterations) else own
    if len(measured) != len(ladder.iterations):
        return Outcome(name, "failed", (f"{machine.name}: only {len(measured)} iterations have a figure at S=4096",))
    published = ladder.published.column(PUBLISHED_GPU, "seq4096")
    found = spearman([measured[number] for number in sorted(measured)], published)
    bound = ladder.published.description.tolerance.other_gpu_spearman_at_least
    text = f"rank order of the iterations: Spearman {found:.3f} with the published {PUBLISHED_GPU}, at least {bound:g}"
    return _outcome(name, [] if found >= bound else [f"{machine.name}: {text}"], text)


def _headline_percents(ladder: Ladder, machine: Machine, configs_of: str | None) -> dict[int, float]:
    """Percent of FA2 at S=4096, fp16, of every iteration that has one."""
    timings = {row.iteration.number: headline(row) for row in ladder.rows(machine, "fp16", configs_of)}
    return {number: summary.pct for number, summary in timings.items() if summary}


def _cells(ladder: Ladder, machine: Machine, name: str, key: str) -> Outcome:
    """Cell by cell on the GPU model that the figures were published for."""
    details = []
    statistics: tuple[Statistic, ...] = ("seq4096", "hmean")
    rows = ladder.rows(machine, "fp16", key)
    for row, statistic in product(rows, statistics):
        cell = ladder.published.cell(row.iteration.number, key, statistic)
        mean = row.measured.mean if row.measured else None
        one = mean if statistic == "hmean" else headline(row)
        where = f"{machine.name}, iteration {row.iteration.number}, {statistic}"
        expected = f"expected {cell.value:g} % within {cell.tolerance:g} points"
        if one is None:
            details.append(f"{where}: {expected}, found no measurement")
        elif not abs(one.pct - cell.value) <= cell.tolerance:
            details.append(f"{where}: {expected}, found {one.pct:.1f} %")
    return _outcome(name, details, f"{len(rows) * len(statistics)} cells")


def _outcome(name: str, details: Sequence[str], summary: str) -> Outcome:
    return Outcome(name, "failed" if details else "ok", tuple(details), summary)


def _over(name: str, paths: Sequence[Path], problems: Callable[[Path], Iterable[str]]) -> Outcome:
    """One check over files or folders: skipped where there are none; one that cannot be read is a failure."""
    if not paths:
        return Outcome(name, "skipped", ("nothing of this kind under results/",))
    details: list[str] = []
    for path in paths:
        try:
            details += problems(path)
        except FlashladderError as error:
            details.append(str(error))
    return _outcome(name, details, ", ".join(relative(path).removeprefix("results/") for path in paths))


def _needs_toolchain(name: str, check: Callable[[], None]) -> Outcome:
    """Runs a check that compiles; skipped where nothing was installed for it, failed where the wrong thing was."""
    from flashladder import toolchain

    try:
        toolchain.find_toolchain()
    except FlashladderError as error:
        return Outcome(name, "failed" if _has_toolchain() else "skipped", (str(error),))
    try:
        toolchain.host_compiler()
    except FlashladderError as error:
        return Outcome(name, "failed" if os.environ.get("CXX", "").strip() else "skipped", (str(error),))
    return _printed(name, check)


def _has_toolchain() -> bool:
    """Whether any wheel of the toolchain is installed, of whatever version."""
    from flashladder.toolchain import load_pins

    try:
        wanted = load_pins().packages.keys() - BROUGHT_BY_TORCH
    except FlashladderError:
        return True  # malformed pins are no reason to skip
    return any(next(iter(metadata.distributions(name=name)), None) for name in wanted)


def _printed(name: str, check: Callable[[], None]) -> Outcome:
    """Runs a check; what it prints becomes the details of its failure."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            check()
    except FlashladderError as error:  # it said no, or it could not be done
        return Outcome(
            name,
            "failed",
            (*(line for line in printed.getvalue().splitlines() if not line.startswith("holds")), str(error)),
        )
    lines = printed.getvalue().splitlines()
    holding = sum(line.startswith("holds") for line in lines)
    arches = ", ".join(dict.fromkeys(line.partition(":")[0] for line in lines))
    edited = tuple(line for line in lines if "edited since the lock" in line)
    return Outcome(name, "ok", edited, f"{holding} claims hold" if holding else arches)


def run_gate() -> list[Outcome]:
    """Every check that this machine can run, cheapest first."""
    return [
        published_intact(),
        results_sealed(),
        results_hold(),
        checks_passed(),
        sanitizers_clean(),
        counter_tables_fresh(),
        counter_claims_hold(),
        emulator_agrees(),
        emulated_claims_hold(),
        emulated_kernels_sound(),
        *_report_holds(),
        locks_hold(),
        claims_hold(),
        emulated_current(),
    ]


def _report_holds() -> list[Outcome]:
    """What follows from all results together; one failure where they cannot be put together."""
    try:
        ladder = collect()
        return [results_locked(ladder), *published_hold(ladder), report_fresh(ladder)]
    except FlashladderError as error:
        return [Outcome("results make a report", "failed", (str(error),))]


def render(outcomes: Sequence[Outcome]) -> str:
    """One line per check, and one per failing cell under it."""
    lines = []
    for outcome in outcomes:
        lines.append(f"{outcome.status:8s}{outcome.name}" + (f" ({outcome.summary})" if outcome.summary else ""))
        lines += [f"        {line}" for line in outcome.details]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the gate; exit code 1 when a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m flashladder.gate",
        description="Published against measured, and everything committed against what it was made from.",
        epilog="example: python -m flashladder.gate --json",
    )
    parser.add_argument("--json", action="store_true", help="outcomes as JSON")
    wants_json = parser.parse_args(argv).json
    with one_line_errors():
        outcomes = run_gate()
    print(dump_json([asdict(outcome) for outcome in outcomes]).rstrip() if wants_json else render(outcomes))
    return 1 if any(outcome.status == "failed" for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
