"""``ptxemu run``: an ordinary CUDA program on a machine without a GPU.

    ptxemu run ./my_test --gtest_filter='Scan*'
    ptxemu run saxpy.cu

The program runs as it is, with a stand-in for the CUDA runtime and driver (stand_in.cpp). Its kernels run here, from
the PTX inside it, so that its own checks see the results; races, missing waits and bad accesses are reported on stderr.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
import hashlib
import json
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import tempfile

from ptxemu.command import CUDA, SCHEDULES_HELP, Parser, Progress, count_of, schedules_of
from ptxemu.errors import PtxemuError, printable
from ptxemu.findings import Case, Finding, Outputs, differing, of_launch
from ptxemu.host.device import Device, Launch, Options, Refused
from ptxemu.host.gpus import GPUS
from ptxemu.host.server import Server
from ptxemu.machine.observer import Observer
from ptxemu.nvcc import compile_program, host_compiler
from ptxemu.run.launch import MAX_INSTRUCTIONS
from ptxemu.screen import covered
from ptxemu.text import output_file, parse_bytes, write_whole

HERE = Path(__file__).parent
NAMES = ("libcudart.so.13", "libcuda.so.1")  # as programs load it
LINKS = (NAMES[1], "libcudart.so", "libcuda.so")  # the last two are for the linker
EXPORTS = (  # symbols with the versions that programs ask for
    "libcudart.so.13 { global: cuda[A-Z]*; __cuda*; };\nlibcuda.so.1 { global: cu[A-Z]*; local: *; };\n"
)
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden")
SCHEMA_VERSION = 2
SIGNALLED = 128  # exit codes of signals begin there
SHOWN = 20  # hazards of one launch on the screen


def parser() -> Parser:
    """The options."""
    made = Parser(
        prog="ptxemu run",
        usage="ptxemu run [options] PROGRAM [arguments of the program]",
        description="Runs a CUDA program without a GPU: its kernels run on this CPU, from the PTX inside it. "
        "Races, missing waits and bad accesses are reported.",
        epilog="example: ptxemu run ./my_test, or: ptxemu run saxpy.cu. The program has to use the shared runtime "
        "(nvcc -cudart shared). Exit code: 1 a hazard, or something that a kernel may not do; 2 it could not run; else "
        "that of the program.",
        allow_abbrev=False,
    )
    made.add_argument("--gpu", choices=sorted(GPUS), default="h100", help="what the program finds (default: h100)")
    made.add_argument("--no-hazards", action="store_true", help="only run the kernels: faster")
    order = "order in which ready warps run: together (default), reverse, elect-last, or a seed"
    made.add_argument("--schedule", default="", help=order)
    made.add_argument("--schedules", default="1", metavar="N", help=SCHEDULES_HELP)
    exited = "exited threads count as arrived at a block's barrier"
    made.add_argument("--exited-arrive", action="store_true", help=exited)
    made.add_argument("--memory-budget", default="1GiB", help="registers and shared memory at a time (default: 1GiB)")
    most = "instructions of a launch, all threads together counting once, before it is stopped"
    made.add_argument("--max-instructions", default=str(MAX_INSTRUCTIONS), help=f"{most} (default: {MAX_INSTRUCTIONS})")
    made.add_argument("--json", default="", metavar="FILE.json", help="write every launch and hazard to a file")
    Outputs.add(made)
    made.add_argument("--arch", default="", help="of a .cu file: what it is compiled for (default: that of --gpu)")
    libraries = "only print the folder of the libraries to link with, for an nvcc without libcudart.so"
    made.add_argument("--libraries", action="store_true", help=libraries)
    made.add_argument(
        "program", metavar="PROGRAM", nargs="?", help="an executable, or a CUDA file with a main function"
    )
    made.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    return made


@dataclass
class Report:
    """What all launches showed, told on stderr as it happens."""

    outputs: Outputs = field(default_factory=Outputs)
    launches: list[Launch] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)  # of all launches, by fingerprint
    cases: dict[str, Case] = field(default_factory=dict)  # by kernel
    refused: list[PtxemuError] = field(default_factory=list)  # what a GPU would have done

    def launched(self, launch: Launch) -> None:
        """A launch has ended: its findings that are new, and not known."""
        self.launches.append(launch)
        found = of_launch(launch.kernel, launch.hazards, launch.error)
        known = self.cases.get(launch.kernel, Case(launch.kernel, 0.0, ()))
        self.cases[launch.kernel] = Case(known.kernel, known.seconds + launch.seconds, (*known.findings, *found))
        new = [one for one in differing(found) if one.fingerprint not in self.findings]
        self.findings |= {one.fingerprint: one for one in new}
        shown = [one for one in new if one.fingerprint not in self.outputs.known]
        if shown:
            say(f"{launch.kernel}, launch {len(self.launches)}, grid {launch.grid}, block {launch.block}:")
        for one in shown[:SHOWN]:
            say(f"  {one.message}")
        for name, schedule in launch.differing.items():
            say(f"{launch.kernel}, launch {len(self.launches)}: {name} holds other numbers with --schedule {schedule}")
        if len(shown) > SHOWN:
            say(f"  {len(shown) - SHOWN} more")

    def complained(self, error: PtxemuError) -> None:
        """A call could not be done: by a GPU neither, or only here, which the exit code tells."""
        if not isinstance(error, Refused) or error.here:
            self.refused.append(error)
        say(str(error))

    @property
    def failed(self) -> bool:
        """Whether something was found that counts."""
        return any(map(self.outputs.counts, self.findings.values()))

    def summary(self) -> str:
        """One line."""
        lanes = sum(launch.lane_instructions for launch in self.launches)
        seconds = sum(launch.seconds for launch in self.launches)
        times = f"{_counted(len(self.launches), 'launch')} of {_counted(len(self.cases), 'kernel')}"
        new = [one for one in self.findings.values() if one.fingerprint not in self.outputs.known]
        hazards = sum(one.level == "error" and not one.ended for one in new)
        warnings, ended = sum(one.level == "warning" for one in new), sum(one.ended for one in new)
        verdict = [f"HAZARDS: {hazards}"] if hazards else []
        verdict += [_counted(ended, "error") + " that ended a launch"] if ended else []
        if not verdict and not self.refused:
            verdict = [self._covered() if len(new) == len(self.findings) else "no new hazards"]
        verdict += [_counted(warnings, "warning")] if warnings else []
        verdict += [f"{_counted(len(self.refused), 'thing')} could not be run, see above"] if self.refused else []
        verdict += [f"{known} known"] if (known := len(self.findings) - len(new)) else []
        return f"{times}, {lanes:,} lane-instructions in {seconds:.1f} s: {', '.join(verdict)}"

    def _covered(self) -> str:
        """What "no hazards" stands for."""
        watched = [one for one in self.launches if one.watched]
        if not watched:
            return "no hazards were looked for" if self.launches else "nothing was launched, so nothing was checked"
        open_ = next((one for one in watched if one.may_differ), None)
        if open_ is None:
            return "no hazards in any schedule of these launches"
        return f"no hazards {covered(open_.may_differ, max(len(one.schedules) for one in watched))}"

    def as_json(self, code: int) -> str:
        """The same facts for scripts."""
        launches = [
            {
                "kernel": one.kernel, "grid": one.grid, "block": one.block, "cluster": one.cluster,
                "shared_bytes": one.shared_bytes, "lane_instructions": one.lane_instructions,
                "seconds": round(one.seconds, 6), "error": None if one.error is None else one.error.fields(),
                "schedules": one.schedules, "any_schedule": one.watched and not one.may_differ,
                "numbers_differ": {name: str(schedule) for name, schedule in one.differing.items()},
                "may_differ": one.may_differ, "hazards": [hazard.fields() for hazard in one.hazards],
            }
            for one in self.launches
        ]  # fmt: skip
        facts = {"schema_version": SCHEMA_VERSION, "exit_code": code, "failed": self.failed, "launches": launches}
        return json.dumps(facts | {"refused": [str(error) for error in self.refused]}, indent=2) + "\n"


def _counted(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def say(line: str) -> None:
    """One line on stderr, which the program may use, too."""
    print(f"ptxemu: {printable(line)}", file=sys.stderr, flush=True)


def stand_in() -> Path:
    """The folder of the stand-in's libraries, compiled at the first use (3 s) and kept in the user's cache.

    Raises:
        PtxemuError: there is no C++ compiler, or it fails.
    """
    source = HERE / "stand_in.cpp"
    digest = hashlib.sha256(source.read_bytes() + EXPORTS.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "ptxemu" / digest
    if (folder / NAMES[1]).exists():
        return folder
    compiler = host_compiler()
    if compiler is None:
        hint = "install one, for example: apt install g++"
        what = "`ptxemu run` needs a C++ compiler at its first use"
        raise PtxemuError(what, expected="g++ on PATH, or $CXX", hint=hint)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        room = tempfile.TemporaryDirectory(dir=folder.parent)
    except OSError as error:
        what, hint = "the stand-in for the CUDA runtime cannot be kept", "set XDG_CACHE_HOME to a folder of yours"
        raise PtxemuError(what, where=folder.parent, found=error.strerror, hint=hint) from error
    with room as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        exports = Path(scratch) / "exports.map"
        exports.write_text(EXPORTS)
        link = (f"-Wl,-soname,{NAMES[0]}", f"-Wl,--version-script={exports}", "-ldl", "-lpthread")
        command = [compiler, *FLAGS, str(source), "-o", str(made / NAMES[0]), *link]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            for line in done.stderr.splitlines():
                say(line)
            raise PtxemuError("the stand-in for the CUDA runtime could not be compiled", where=compiler)
        for name in LINKS:
            (made / name).symlink_to(NAMES[0])
        try:
            made.rename(folder)
        except OSError:
            if not (folder / NAMES[1]).exists():  # no other process has made it meanwhile
                raise
    return folder


def run(argv: Sequence[str]) -> int:
    """Runs the program that the command line names; the exit code.

    Raises:
        PtxemuError: a bad option, or a program that cannot be started.
        SystemExit: after ``--help``.
    """
    words = list(argv)
    if "--" in words:  # before the program's name it changes nothing
        words.remove("--")
    given = parser().parse_args(words)
    if given.libraries:
        print(stand_in())
        return 0
    if given.program is None:
        raise PtxemuError("no program is named", expected="ptxemu run [options] PROGRAM", found="options alone")
    most = count_of(given.max_instructions, "--max-instructions")
    kept = output_file(given.json, ".json", "--json") if given.json else None
    schedules = tuple(schedules_of(given.schedule, given.schedules))
    if given.no_hazards and len(schedules) > 1:
        raise PtxemuError("--schedules", expected="no --no-hazards beside it", found="both")
    options = Options(
        GPUS[given.gpu], not given.no_hazards, schedules, given.exited_arrive, parse_bytes(given.memory_budget), most
    )
    report = Report(Outputs.of(given))
    if given.no_hazards and report.outputs.wanted:
        raise PtxemuError(
            "--no-hazards", expected="no --sarif, --junit, --baseline or --strict beside it", found="both"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="ptxemu-") as folder:
            command, name = _command(given, Path(folder)), Path(given.program).name
            own = _supervised(command, name, options, report, Path(folder))
    except PtxemuError as error:
        report.outputs.refuse(given.program, error)
        raise
    code = 1 if report.failed else 2 if report.refused and own < SIGNALLED else own
    say(report.summary() + (f"; the program's exit code is {own}" if own else ""))
    if kept is not None:
        write_whole(kept, report.as_json(code).encode())
    report.outputs.write(given.program, list(report.cases.values()), [str(error) for error in report.refused], own)
    if report.outputs.update:
        say(f"{_counted(len(report.findings), 'finding')} known from now on: {report.outputs.baseline}")
    return code


def _command(given: argparse.Namespace, folder: Path) -> list[str]:
    """The program and its arguments; a CUDA file is compiled into `folder` first."""
    path = Path(given.program)
    if path.suffix == CUDA:
        if not path.is_file():
            raise PtxemuError("not a regular file" if path.exists() else "no such file", where=path)
        capability = GPUS[given.gpu].capability
        arch = given.arch or f"sm_{capability}{'a' if capability == 90 else ''}"
        return [str(compile_program(path, arch, folder, stand_in())), *given.arguments]
    if given.arch:
        raise PtxemuError("--arch is for a CUDA file", expected="FILE.cu", found=repr(given.program))
    found = shutil.which(given.program)
    if found is None:
        what = "a folder, not a program" if path.is_dir() else "not executable" if path.exists() else "no such program"
        hint = "chmod +x it, or name what runs it" if path.is_file() else "a program beside you is ./its_name"
        raise PtxemuError(what, where=given.program, expected="an executable, or FILE.cu", hint=hint)
    return [found, *given.arguments]


def _supervised(command: list[str], name: str, options: Options, report: Report, folder: Path) -> int:
    """Starts the program, answers it until it has ended, and returns its exit code, 128 and more for a signal."""
    shown = list[Progress]()

    def watch(kernel: str, blocks: int) -> tuple[Progress, Observer]:
        shown[:] = [Progress(kernel, blocks)]
        return shown[0], shown[0]

    def launched(launch: Launch) -> None:
        shown[0].clear()
        report.launched(launch)

    libraries, path = stand_in(), folder / "socket"
    server = Server(path, lambda: Device(name, options, launched, watch), report.complained)
    environment = dict(os.environ)
    environment["PTXEMU_SOCKET"] = str(path)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the program ends, too
    for variable, value in (("LD_LIBRARY_PATH", str(libraries)), ("LD_PRELOAD", NAMES[0])):
        environment[variable] = os.pathsep.join(filter(None, (value, environment.get(variable))))
    try:
        with subprocess.Popen(command, env=environment) as program:
            try:
                code = program.wait()
            except (KeyboardInterrupt, SystemExit) as ended:
                program.send_signal(signal.SIGINT if isinstance(ended, KeyboardInterrupt) else signal.SIGTERM)
                program.wait()
                raise
    except OSError as error:
        raise PtxemuError(error.strerror or str(error), where=command[0]) from error
    finally:
        server.close()
    if server.failure is not None:
        raise server.failure
    if code < 0:
        why = "; the host may not use device addresses" if -code == signal.SIGSEGV else ""
        say(f"{name} was ended by signal {-code} ({signal.strsignal(-code)}){why}")
    return code if code >= 0 else 128 - code
