"""The checks of the gate, one function each: what is looked at, and how the outcome is told.

Why apart from `flashladder.gate.command`: that is the list and the command; `flashladder.gate.reproduce` runs some of
these on a machine's own results. Nothing to run here; `invoke gate` does.
"""

from __future__ import annotations

from dataclasses import replace
import os
from pathlib import Path
import subprocess
import sys

from flashladder.emulate import agreement as emulator_agreement
from flashladder.emulate.reading import NAME
from flashladder.files import files_in, relative
from flashladder.gate import limits as gate_limits
from flashladder.gate import published as gate_published
from flashladder.gate import results as gate_results
from flashladder.gate.evidence import cross
from flashladder.gate.evidence import manifest as gate_manifest
from flashladder.gate.outcome import Outcome, checked, needs_toolchain, outcome, over
from flashladder.ladder.gpus import GPUS
from flashladder.paths import PACKAGE, RESULTS, ROOT
from flashladder.report import figures
from flashladder.report.data import Ladder
from flashladder.results.published import PUBLISHED


def published_intact(folder: Path = PUBLISHED) -> Outcome:
    """Every published CSV is the bytes that were taken over."""
    return over("published figures are as taken over", [folder], gate_results.published_problems, "files")


def results_sealed(folder: Path = RESULTS) -> Outcome:
    """Every file of a machine's folder is the one that was sealed."""
    folders = gate_results.machine_folders(folder)
    return over("result files are as sealed", folders, gate_results.sealed_problems, "files")


def results_complete(folder: Path = RESULTS) -> Outcome:
    """Every machine's folder holds what its manifest says, and the manifest asks for the whole ladder."""
    folders = gate_results.machine_folders(folder)
    return over("results are complete", folders, gate_manifest.folder_problems, "files")


def files_agree(folder: Path = RESULTS) -> Outcome:
    """What identifies a run, and each ratio that was measured more than once, agrees between files and machines."""
    name, folders = "files agree with each other", gate_results.machine_folders(folder)
    found = over(name, folders, cross.folder_problems, "documents")
    between = cross.machines_agree(folders).problems
    return replace(found, status="failed", details=(*found.details, *between)) if between else found


def documents_whole(folder: Path = RESULTS) -> Outcome:
    """Every result document is as it was written, of locked machine code, and all that its sweep planned."""
    from flashladder.gate.verify_document import folder_problems

    folders = gate_results.machine_folders(folder)
    return over("documents are as they were written", folders, folder_problems, "documents")


def results_hold(folder: Path = RESULTS) -> Outcome:
    """Summaries of every committed benchmark and tuning run follow from its raw samples."""
    files = gate_results.sampled_files(folder)
    return over("results follow from their raw samples", files, gate_results.sample_problems, "cells")


def checks_passed(folder: Path = RESULTS) -> Outcome:
    """Every timed kernel passed every numerical check, in locked machine code."""
    folders = gate_results.checked_folders(folder)
    return over("checks passed", folders, gate_results.check_problems, "cases")


def checks_complete(folder: Path = RESULTS) -> Outcome:
    """Every configuration of every GPU was checked, in both dtypes."""
    folders = gate_results.checked_folders(folder)
    return over("every configuration was checked", folders, gate_limits.unchecked, "kernels")


def sanitizers_clean(folder: Path = RESULTS) -> Outcome:
    """All four sanitizers found nothing, in locked machine code of every iteration."""
    files = files_in(folder, "*/sanitizer.json.gz")
    return over("sanitizers clean", files, gate_results.sanitizer_problems, "kernels")


def counter_tables_fresh(folder: Path = RESULTS) -> Outcome:
    """Tables of counters are what the readings give."""
    files = emulator_agreement.counter_files(folder)
    return over("tables of counters are up to date", files, gate_results.counter_table_problems, "kernels")


def counter_claims_hold(folder: Path = RESULTS) -> Outcome:
    """Claims about hardware counters, in the committed readings; skipped where none is committed."""
    name = "claims about counters"
    if not emulator_agreement.counter_files(folder):
        return Outcome(name, "skipped", ("no readings under results/<machine>/counters.json.gz",))
    return checked(name, lambda: emulator_agreement.check_hardware_claims(folder, folder / "locks"))


def emulator_agrees(folder: Path = RESULTS) -> Outcome:
    """The emulator counts what Nsight Compute counted on GPUs, in the published kernels and in ours."""
    files = emulator_agreement.hardware_files(folder)
    return over("the emulator counts what GPUs count", files, gate_results.agreement_problems, "kernels")


def emulated_claims_hold(folder: Path = RESULTS) -> Outcome:
    """Claims about counters, in the emulator's."""
    return checked("claims about counters, emulated", lambda: emulator_agreement.check_claims(folder / NAME))


def emulated_kernels_sound(folder: Path = RESULTS) -> Outcome:
    """The emulator found no race, in the locked PTX."""
    name = "emulated kernels are locked and free of races"
    return over(name, [folder / NAME], gate_results.reading_problems, "kernels")


def locks_within_limits(folder: Path = RESULTS) -> Outcome:
    """Locked kernels are all there, and keep the published ones' registers and spills."""
    files = gate_limits.lock_files(folder)
    return over("locked kernels are complete and within limits", files, gate_limits.lock_problems, "kernels")


def peaks_hold(ladder: Ladder, folder: Path = GPUS) -> Outcome:
    """The peaks of configs/gpus, by which an impossible time is known, agree with each other and the measured GPUs."""
    found = gate_limits.peak_problems([machine.gpu for machine in ladder.machines], folder)
    return outcome("peaks of GPUs hold", found.problems, f"{found.n} peaks")


def results_locked(ladder: Ladder) -> Outcome:
    """Every committed timing belongs to locked machine code."""
    n = sum(len(machine.measured) for machine in ladder.machines)
    return outcome("results belong to locked machine code", ladder.refused, f"{n} kernels")


def published_hold(ladder: Ladder, folder: Path | None = None) -> Outcome:
    """Measured fp16 progressions against the published ones: by cell on the same GPU model, by rank on another."""
    return gate_published.against_published(ladder, folder)


def repeats_hold(folder: Path = RESULTS) -> Outcome:
    """Other runs of the ladder on the same GPU model fit the tables, cell by cell."""
    return gate_published.repeats_hold(folder)


def peers_reached(ladder: Ladder) -> Outcome:
    """No kernel of ours is slower than the published one on the same GPU, and the best one outruns FA2."""
    return gate_published.against_peers(ladder)


def report_fresh(ladder: Ladder, root: Path = ROOT) -> Outcome:
    """Tables and plot are what the committed results give."""
    from flashladder.report import command as report

    files = report.committed(ladder, root)
    return outcome("tables and plot are up to date", report.stale(files), f"{len(files)} files")


def page_fresh(ladder: Ladder, root: Path = ROOT) -> Outcome:
    """The committed page is what the results give."""
    from flashladder.report import command as report

    return outcome("the report's page is up to date", report.stale(report.pages(ladder, root)), "1 file")


def figures_hold(ladder: Ladder, root: Path = ROOT) -> Outcome:
    """Figures in README, CHANGELOG and docs are those that the committed data give."""
    found = figures.problems(ladder, root)
    return outcome("figures in texts are those of the data", found.problems, f"{found.n} figures")


def speed_page_fresh(root: Path = ROOT) -> Outcome:
    """The page and the plot about the emulator's speed are what its samples give."""
    from flashladder.report import speed_page as emulator_speed

    return outcome("the page on the emulator's speed is up to date", emulator_speed.stale(root), "2 files")


def speed_reached(root: Path = ROOT) -> Outcome:
    """The emulator was fast enough when it was timed."""
    path = root / RESULTS.name / "emulator" / "speed.json"
    return over("the emulator is as fast as asked", [path], gate_limits.speed_problems, "goals")


def notes_fresh(root: Path = ROOT) -> Outcome:
    """Notes on the iterations are what `analysis/render_notes.py` makes of claims, locks and results."""
    name, script = "notes on iterations are up to date", root / "analysis" / "render_notes.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], cwd=root, capture_output=True, text=True, check=False,
        env={**os.environ, "FLASHLADDER_ROOT": str(root), "PYTHONPATH": str(PACKAGE.parent)},
    )  # fmt: skip
    told = done.stderr.strip().splitlines()[-1:] or [f"{relative(script)}: exit code {done.returncode}"]
    n = len(files_in(root / "iterations" / "notes", "*.md"))
    return outcome(name, told if done.returncode else [], f"{n} notes")


def locks_hold() -> Outcome:
    """Every locked kernel still compiles to the locked machine code; skipped without a compiler."""
    from flashladder.lock import command as lock

    return needs_toolchain("machine code is the locked one", lock.check)


def step_counts_current() -> Outcome:
    """What claims about code are judged on is what the kernels hold; skipped without a compiler."""
    from flashladder.lock import step_counts

    return needs_toolchain("counts of the steps are up to date", step_counts.check)


def emulated_current() -> Outcome:
    """Emulated counters and races are what the PTX gives; skipped without a compiler."""
    from flashladder.emulate import take_reading as emulator_counters

    return needs_toolchain("emulated counters are up to date", emulator_counters.check)
