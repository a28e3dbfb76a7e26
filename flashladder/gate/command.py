"""The gate: published against measured, and everything committed against what it was made from.

Why: numbers rot. Committed files are the sealed ones, documents are as they were written (`flashladder.gate.verify`
asks the same of any file), results are derived again from their raw samples, every timed kernel was checked and passed,
sanitizers found nothing, tables, plot and the figures in texts are rendered again byte for byte, machine-code locks,
claims and the emulator's counters are verified, and measured progressions are compared with the published ones. None of
this needs a GPU. Each check is independent: what one finds, or cannot do, hides no other.

Run: ``invoke gate``, or ``python -m flashladder.gate --json``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
import sys

from tqdm import tqdm

from flashladder.arguments import parser_of
from flashladder.commands import COMMANDS
from flashladder.errors import one_line_errors, require_checkout
from flashladder.files import dump_json
from flashladder.gate import checks as gate_checks
from flashladder.gate.claim_checks import CHECKS
from flashladder.gate.outcome import Check, Outcome, checked, outcome, run_all
from flashladder.ladder.gpus import GPUS
from flashladder.paths import RESULTS, ROOT
from flashladder.report.data import Ladder, collect
from flashladder.results.published import PUBLISHED

__all__ = ["Outcome", "all_checks", "main", "render", "run_gate"]


class Joined:
    """What follows from all results together: put together once, however many checks ask."""

    NAME = "results make a report"

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self.ladder: Ladder | None = None

    def join(self) -> Outcome:
        """Reads all results."""
        self.ladder = collect(self.folder)
        n = sum(len(measured.summaries) for machine in self.ladder.machines for measured in machine.measured.values())
        return outcome(self.NAME, (), f"{n} cells of {len(self.ladder.machines)} machines")

    def check(self, name: str, look: Callable[[Ladder], Outcome]) -> Check:
        """A check of the results together; skipped where they could not be put together."""

        def run() -> Outcome:
            if self.ladder is None:
                return Outcome(name, "skipped", (f"needs what failed above: {self.NAME}",))
            return look(self.ladder)

        return Check(name, run)


def all_checks(root: Path = ROOT) -> list[Check]:
    """Every check of the checkout at `root`, cheapest first."""
    return [*_file_checks(root), *_joined_checks(root), *_compiling_checks()]


def _file_checks(root: Path) -> list[Check]:
    """Checks of one kind of file each."""
    results = root / RESULTS.name
    return [
        Check("published figures are as taken over", lambda: gate_checks.published_intact(results / PUBLISHED.name)),
        Check("result files are as sealed", lambda: gate_checks.results_sealed(results)),
        Check("results are complete", lambda: gate_checks.results_complete(results)),
        Check("files agree with each other", lambda: gate_checks.files_agree(results)),
        Check("documents are as they were written", lambda: gate_checks.documents_whole(results)),
        Check("results follow from their raw samples", lambda: gate_checks.results_hold(results)),
        Check("checks passed", lambda: gate_checks.checks_passed(results)),
        Check("every configuration was checked", lambda: gate_checks.checks_complete(results)),
        Check("sanitizers clean", lambda: gate_checks.sanitizers_clean(results)),
        Check("tables of counters are up to date", lambda: gate_checks.counter_tables_fresh(results)),
        Check("claims about counters", lambda: gate_checks.counter_claims_hold(results)),
        Check("the emulator counts what GPUs count", lambda: gate_checks.emulator_agrees(results)),
        Check("claims about counters, emulated", lambda: gate_checks.emulated_claims_hold(results)),
        Check("emulated kernels are locked and free of races", lambda: gate_checks.emulated_kernels_sound(results)),
        Check("locked kernels are complete and within limits", lambda: gate_checks.locks_within_limits(results)),
        Check("the page on the emulator's speed is up to date", lambda: gate_checks.speed_page_fresh(root)),
        Check("the emulator is as fast as asked", lambda: gate_checks.speed_reached(root)),
        *(Check(name, partial(checked, name, partial(check, root))) for name, check in CHECKS),
        Check("notes on iterations are up to date", lambda: gate_checks.notes_fresh(root)),
    ]


def _joined_checks(root: Path) -> list[Check]:
    """Checks of all results together."""
    joined = Joined(root / RESULTS.name)
    gpus = root / GPUS.relative_to(ROOT)
    return [
        Check(joined.NAME, joined.join),
        joined.check("results belong to locked machine code", gate_checks.results_locked),
        joined.check("peaks of GPUs hold", lambda ladder: gate_checks.peaks_hold(ladder, gpus)),
        joined.check(
            "progressions fit the published ones", lambda ladder: gate_checks.published_hold(ladder, joined.folder)
        ),
        joined.check("other runs fit the tables", lambda _: gate_checks.repeats_hold(joined.folder)),
        joined.check("kernels keep up with their published peers", gate_checks.peers_reached),
        joined.check("tables and plot are up to date", lambda ladder: gate_checks.report_fresh(ladder, root)),
        joined.check("the report's page is up to date", lambda ladder: gate_checks.page_fresh(ladder, root)),
        joined.check("figures in texts are those of the data", lambda ladder: gate_checks.figures_hold(ladder, root)),
    ]


def _compiling_checks() -> list[Check]:
    """Checks of this checkout that need the toolchain."""
    return [
        Check("machine code is the locked one", gate_checks.locks_hold),
        Check("counts of the steps are up to date", gate_checks.step_counts_current),
        Check("emulated counters are up to date", gate_checks.emulated_current),
    ]


def run_gate(tell: Callable[[Outcome], object] = lambda _: None) -> list[Outcome]:
    """Every check that this machine can run; `tell` gets each outcome as soon as it is known."""
    return run_all(all_checks(), tell)


def render(outcomes: Sequence[Outcome]) -> str:
    """One line per check, and one per failing cell under it."""
    lines = []
    for one in outcomes:
        lines.append(f"{one.status:8s}{one.name}" + (f" ({one.summary})" if one.summary else ""))
        lines += [f"        {line}" for line in one.details]
    return "\n".join(lines)


def _print(outcome: Outcome) -> None:
    """Prints an outcome at once, also into a pipe, above the progress bar."""
    tqdm.write(render([outcome]))
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the gate, with a line for each check as soon as it is known; exit code 1 when a check failed."""
    wants_json = parser_of(COMMANDS["gate"], "gate", "--json").parse_args(argv).json
    with one_line_errors():
        require_checkout("gate")
        outcomes = run_gate() if wants_json else run_gate(_print)
        if wants_json:
            print(dump_json([asdict(outcome) for outcome in outcomes]).rstrip())
    return 1 if any(outcome.status == "failed" for outcome in outcomes) else 0
