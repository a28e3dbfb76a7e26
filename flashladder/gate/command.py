"""The gate: derives every committed number and table again from its source, and fails where one differs.

Documents follow from their raw samples and from the locks (`flashladder.gate.verify`), claims of the iterations hold on
PTX, SASS and counters, measured figures fit the published ones, and tables, plots and notes render to the committed
bytes. No check needs a GPU or a compiler (what only a compiler can tell: ``python -m flashladder.lock verify``), and
none hides another.

Run: ``invoke gate``. Exit code: 0 all hold, 1 a check failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
import runpy
import threading

from tqdm import tqdm

from flashladder import parallel
from flashladder.emulate import reading as emulated
from flashladder.errors import Checked, failures, require_checkout, say
from flashladder.files import dump_json, files_in
from flashladder.gate import published as against
from flashladder.gate.verify import (
    Outcome,
    documents,
    machine_folders,
    outcome,
    print_at_once,
    verify_file,
    verify_folder,
)
from flashladder.gpu.ncu import PEER, REGISTER_TOLERANCE, read_peer
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_all
from flashladder.ladder.selection import select_configs
from flashladder.lock import code_claims
from flashladder.lock.schema import LockFile, read_lock
from flashladder.names import PUBLISHED_GPU, REGISTERS
from flashladder.paths import RESULTS, ROOT
from flashladder.report import command as report
from flashladder.report.data import Ladder, collect
from flashladder.results import published
from flashladder.results.derive import Found

PROGRESSIONS = "progressions fit the published ones"
MOST_SPILLS = 88  # bytes of spill stores per thread at 255 registers: the published (128, 64, 4) kernels
SPILLING_TILE, ALL_REGISTERS = "128,64,4", 255
PEER_ARCH = "sm_90"  # of the published kernels whose registers were read


@dataclass(frozen=True)
class Check:
    """A named check; `run` may raise, and `unit` is what a `Found` counts."""

    name: str
    run: Callable[[], Found | Checked | Outcome]
    unit: str = "kernels"


def attempt(check: Check) -> Outcome:
    """The outcome of one check; an error of any kind fails this check alone."""
    try:
        found = check.run()
    except failures() as error:
        return Outcome(check.name, "failed", details=(str(error),))
    except Exception as error:  # noqa: BLE001 - a defect of one check must not hide what the others say
        told = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(check.name, "failed", details=(told,))
    if isinstance(found, Checked):
        failure = (str(found.failure),) if found.failure else ()
        done = outcome(check.name, (*found.problems, *failure), found.summary)
        return done if done.details else replace(done, details=found.notes)
    if isinstance(found, Found):
        if not found.n and not found.problems:
            return Outcome(check.name, "skipped", details=("nothing of this kind under results/",))
        return outcome(check.name, found.problems, f"{found.n:,} {check.unit}")
    return found


def lock_problems(lock: LockFile) -> list[str]:
    """Kernels that a lock lacks or should not hold, that spill more than the published ones, or use other registers."""
    found = []
    ladder = {iteration.number: iteration for iteration in load_all()}
    peers = read_peer(PEER) if lock.arch == PEER_ARCH else {}
    for step in sorted(ladder.keys() | lock.iterations.keys()):
        locks_it = step in ladder and lock.arch in ladder[step].family.targets.arches
        wanted = {config.short_form() for config in select_configs(ladder[step], "prog")} if locks_it else set()
        held = lock.iterations[step].kernels if step in lock.iterations else {}
        published = ladder[step].configs[PUBLISHED_GPU].short_form() if step in ladder and step in peers else None
        told = [f"{form}: is not locked" for form in sorted(wanted - held.keys())]
        told += [f"{form}: is locked, but not of the ladder" for form in sorted(held.keys() - wanted)]
        for form, kernel in held.items():
            full = KernelConfig.parse(form).tile == SPILLING_TILE and kernel.registers == ALL_REGISTERS
            allowed = MOST_SPILLS if full else 0
            if kernel.spill_stores > allowed:
                told.append(f"{form}: spills {kernel.spill_stores} bytes, at most {allowed}")
            if form == published and abs(kernel.registers - peers[step][REGISTERS]) > REGISTER_TOLERANCE:
                expected = f"expected {peers[step][REGISTERS]} within {REGISTER_TOLERANCE}, as the published kernel"
                told.append(f"{form}: {kernel.registers} registers, {expected}")
        found += [f"{lock.arch}: iteration {step}, {line}" for line in told]
    return found


class Gate:
    """The checks of the checkout; what several of them need is read once."""

    def __init__(self) -> None:
        self.folders = machine_folders()
        self.background, self.stop = ThreadPoolExecutor(1), threading.Event()

    @cached_property
    def ladder(self) -> Ladder:
        """All that tables are made from."""
        return collect()

    @cached_property
    def verified(self) -> Future[list[Outcome]]:
        """Every document, verified in other processes meanwhile."""
        files = [path for folder in self.folders for path in documents(folder)]
        return self.background.submit(parallel.over, verify_file, files, "documents", stop=self.stop)

    def checks(self) -> list[Check]:
        """Every check: the quick ones, then tables, then the documents, which take longest."""
        return [
            Check("published figures are as taken over", _published_intact, "files"),
            Check("claims about machine code and PTX", code_claims.check),
            Check("claims about counters, measured", emulated.check_hardware_claims),
            Check("claims about counters, emulated", emulated.check_claims),
            Check("the emulator counts what GPUs count, and finds no race", _emulator_agrees),
            Check("every kernel is locked, within the published registers and spills", _locks),
            Check("results belong to locked machine code", self._results_locked),
            Check(PROGRESSIONS, lambda: outcome(PROGRESSIONS, *against.against_published(self.ladder, RESULTS))),
            Check("kernels keep up with their published peers", lambda: against.against_peers(self.ladder), "figures"),
            Check("named files are there, timed kernels were checked", self._folders_whole, "folders"),
            Check("tables and plots are what the results give", lambda: _same(report.committed(self.ladder)), "files"),
            Check("the report's page is what the results give", lambda: _same(report.pages(self.ladder)), "file"),
            Check("notes on the iterations are what the results give", lambda: _same(_notes(self.ladder)), "notes"),
            Check("documents follow from their samples and the locks", self._documents_hold, "documents"),
        ]

    def run(self, tell: Callable[[Outcome], object] = lambda _: None) -> list[Outcome]:
        """Every check's outcome, with a progress bar on a terminal; `tell` gets each as soon as it is known."""
        outcomes = []
        checks = self.checks()
        _ = self.verified  # starts
        parallel.tune_gc()
        with self.background, tqdm(total=len(checks), desc="gate", unit="check", disable=None, leave=False) as bar:
            try:
                for check in checks:
                    bar.set_postfix_str(check.name)
                    outcomes.append(attempt(check))
                    tell(outcomes[-1])
                    bar.update()
            finally:
                self.stop.set()  # after Ctrl-C nobody waits for the documents
        return outcomes

    def _results_locked(self) -> Found:
        return Found(self.ladder.refused, sum(len(machine.measured) for machine in self.ladder.machines))

    def _folders_whole(self) -> Found:
        found = [one for folder in self.folders for one in verify_folder(folder)]
        return Found([f"{one.name}: {one.summary}: {line}" for one in found for line in one.details], len(self.folders))

    def _documents_hold(self) -> Found:
        found = self.verified.result()
        return Found([f"{one.name}: {line}" for one in found for line in one.details], len(found))


def _same(files: Mapping[Path, bytes]) -> Found:
    """Committed files are these bytes, which the results give."""
    return Found(report.stale(files), len(files))


def _notes(ladder: Ladder) -> dict[Path, bytes]:
    """Notes on the iterations, as `analysis/render_notes.py` makes them of claims, locks and results."""
    made: dict[Path, str] = runpy.run_path(str(ROOT / "analysis" / "render_notes.py"))["notes"](ladder)
    return {path: text.encode() for path, text in made.items()}


def _published_intact() -> Found:
    return Found(published.problems(), len(files_in(published.PUBLISHED, "*.csv")))


def _emulator_agrees() -> Found:
    """The emulator's committed counters are a GPU's, of locked PTX without races; the table beside them fits."""
    reading = emulated.load_reading()
    found = [line for file in emulated.hardware_files() for line in emulated.problems(file, reading)]
    return Found([*found, *emulated.reading_problems(emulated.READING), *emulated.stale(reading)], len(reading.kernels))


def _locks() -> Found:
    every = [read_lock(arch) for arch in LOCK_ARCHES]
    n = sum(len(entry.kernels) for lock in every for entry in lock.iterations.values())
    return Found([line for lock in every for line in lock_problems(lock)], n)


def gate(*, as_json: bool = False) -> int:
    """Runs the gate, with a line for each check as soon as it is known; exit code 1 when a check failed."""
    require_checkout("gate")
    outcomes = Gate().run() if as_json else Gate().run(print_at_once)
    if as_json:
        say(dump_json([asdict(one) for one in outcomes]).rstrip())
    return 1 if any(one.status == "failed" for one in outcomes) else 0
