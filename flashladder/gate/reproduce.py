"""The last step of `nox -s reproduce`: everything this machine can prove about the wheels that were just built.

With a GPU: each kernel is checked against a high-precision reference and timed beside FA2; results, table and plot go
to `build/reproduce/` and never touch the committed ones. Without one, the emulator checks the PTX of each kernel on
this CPU by the same rule. With and without: results follow from their raw samples, tables and plot from the results,
machine code is the locked one, claims about it hold, the emulator finds the committed counters and no race, and
progressions fit the published ones. Ends with the table, where the plot is, and one line per check.

Run: ``nox -s reproduce``, or, in an environment that has the wheels, ``python -m flashladder.gate.reproduce``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
import shutil
import sys
import time

from flashladder.arguments import Parser
from flashladder.errors import CheckFailed, one_line_errors
from flashladder.files import files_in, relative, sha256, write_atomic
from flashladder.gate import published as against
from flashladder.gate.command import PROGRESSIONS, Check, Gate, Outcome, attempt, outcome, print_at_once
from flashladder.gate.verify import verify
from flashladder.ladder.iteration import load_all
from flashladder.paths import BUILD, RESULTS
from flashladder.results.files import machine_name

OWN = BUILD / "reproduce"
SECONDS_OF_CHECKS = 900.0  # no iteration is started after this; what is done by then is kept, and a rerun goes on
NO_GPU = "no GPU here: {} cases were checked on the emulator, nothing was timed"


@dataclass(frozen=True)
class Measured:
    """What was done with the kernels on this machine.

    Attributes:
        line: one line about it.
        folder: results of this machine, with the locks and published figures they are held against; None without a GPU.
        outcomes: checks of these results, as the gate makes them.
    """

    line: str
    folder: Path | None = None
    outcomes: tuple[Outcome, ...] = ()


def require_wheels() -> list[str]:
    """Loads all wheels and returns one line about each.

    Raises:
        FlashladderError: a wheel is missing, or lacks a configuration that its iteration names.
    """
    from flashladder.build.installed import load_installed
    from flashladder.ladder.selection import select_configs

    lines = []
    for iteration in load_all():
        installed = load_installed(iteration.number)
        for config in select_configs(iteration, "prog"):
            installed.require(config)
        lines.append(f"iteration {iteration.number:2d}: {len(installed.built)} kernels")
    return lines


def own_folder(uuid: str, results: Path = RESULTS) -> Path:
    """A results folder for one card and one state of the locks, so that a rerun goes on and a change starts afresh."""
    locks = files_in(results / "locks", "*.json")
    folder = OWN / sha256(uuid + "".join(sha256(path.read_bytes()) for path in locks))[:12]
    for name in ("locks", "published"):
        shutil.copytree(results / name, folder / name, dirs_exist_ok=True)
    return folder


def measure() -> Measured:
    """Checks and times every iteration on this machine's GPU, and renders its own report.

    Raises:
        CheckFailed: a kernel computes something wrong.
    """
    from flashladder.toolchain import gpu_arch

    if gpu_arch() is None:
        return emulate()
    from flashladder.bench import command as bench
    from flashladder.check import command as check
    from flashladder.gpu.device import open_device
    from flashladder.report import command as report
    from flashladder.report.data import collect

    gpu = open_device().gpu
    folder = own_folder(gpu.uuid)
    machine = folder / machine_name(gpu.name)
    check.main(["--all", f"--budget={SECONDS_OF_CHECKS:g}", f"--out={machine / 'check.json.gz'}"])
    bench.main(["--all", f"--out={machine / 'bench.json.gz'}"])
    ladder = collect(folder)
    for name, data in report.render(ladder).items():
        write_atomic(folder / name, data)
    found = [f"{one.path}: {line}" for one in verify(machine) for line in one.details]
    problems, told = against.against_published(ladder)
    beside = against.beside_committed(folder)
    outcomes = (
        outcome("documents follow from their samples and the locks", found, "bench, check"),
        outcome(PROGRESSIONS, problems, told),
        outcome("cells are those of results/", beside.problems, f"{beside.n} cells"),
    )
    named = tuple(replace(one, name=f"this machine: {one.name}") for one in outcomes)
    return Measured(f"checked and timed on this GPU: {relative(machine)}", folder, named)


def emulate() -> Measured:
    """Checks the PTX of every iteration on this CPU: fp16 and bf16, the published A100 configurations, small shapes."""
    start = time.monotonic()
    from flashladder.check.command import Emulated

    report = Emulated().check_many([iteration.number for iteration in load_all()])
    kernels = {case.kernel for case in report.cases}
    failures = [f"{case.kernel} {case.case}: {case.reason}" for case in report.failures]
    summary = f"{len(kernels)} kernels, {len(report.cases)} cases, {time.monotonic() - start:.0f} s"
    status = "ok" if report.passed else "failed"
    found = Outcome("this CPU: checks passed on the emulator", status, tuple(failures), summary)
    return Measured(NO_GPU.format(len(report.cases)), outcomes=(found,))


def compiled() -> list[Check]:
    """What only a compiler can tell of this checkout."""
    from flashladder.emulate import reading
    from flashladder.lock import command as lock
    from flashladder.lock import step_counts

    return [
        Check("machine code is the locked one", lock.check),
        Check("counts of the steps are up to date", step_counts.check),
        Check("emulated counters are up to date", reading.check),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Verifies, prints the table and one line per check; exit code 1 when a check failed."""
    parser = Parser(
        prog="python -m flashladder.gate.reproduce",
        description="Everything this machine can prove about the built iterations.",
        epilog="example: nox -s reproduce",
    )
    parser.parse_args(argv)
    from flashladder.report import tables as report_tables
    from flashladder.report.command import PLOT, REPORT
    from flashladder.report.data import collect

    with one_line_errors():
        wheels = require_wheels()
        measured = measure()
        outcomes = list(measured.outcomes)
        for one in outcomes:
            print_at_once(one)
        outcomes += Gate().run(print_at_once)
        for check in compiled():
            outcomes.append(attempt(check))
            print_at_once(outcomes[-1])
        print(report_tables.terminal(collect(measured.folder or RESULTS)))
        where = measured.folder or REPORT
        print(f"\nplot    {relative(where / PLOT)}.svg, .png\ntables  {relative(where / 'progression.md')}, .csv")
        print(f"\n{len(wheels)} wheels loaded; {measured.line}")
        failed = [one.name for one in outcomes if one.status == "failed"]
        if failed:
            raise CheckFailed("not reproduced: " + ", ".join(failed), hint="the lines above say which cell and why")
    print("reproduced: every check that this machine can run holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
