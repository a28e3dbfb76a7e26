"""The gate: published against measured, and everything committed against what it was made from.

Why: numbers rot. Committed files are the sealed ones, results are derived again from their raw samples, every timed
kernel was checked and passed, sanitizers found nothing, tables, plot and the figures in texts are rendered again byte
for byte, machine-code locks, claims and the emulator's counters are verified, and measured progressions are compared
with the published ones. None of this needs a GPU. Each check is independent: what one finds, or cannot do, hides no
other.

Run: ``invoke gate``, or ``python -m flashladder.gate --json``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from flashladder import (
    counter_claims,
    emulator_agreement,
    figures,
    gate_limits,
    gate_published,
    gate_results,
)
from flashladder.arguments import Parser
from flashladder.emulator_reading import NAME
from flashladder.errors import one_line_errors
from flashladder.files import RESULTS, dump_json
from flashladder.gate_outcome import Check, Outcome, needs_toolchain, outcome, over, printed, run_all
from flashladder.published import PUBLISHED
from flashladder.report_data import Ladder, collect

__all__ = ["Outcome", "main", "render", "run_gate"]


def published_intact(folder: Path = PUBLISHED) -> Outcome:
    """Every published CSV is the bytes that were taken over."""
    return over("published figures are as taken over", [folder], gate_results.published_problems, "files")


def results_sealed(folder: Path = RESULTS) -> Outcome:
    """Every file of a machine's folder is the one that was sealed."""
    folders = gate_results.machine_folders(folder)
    return over("result files are as sealed", folders, gate_results.sealed_problems, "files")


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
    files = sorted(folder.glob("*/sanitizer.json.gz"))
    return over("sanitizers clean", files, gate_results.sanitizer_problems, "kernels")


def counter_tables_fresh(folder: Path = RESULTS) -> Outcome:
    """Tables of counters are what the readings give."""
    files = counter_claims.counter_files(folder)
    return over("tables of counters are up to date", files, gate_results.counter_table_problems, "kernels")


def counter_claims_hold(folder: Path = RESULTS) -> Outcome:
    """Claims about hardware counters, in the committed readings; skipped where none is committed."""
    name = "claims about counters"
    if not counter_claims.counter_files(folder):
        return Outcome(name, "skipped", ("no readings under results/<machine>/counters.json.gz",))
    return printed(name, lambda: counter_claims.check(folder, folder / "locks"))


def emulator_agrees(folder: Path = RESULTS) -> Outcome:
    """The emulator counts what Nsight Compute counted on GPUs, in the published kernels and in ours."""
    files = emulator_agreement.hardware_files(folder)
    return over("the emulator counts what GPUs count", files, gate_results.agreement_problems, "kernels")


def emulated_claims_hold(folder: Path = RESULTS) -> Outcome:
    """Claims about counters, in the emulator's."""
    return printed("claims about counters, emulated", lambda: emulator_agreement.check_claims(folder / NAME))


def emulated_kernels_sound(folder: Path = RESULTS) -> Outcome:
    """The emulator found no race, in the locked PTX."""
    name = "emulated kernels are locked and free of races"
    return over(name, [folder / NAME], gate_results.reading_problems, "kernels")


def locks_within_limits(folder: Path = RESULTS) -> Outcome:
    """Locked kernels are all there, and keep the published ones' registers and spills."""
    files = gate_limits.lock_files(folder)
    return over("locked kernels are complete and within limits", files, gate_limits.lock_problems, "kernels")


def peaks_hold(ladder: Ladder) -> Outcome:
    """The peaks of configs/gpus, by which an impossible time is known, agree with each other and the measured GPUs."""
    found = gate_limits.peak_problems([machine.gpu for machine in ladder.machines])
    return outcome("peaks of GPUs hold", found.problems, f"{found.n} peaks")


def results_locked(ladder: Ladder) -> Outcome:
    """Every committed timing belongs to locked machine code."""
    n = sum(len(machine.measured) for machine in ladder.machines)
    return outcome("results belong to locked machine code", ladder.refused, f"{n} kernels")


def published_hold(ladder: Ladder) -> Outcome:
    """Measured fp16 progressions against the published ones: by cell on the same GPU model, by rank on another."""
    return gate_published.against_published(ladder)


def peers_reached(ladder: Ladder) -> Outcome:
    """No kernel of ours is slower than the published one on the same GPU, and the best one outruns FA2."""
    return gate_published.against_peers(ladder)


def report_fresh(ladder: Ladder) -> Outcome:
    """Tables and plot are what the committed results give."""
    from flashladder import report

    files = report.render(ladder) | report.texts(ladder, figures.pages())
    return outcome("tables and plot are up to date", report.stale(files), f"{len(files)} files")


def figures_hold(ladder: Ladder) -> Outcome:
    """Figures in README, CHANGELOG and docs are those that the committed data give."""
    found = figures.problems(ladder)
    return outcome("figures in texts are those of the data", found.problems, f"{found.n} figures")


def locks_hold() -> Outcome:
    """Every locked kernel still compiles to the locked machine code; skipped without a compiler."""
    from flashladder import lock

    told = "kernels compiled and counted anew"
    return needs_toolchain("machine code is the locked one", lambda: f"{lock.check()} {told}")


def claims_hold() -> Outcome:
    """Claims about machine code in iterations/*.yaml; skipped without a compiler."""
    from flashladder import claims

    return needs_toolchain("claims about machine code", claims.check)


def emulated_current() -> Outcome:
    """Emulated counters and races are what the PTX gives; skipped without a compiler."""
    from flashladder import emulator_counters

    return needs_toolchain("emulated counters are up to date", emulator_counters.check)


class Joined:
    """What follows from all results together: put together once, however many checks ask."""

    NAME = "results make a report"

    def __init__(self) -> None:
        self.ladder: Ladder | None = None

    def join(self) -> Outcome:
        """Reads all results."""
        self.ladder = collect()
        n = sum(len(measured.summaries) for machine in self.ladder.machines for measured in machine.measured.values())
        return outcome(self.NAME, (), f"{n} cells of {len(self.ladder.machines)} machines")

    def check(self, name: str, look: Callable[[Ladder], Outcome]) -> Check:
        """A check of the results together; skipped where they could not be put together."""

        def run() -> Outcome:
            if self.ladder is None:
                return Outcome(name, "skipped", (f"needs what failed above: {self.NAME}",))
            return look(self.ladder)

        return Check(name, run)


def all_checks() -> list[Check]:
    """Every check, cheapest first; those at the end compile."""
    joined = Joined()
    return [
        Check("published figures are as taken over", published_intact),
        Check("result files are as sealed", results_sealed),
        Check("results follow from their raw samples", results_hold),
        Check("checks passed", checks_passed),
        Check("every configuration was checked", checks_complete),
        Check("sanitizers clean", sanitizers_clean),
        Check("tables of counters are up to date", counter_tables_fresh),
        Check("claims about counters", counter_claims_hold),
        Check("the emulator counts what GPUs count", emulator_agrees),
        Check("claims about counters, emulated", emulated_claims_hold),
        Check("emulated kernels are locked and free of races", emulated_kernels_sound),
        Check("locked kernels are complete and within limits", locks_within_limits),
        Check(joined.NAME, joined.join),
        joined.check("results belong to locked machine code", results_locked),
        joined.check("peaks of GPUs hold", peaks_hold),
        joined.check("progressions fit the published ones", published_hold),
        joined.check("kernels keep up with their published peers", peers_reached),
        joined.check("tables and plot are up to date", report_fresh),
        joined.check("figures in texts are those of the data", figures_hold),
        Check("machine code is the locked one", locks_hold),
        Check("claims about machine code", claims_hold),
        Check("emulated counters are up to date", emulated_current),
    ]


def run_gate() -> list[Outcome]:
    """Every check that this machine can run."""
    return run_all(all_checks())


def render(outcomes: Sequence[Outcome]) -> str:
    """One line per check, and one per failing cell under it."""
    lines = []
    for one in outcomes:
        lines.append(f"{one.status:8s}{one.name}" + (f" ({one.summary})" if one.summary else ""))
        lines += [f"        {line}" for line in one.details]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the gate; exit code 1 when a check failed."""
    parser = Parser(
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
