"""Every check of the committed numbers (``invoke gate``), and of newly built wheels (the end of `nox -s reproduce`).

The gate recomputes every committed number and table from its source, and fails if one differs. Documents must follow
from their raw samples and the locks (`flashladder.gate.verify`). Claims of the iterations must hold on PTX, SASS and
counters. Our figures must agree with the published ones. Tables, plots and notes must render to the committed bytes. No
check needs a GPU or a compiler (``python -m flashladder.lock verify`` compiles). All checks run, even if one fails.

`nox -s reproduce` adds what this machine can prove. With a GPU it checks each kernel against a high-precision reference
and times it alternating with FA2. Results, table and plot go to `build/reproduce/`, never over the committed ones.
Without a GPU the emulator checks the PTX of each kernel on this CPU, with the same bounds.

Run: ``invoke gate``, ``nox -s reproduce``, or, in an environment that has the wheels,
``python -m flashladder.gate.reproduce``. Exit code: 0 all checks passed, 1 a check failed, 2 it could not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
import runpy
import shutil
import threading
import time
from typing import Any

from flashladder import parallel
from flashladder.arguments import Parser
from flashladder.emulate import reading as emulated
from flashladder.errors import Checked, CheckFailed, FlashladderError, require_checkout, run_main, say
from flashladder.explain.predict import load_predictions
from flashladder.files import dump_json, files_in, relative, sha256, write_atomic
from flashladder.gate import verify
from flashladder.gate.published import Comparison, compare_with_committed, compare_with_peers, compare_with_published
from flashladder.gate.verify import Outcome, outcome, print_at_once
from flashladder.gpu.ncu import PEER, REGISTER_TOLERANCE, read_peer
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_all
from flashladder.ladder.selection import select_configs
from flashladder.lock import code_claims
from flashladder.lock.schema import LockFile, read_lock
from flashladder.names import PUBLISHED_GPU, REGISTERS
from flashladder.paths import BUILD, RESULTS, ROOT
from flashladder.report import command as report
from flashladder.report import tables as report_tables
from flashladder.report.data import Ladder, collect
from flashladder.results import published
from flashladder.results.files import load_as, machine_name
from flashladder.results.schema import EmulatedCheckResult

PROGRESSIONS = "our percentages agree with the published ones"
MOST_SPILLS = 88  # bytes of spill stores per thread: as the published (128, 64, 4) kernels at 255 registers
FOLDERS = "files named in the READMEs exist; every timed kernel was checked for correctness"
SPILLING_TILE, ALL_REGISTERS = "128,64,4", 255
PEER_ARCH = "sm_90"  # the architecture of the published kernels whose registers are known


@dataclass(frozen=True)
class Check:
    """`run` returns problems, and a summary or a count. `unit` names what is counted. An exception is a failure."""

    name: str
    run: Callable[[], tuple[Sequence[str], str] | Comparison | Checked]
    unit: str = "kernels"


def attempt(check: Check) -> Outcome:
    """Runs one check. An exception fails only this check, so that the others run, too."""
    try:
        found = check.run()
    except Exception as error:  # noqa: BLE001 - a defect of one check must not hide the results of the others
        return Outcome(check.name, "failed", details=(verify.error_line(error),))
    if isinstance(found, Checked):
        failure = (str(found.failure),) if found.failure else ()
        done = outcome(check.name, (*found.problems, *failure), found.summary)
        return done if done.details else replace(done, details=found.notes)
    problems, compared = found
    if not compared and not problems:
        return Outcome(check.name, "skipped", details=("nothing of this kind under results/",))
    return outcome(check.name, problems, compared if isinstance(compared, str) else f"{compared:,} {check.unit}")


def lock_problems(lock: LockFile) -> list[str]:
    """Kernels that are missing, unused or spill too much, or whose registers differ from the published ones."""
    problems = []
    ladder = {iteration.number: iteration for iteration in load_all()}
    peers = read_peer(PEER) if lock.arch == PEER_ARCH else {}
    for step in sorted(ladder.keys() | lock.iterations.keys()):
        locks_it = step in ladder and lock.arch in ladder[step].family.targets.arches
        wanted = {config.short_form() for config in select_configs(ladder[step], "prog")} if locks_it else set()
        held = lock.iterations[step].kernels if step in lock.iterations else {}
        published = ladder[step].configs[PUBLISHED_GPU].short_form() if step in ladder and step in peers else None
        lines = [f"{form}: missing from the lock" for form in sorted(wanted - held.keys())]
        lines += [f"{form}: locked, but no step uses it" for form in sorted(held.keys() - wanted)]
        for form, kernel in held.items():
            full = KernelConfig.parse(form).tile == SPILLING_TILE and kernel.registers == ALL_REGISTERS
            allowed = MOST_SPILLS if full else 0
            if kernel.spill_stores > allowed:
                lines.append(f"{form}: spills {kernel.spill_stores} bytes, at most {allowed}")
            if form == published and abs(kernel.registers - peers[step][REGISTERS]) > REGISTER_TOLERANCE:
                expected = f"expected {peers[step][REGISTERS]} within {REGISTER_TOLERANCE}, as the published kernel"
                lines.append(f"{form}: {kernel.registers} registers, {expected}")
        problems += [f"{lock.arch}: iteration {step}, {line}" for line in lines]
    return problems


class Gate:
    """The checks of the checkout. Data that several checks need is read once."""

    def __init__(self) -> None:
        self.folders = verify.machine_folders()
        self.background, self.stop = ThreadPoolExecutor(1), threading.Event()

    @cached_property
    def ladder(self) -> Ladder:
        """The data of all tables."""
        return collect()

    @cached_property
    def verified(self) -> Future[list[Outcome]]:
        """The outcome of every document; worker processes verify them in the background."""
        files = [path for folder in self.folders for path in verify.documents(folder)]
        return self.background.submit(parallel.over, verify.verify_file, files, "documents", stop=self.stop)

    def checks(self) -> list[Check]:
        """Every check: the quick ones, then tables, then the documents, which take longest."""
        n_published = len(files_in(published.PUBLISHED, "*.csv"))
        return [
            Check("published CSVs are unmodified copies", lambda: (published.problems(), n_published), "files"),
            Check("claims about machine code and PTX", code_claims.check),
            Check("claims about counters, measured", emulated.check_hardware_claims),
            Check("claims about counters, emulated", emulated.check_claims),
            Check("the emulator counts what GPUs count, and finds no race", _emulator_agrees),
            Check("every kernel is locked; registers and spills stay within the published ones", _locks),
            Check("results belong to locked machine code", self._results_locked),
            Check(PROGRESSIONS, lambda: compare_with_published(self.ladder, RESULTS)),
            Check("kernels are as fast as the published ones", lambda: compare_with_peers(self.ladder), "figures"),
            Check(FOLDERS, self._complete_folders, "folders"),
            Check(
                "tables and plots follow from the results", lambda: _outdated(report.committed(self.ladder)), "files"
            ),
            Check("the report's page follows from the results", lambda: _outdated(report.pages(self.ladder)), "file"),
            Check("notes on the iterations follow from the results", lambda: _outdated(_notes(self.ladder)), "notes"),
            Check("the model's table follows from its predictions", lambda: _outdated(_model()), "files"),
            Check("documents follow from their samples and the locks", self._verified_documents, "documents"),
        ]

    def run(self, tell: Callable[[Outcome], object] = lambda _: None, more: Sequence[Check] = ()) -> list[Outcome]:
        """Runs every check and `more`, with a progress bar; calls `tell` with each outcome at once."""
        outcomes = []
        checks = [*self.checks(), *more]
        _ = self.verified  # starts the background processes
        parallel.tune_gc()
        with self.background, parallel.Bar(total=len(checks), desc="gate", unit="check") as bar:
            try:
                for check in checks:
                    bar.set_postfix_str(check.name)
                    outcomes.append(attempt(check))
                    tell(outcomes[-1])
                    bar.update()
            finally:
                self.stop.set()  # on Ctrl-C, cancel the background verification
        return outcomes

    def _results_locked(self) -> Comparison:
        return self.ladder.refused, sum(len(machine.measured) for machine in self.ladder.machines)

    def _complete_folders(self) -> Comparison:
        found = [one for folder in self.folders for one in verify.verify_folder(folder)]
        return [f"{one.name}: {one.summary}: {line}" for one in found for line in one.details], len(self.folders)

    def _verified_documents(self) -> Comparison:
        found = self.verified.result()
        return [f"{one.name}: {line}" for one in found for line in one.details], len(found)


def _outdated(files: Mapping[Path, bytes]) -> Comparison:
    return report.stale(files), len(files)


def _notes(ladder: Ladder) -> dict[Path, bytes]:
    """Notes on the iterations, which `analysis/render_notes.py` makes from claims, locks and results."""
    made: dict[Path, str] = _script("render_notes")["notes"](ladder)
    return {path: text.encode() for path, text in made.items()}


def _model() -> dict[Path, bytes]:
    """Table and plot of `analysis/explain_validation.py`: the model's predictions against the results."""
    return dict(_script("explain_validation")["rendered"](load_predictions()))


def _script(name: str) -> dict[str, Any]:
    """What a script of `analysis/` defines."""
    return runpy.run_path(str(ROOT / "analysis" / f"{name}.py"))


def _emulator_agrees() -> Comparison:
    """The emulator's committed counters equal a GPU's, its PTX is locked and has no race, its table is up to date."""
    reading = emulated.load_reading()
    found = [line for file in emulated.hardware_files() for line in emulated.problems(file, reading)]
    return [*found, *emulated.reading_problems(emulated.READING), *emulated.stale(reading)], len(reading.kernels)


def _locks() -> Comparison:
    every = [read_lock(arch) for arch in LOCK_ARCHES]
    n = sum(len(entry.kernels) for lock in every for entry in lock.iterations.values())
    return [line for lock in every for line in lock_problems(lock)], n


def gate(*, as_json: bool = False) -> int:
    """Runs the gate and prints a line for each check at once; returns exit code 1 if a check failed."""
    require_checkout("gate")
    outcomes = Gate().run() if as_json else Gate().run(print_at_once)
    if as_json:
        say(dump_json([asdict(one) for one in outcomes]).rstrip())
    return 1 if any(one.status == "failed" for one in outcomes) else 0


OWN = BUILD / "reproduce"
EMULATED = OWN / "emulator.json.gz"  # what an earlier run proved on this CPU
SECONDS_OF_CHECKS = 900.0  # the check starts no further iteration after this; a rerun continues with the rest
NO_GPU = "no GPU here: {} cases were checked on the emulator, nothing was timed"


@dataclass(frozen=True)
class Measured:
    """What this machine did with the kernels."""

    line: str  # summary
    folder: Path | None = None  # of the new results; None: no GPU, so nothing was timed
    outcomes: tuple[Outcome, ...] = ()  # of the checks of these results


def require_wheels() -> int:
    """Loads all wheels and returns their number; one that is missing, or lacks a configuration, is an error."""
    from flashladder.build.wheel import load_installed

    ladder = load_all()
    for iteration in ladder:
        installed = load_installed(iteration.number)
        for config in select_configs(iteration, "prog"):
            installed.require(config)
    return len(ladder)


def own_folder(uuid: str, results: Path = RESULTS) -> Path:
    """The results folder for this card and these locks. A rerun continues in it; other locks get a new folder."""
    locks = files_in(results / "locks", "*.json")
    folder = OWN / sha256(uuid + "".join(sha256(path.read_bytes()) for path in locks))[:12]
    for name in ("locks", "published"):
        shutil.copytree(results / name, folder / name, dirs_exist_ok=True)
    return folder


def measure(stop: threading.Event | None = None) -> Measured:
    """Checks and times every iteration on this machine's GPU, and renders its own report; without a GPU `emulate`.

    Raises `CheckFailed` if a kernel is wrong.
    """
    from flashladder.toolchain import gpu_arch

    if gpu_arch() is None:
        return emulate(stop)
    from flashladder.bench import command as bench
    from flashladder.check import command as check
    from flashladder.gpu.device import open_device

    gpu = open_device().gpu
    folder = own_folder(gpu.uuid)
    machine = folder / machine_name(gpu.name)
    check.main(["--all", f"--budget={SECONDS_OF_CHECKS:g}", f"--out={machine / 'check.json.gz'}"])
    bench.main(["--all", f"--out={machine / 'bench.json.gz'}"])
    ladder = collect(folder)
    for name, data in report.render(ladder).items():
        write_atomic(folder / name, data)
    found = [f"{one.name}: {line}" for one in verify.verify(machine) for line in one.details]
    problems, n_cells = compare_with_committed(folder)
    outcomes = (
        outcome("documents follow from their samples and the locks", found, "bench, check"),
        outcome(PROGRESSIONS, *compare_with_published(ladder)),
        outcome("timings agree with results/ of the same GPU model", problems, f"{n_cells} cells"),
    )
    named = tuple(replace(one, name=f"this machine: {one.name}") for one in outcomes)
    return Measured(f"checked and timed on this GPU: {relative(machine)}", folder, named)


def emulate(stop: threading.Event | None = None) -> Measured:
    """Checks the PTX of every iteration on this CPU: fp16 and bf16, the published A100 configurations, one launch each.

    What an earlier run proved about the same PTX, with the same emulator, is not proved again. `stop` ends it.
    """
    start = time.monotonic()
    from flashladder.cases.inputs import proof_cases
    from flashladder.check import command as check

    try:
        load_as(EMULATED, EmulatedCheckResult)
    except FlashladderError:  # missing, or damaged
        EMULATED.unlink(missing_ok=True)
    numbers = [iteration.number for iteration in load_all()]
    report = check.checked(check.Emulated(cases=proof_cases), numbers, EMULATED, stop)
    kernels = {case.kernel for case in report.cases}
    failures = [f"{case.kernel} {case.case}: {case.reason}" for case in report.failures]
    summary = f"{len(kernels)} kernels, {len(report.cases)} cases, {time.monotonic() - start:.0f} s"
    if not report.passed and not failures:
        failures = ["no case passed"]
    found = outcome("this CPU: checks passed on the emulator", failures, summary)
    return Measured(NO_GPU.format(len(report.cases)), outcomes=(found,))


def built_code() -> Checked:
    """Whether the machine code for the architectures that are built here is the locked one."""
    from flashladder.build.compile import default_arch
    from flashladder.lock import command as lock

    return lock.check(tuple(dict.fromkeys(default_arch(iteration.family) for iteration in load_all())))


def measure_and_gate() -> tuple[Measured, list[Outcome]]:
    """`measure` and the gate, with a line for each check. On the emulator both at once; on a GPU the gate waits."""
    from flashladder.toolchain import gpu_arch

    locks = Check("the machine code that is built here is the locked one", built_code)
    if gpu_arch() is not None:
        measured = measure()
        for one in measured.outcomes:
            print_at_once(one)
        return measured, [*measured.outcomes, *Gate().run(print_at_once, [locks])]
    stop = threading.Event()
    with ThreadPoolExecutor(1) as background:
        try:
            emulated = background.submit(measure, stop)
            gated = Gate().run(print_at_once, [locks])
            measured = emulated.result()
        finally:
            stop.set()  # on Ctrl-C, ends the emulator's processes
    for one in measured.outcomes:
        print_at_once(one)
    return measured, [*measured.outcomes, *gated]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints one line per check and the table; exit code 1 if a check failed."""
    description = "Everything this machine can prove about the built iterations."
    epilog = "example: nox -s reproduce"
    Parser(prog="python -m flashladder.gate.reproduce", description=description, epilog=epilog).parse_args(argv)

    n_wheels = require_wheels()
    measured, outcomes = measure_and_gate()
    print(report_tables.terminal(collect(measured.folder or RESULTS)))
    where = measured.folder or report.REPORT
    print(f"\nplot    {relative(where / report.PLOT)}.svg, .png")
    print(f"tables  {relative(where / 'progression.md')}, .csv")
    print(f"\n{n_wheels} wheels loaded; {measured.line}")
    failed = [one.name for one in outcomes if one.status == "failed"]
    if failed:
        raise CheckFailed("not reproduced: " + ", ".join(failed), hint="the lines above say which cell and why")
    print("reproduced: every check that this machine can run holds")


if __name__ == "__main__":
    run_main(main)
