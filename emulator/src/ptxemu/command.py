"""The command: runs a kernel of a PTX or CUDA file on this CPU; what its arrays hold, what it costs, whether it races.

    ptxemu saxpy.cu --grid 4 --block 256 --arg y=float32:1000:ones --arg x=float32:1000:randn --arg a=2.0 \
        --arg n=int32:1000 --save y=y.npy --counters --hazards

`ptxemu.__main__` calls `run`. A PTX file says how wide a parameter is, not what it points to. Arguments are words such
as ``x=float32:1024:randn``, ``n=int32:5`` or ``a=@in.npy``, in the order of the parameters; their names are free.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
import difflib
from io import BytesIO
import math
from pathlib import Path
import re
import sys
import time
from tokenize import TokenError
from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeVar
from zipfile import BadZipFile

import ml_dtypes
import numpy as np

from ptxemu import __version__
from ptxemu.errors import EmulationError, PtxemuError, printable
from ptxemu.findings import Case, Outputs, of_launch
from ptxemu.machine.core import Machine
from ptxemu.machine.observer import Observer
from ptxemu.nvcc import compile_file
from ptxemu.observe.counters import Counters
from ptxemu.observe.hazards import Hazards
from ptxemu.run.engine import ELECT_LAST, REVERSE
from ptxemu.run.launch import MAX_INSTRUCTIONS, Program, Result, load
from ptxemu.screen import Named, Run, as_json, render
from ptxemu.targets import BLOCK_LIMITS, GRID_LIMITS, MAX_CLUSTER
from ptxemu.text import output_file, parse_bytes, write_whole
from ptxemu.values import Array

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

CUDA = ".cu"
DEFAULT_ARCH = "sm_80"
COULD_NOT_RUN = ("syntax", "unsupported", "arguments")  # kinds of `EmulationError` that say nothing against a kernel
FORMS = "DTYPE:SHAPE:FILL (float32:64x128:randn), DTYPE:NUMBER (int32:5), a number, or @FILE.npy"
DTYPES = {
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
FILLS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "zeros": lambda _, shape: np.zeros(shape),
    "ones": lambda _, shape: np.ones(shape),
    "arange": lambda _, shape: np.arange(np.prod(shape, dtype=np.int64)).reshape(shape),
    "randn": lambda rng, shape: rng.standard_normal(shape),
    "rand": lambda rng, shape: rng.random(shape),
    "nan": lambda _, shape: np.full(shape, np.nan),
}
FRACTIONS = ("randn", "rand", "nan")  # fills that integers cannot hold
Number = TypeVar("Number", np.generic, int | float)
LARGEST = 4 << 30  # bytes of one array
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_SHAPE = re.compile(r"\d{1,30}(x\d{1,30})*", re.ASCII)
SCHEDULES_HELP = "as long as the order can matter, run each launch up to N times, in other orders (default: 1)"
QUIET, EVERY = 2.0, 0.5  # seconds before the first line of progress, and between two, on a terminal
LONG, AGAIN = 10.0, 30.0  # the same in a log


class Parser(argparse.ArgumentParser):
    """argparse's parser, whose errors are one line of this package."""

    def error(self, message: str) -> NoReturn:
        """Raises what argparse would print."""
        hint = f"{self.prog} --help says more"
        known = [word for action in self._actions for word in action.option_strings]
        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown and (close := difflib.get_close_matches(unknown[1], known, 1)):
            hint = f"did you mean {close[0]}?"
        raise PtxemuError(" ".join(message.split()), hint=hint)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Prints the help or the version; argparse's own drops the error of a full disk."""
        print(message, end="", file=file or sys.stderr)


def parser() -> Parser:
    """The options."""
    made = Parser(
        prog="ptxemu",
        description="Runs a CUDA kernel on this CPU: its results, races, hangs, and the counters of Nsight Compute.",
        epilog="example: ptxemu saxpy.cu --grid 4 --block 256 --arg y=float32:1000:ones --arg x=float32:1000:randn "
        "--arg a=2.0 --arg n=int32:1000 --save y=y.npy --hazards. "
        "Exit code: 0 it ran, and no hazard was found; 1 a hazard, or something that a kernel may not do; "
        "2 it could not run; 130 interrupted. "
        "`ptxemu run --help`: whole programs; `ptxemu descriptor --help`: descriptors of wgmma.",
        allow_abbrev=False,
    )
    made.add_argument("file", metavar="FILE", help="a PTX file, or a CUDA file (.cu), which nvcc compiles first")
    made.add_argument("--version", action="version", version=f"ptxemu {__version__}")
    for name, text in (
        ("arch", f"of a .cu file: what it is compiled for (default: {DEFAULT_ARCH})"),
        ("ptx", "of a .cu file: keep its PTX in this file"),
        ("kernel", "the entry to launch, or a unique part of its name (default: the only one)"),
        ("block", "threads along x,y,z"),
    ):
        made.add_argument(f"--{name}", default="", help=text)
    made.add_argument("--grid", default="1", help="blocks along x,y,z (default: 1)")
    made.add_argument(
        "--arg",
        action="append",
        default=[],
        help="an argument, in order: [NAME=]float32:64x128:randn (or zeros, ones, arange, rand, nan, a number), "
        "int32:5, 2.0, @in.npy",
    )
    made.add_argument("--save", action="append", default=[], help="an array after the launch: NAME=FILE.npy")
    made.add_argument("--shared", default="0", help="dynamic shared memory of a block, such as 48KiB (default: 0)")
    for name, text in (
        ("cluster", "blocks of a cluster along x,y,z (default: as the kernel requires)"),
        ("schedule", "order in which ready warps run: together (default), reverse, elect-last, or a seed"),
        ("target", "the GPU whose limits hold, such as sm_90 (default: the file's)"),
    ):
        made.add_argument(f"--{name}", default="", help=text)
    made.add_argument("--schedules", default="1", metavar="N", help=f"{SCHEDULES_HELP}; with --hazards")
    made.add_argument("--hazards", action="store_true", help="look for races and missing waits")
    made.add_argument(
        "--counters", action="store_true", help="Nsight Compute's counters, and the source lines with bank conflicts"
    )
    made.add_argument(
        "--exited-arrive", action="store_true", help="exited threads count as arrived at a block's barrier"
    )
    made.add_argument("--memory-budget", default="1GiB", help="registers and shared memory at a time (default: 1GiB)")
    most = "instructions, all threads together counting once, before the kernel is stopped"
    made.add_argument("--max-instructions", default=str(MAX_INSTRUCTIONS), help=f"{most} (default: {MAX_INSTRUCTIONS})")
    made.add_argument("--seed", default="0", help="of random arguments (default: 0)")
    made.add_argument("--json", action="store_true", help="print JSON, for scripts")
    Outputs.add(made)
    return made


class Progress(Observer):
    """How far a launch is: on a terminal a line after two seconds; in a log one after ten, and then now and again.

    What is left is estimated from blocks that are done, or from the last launch of the same name.
    """

    per_block: ClassVar[dict[str, float]] = {}  # warp instructions of a block, of kernels that have been launched

    def __init__(self, name: str, blocks: int) -> None:
        self.name, self.blocks = name, blocks
        self.done = self.executed = 0
        self.terminal = sys.stderr is not None and sys.stderr.isatty()
        self.start_time = time.monotonic()
        self.next_time = self.start_time + (QUIET if self.terminal else LONG)
        self.shown = False

    def finish(self, machine: Machine) -> None:
        """Counts the blocks of a slice."""
        self.done += machine.shape[0]
        self.per_block[self.name] = self.executed / max(self.done, 1)

    def __call__(self, instructions: int) -> None:
        """Warp instructions have been executed."""
        self.executed += instructions
        now = time.monotonic()
        if now <= self.next_time or sys.stderr is None:
            return
        passed, total = now - self.start_time, self.per_block.get(self.name, 0.0) * self.blocks
        did = (
            f"{self.done} of {self.blocks} blocks, {self.executed / 1e6:.1f} million warp instructions, {passed:.0f} s"
        )
        did += f", about {passed * (total / self.executed - 1):.0f} s left" if total > self.executed else ""
        if self.terminal:
            print(f"\r{self.name}: {did}\033[K", end="", file=sys.stderr, flush=True)
        else:
            print(f"ptxemu: {self.name}: {did}", file=sys.stderr, flush=True)
        self.shown, self.next_time = True, now + (EVERY if self.terminal else AGAIN)

    def clear(self) -> None:
        """Removes the line of a terminal."""
        if self.shown and self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


Launch = Callable[[str | int, Sequence[Observer]], Result]


@dataclass
class Orders:
    """One launch in several orders of its warps, each from the same memory.

    Attributes:
        schedules: the orders, the first of which counts.
        launch: runs one of them.
        hazards: what says whether further orders can show anything; None: nobody.
        held: what the launch changes, by name.
        done: orders that were run.
        differing: what held something else after another order, and after which one.
    """

    schedules: Sequence[str | int]
    launch: Launch
    hazards: Hazards | None
    held: dict[str, Array]
    done: list[str | int] = field(default_factory=list)
    differing: dict[str, str | int] = field(default_factory=dict)

    def run(self, counters: Counters) -> Result:
        """Launches until nothing else can be seen; what the first launch gave, whose numbers stay.

        Raises:
            EmulationError: as of a launch; another order than the first one is named.
        """
        several = len(self.schedules) > 1
        before = self._copies() if several else {}
        watching = [self.hazards] if self.hazards else []
        first = self.launch(self.schedules[0], [counters, *watching])
        self.done.append(self.schedules[0])
        if not several:
            return first
        after = self._copies()
        for schedule in self.schedules[1:]:
            if self.hazards and self.hazards.any_schedule:
                break
            self._put(before)
            try:
                self.launch(schedule, watching)
            except EmulationError as error:
                error.hint = "; ".join(filter(None, (error.hint, f"seen with --schedule {schedule}")))
                self._put(after)
                raise
            self.done.append(schedule)
            for name, array in self.held.items():
                if _differences(after[name], array):
                    self.differing.setdefault(name, schedule)
        if self.hazards and self.hazards.elects:
            self._elect_another(self.hazards, before, after)
        self._put(after)
        return first

    def _elect_another(self, hazards: Hazards, before: dict[str, Array], after: dict[str, Array]) -> None:
        """The same launch, in which ``elect.sync`` chooses the last lane: what goes wrong is a warning."""
        other, why = Hazards(), ""
        self._put(before)
        try:
            self.launch(ELECT_LAST, [other])
        except EmulationError as error:
            why = str(error)
        known = {(one.kind, one.first.line, one.second.line) for one in hazards.reports}
        new = [one for one in other.reports if (one.kind, one.first.line, one.second.line) not in known]
        why = why or (new[0].render() if new else "")
        changed = [name for name, array in self.held.items() if _differences(after[name], array)]
        if not why and changed and not self.differing:
            why = f"other numbers in {changed[0]}"
        self.done.append(ELECT_LAST)
        if why:
            hazards.relies_on_election(f"with the last lane instead: {why}")

    def _copies(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self.held.items()}

    def _put(self, contents: dict[str, Array]) -> None:
        for name, array in self.held.items():
            if array.flags.writeable:
                array[...] = contents[name]


def run(argv: Sequence[str] | None = None) -> tuple[str, int]:
    """Runs the kernel that the command line names; the text to print and the exit code, 0 or 1.

    Raises:
        PtxemuError: a bad option, a file that cannot be read or written, or a program that cannot run here.
        SystemExit: after ``--help`` and ``--version``.
    """
    options = parser().parse_args(argv)
    try:
        outputs = Outputs.of(options)
        options.hazards = options.hazards or outputs.wanted
        try:
            found = _launched(options, outputs)
        except PtxemuError as error:
            if not isinstance(error, EmulationError) or error.kind in COULD_NOT_RUN:
                outputs.refuse(options.file, error)
            raise
    except EmulationError as error:
        if error.kind in COULD_NOT_RUN:
            raise
        forbidden = PtxemuError(f"this program may not do this: {error}")
        forbidden.exit_code = 1
        raise forbidden from error
    except MemoryError as error:
        raise PtxemuError("not enough memory", hint="smaller arrays, or a smaller --memory-budget") from error
    except OSError as error:
        raise PtxemuError(error.strerror or str(error), where=error.filename) from error
    if options.json:
        text = as_json(found, counters=options.counters)
    else:
        text = "\n".join(map(printable, render(found, counters=options.counters).splitlines()))
    return text, int(any(map(outputs.counts, found.findings)))


def _launched(options: argparse.Namespace, outputs: Outputs) -> Run:
    """Reads the options, launches, and writes what is to be saved."""
    seed, most = count_of(options.seed, "--seed"), count_of(options.max_instructions, "--max-instructions")
    grid, block = _sizes(options.grid, "--grid", GRID_LIMITS), _sizes(options.block, "--block", BLOCK_LIMITS)
    cluster = _sizes(options.cluster, "--cluster", (MAX_CLUSTER,) * 3) if options.cluster else None
    schedules = schedules_of(options.schedule, options.schedules)
    if len(schedules) > 1 and not options.hazards:
        raise PtxemuError("--schedules", expected="--hazards beside it", found="none")
    shared = (
        parse_bytes(options.shared, "an amount of shared memory", "--shared 48KiB")
        if options.shared not in ("", "0")
        else 0
    )
    budget = parse_bytes(options.memory_budget)
    values = parse_all(options.arg, seed)
    targets = parse_saves(options.save, values)
    kernel = _program(options).kernel(options.kernel or None)
    for parameter, value in zip(kernel.parameters, values, strict=False):
        if parameter.size == 8 and isinstance(value.value, np.integer) and value.value.itemsize < 8:
            dtype, number = value.value.dtype, value.value
            expected = f"{dtype}:{number}:zeros for an array, or int64:{number} for a number"
            _refuse(f"{value.name} ({parameter})", expected, f"{dtype}:{number}")
    before = {name: array.copy() for name, array in _arrays(values).items()}
    counters, hazards = Counters(), Hazards() if options.hazards else None
    named = {value.name: value.value for value in values}

    def launched(schedule: str | int, observers: Sequence[Observer]) -> Result:
        progress = Progress(kernel.name, math.prod(grid))
        try:
            return kernel.launch(
                grid,
                block,
                named,
                shared_bytes=shared,
                observers=[*observers, progress],
                memory_budget=budget,
                max_instructions=most,
                exited_arrive=options.exited_arrive,
                progress=progress,
                target=options.target or None,
                cluster=cluster,
                schedule=schedule,
            )
        finally:
            progress.clear()

    orders, started = Orders(schedules, launched, hazards, _arrays(values)), time.monotonic()
    try:
        result = orders.run(counters)
    except EmulationError as error:
        if error.kind not in COULD_NOT_RUN:
            findings = of_launch(kernel.name, hazards.reports if hazards else (), error)
            outputs.write(options.file, [Case(kernel.name, time.monotonic() - started, tuple(findings))])
        raise
    after = _arrays(values)
    changed = {name: _differences(before[name], array) for name, array in after.items()}
    for name, path in targets.items():
        save(path, after[name])
    saved = {name: str(path) for name, path in targets.items()}
    made = Run(
        kernel,
        grid,
        block,
        shared,
        values,
        changed,
        saved,
        result,
        counters,
        hazards,
        tuple(orders.done),
        orders.differing,
    )
    outputs.write(options.file, [Case(kernel.name, result.seconds, made.findings)])
    return made


def _program(options: argparse.Namespace) -> Program:
    """The program of the file, compiled first where it is CUDA C++."""
    path = Path(options.file)
    if path.suffix != CUDA:
        for name in ("arch", "ptx"):
            if getattr(options, name):
                raise PtxemuError(f"--{name} is for a CUDA file", expected="FILE.cu", found=repr(options.file))
        return load(path if options.file.strip() else "")  # Path("") is "."
    arch = options.arch or DEFAULT_ARCH
    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch, re.ASCII):
        raise PtxemuError("bad --arch", expected="for example sm_80", found=repr(arch))
    kept = output_file(options.ptx, ".ptx", "--ptx") if options.ptx else None
    if not path.is_file():
        raise PtxemuError("not a regular file" if path.exists() else "no such file", where=path)
    text = compile_file(path, arch)
    if kept is not None:
        write_whole(kept, text.encode())
    program = load(text, path=str(kept or path.with_suffix(".ptx")))
    if not program.entries:
        hint = "define one, or instantiate its template: template __global__ void axpy<float>(float *);"
        raise PtxemuError("no __global__ function was compiled", where=path, hint=hint)
    return program


def _arrays(values: Sequence[Named]) -> dict[str, Array]:
    return {value.name: value.value for value in values if isinstance(value.value, np.ndarray)}


def _sizes(text: str, option: str, limits: tuple[int, int, int]) -> tuple[int, ...]:
    parts = text.split(",")
    if not text or len(parts) > 3 or not all(part.isascii() and part.isdigit() and len(part) < 11 for part in parts):
        expected = f"one to three numbers, for example {option} 128 or {option} 32,4"
        raise PtxemuError(f"bad {option}" if text else f"{option} is missing", expected=expected, found=repr(text))
    sizes = tuple(map(int, parts))
    if any(not 1 <= size <= most for size, most in zip(sizes, limits, strict=False)):
        expected = f"at least 1 and at most {','.join(map(str, limits))} along x,y,z"
        raise PtxemuError(f"bad {option}", expected=expected, found=repr(text))
    return sizes


def count_of(text: str, option: str) -> int:
    """A whole number, as an option gives it."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise PtxemuError(f"bad {option}", expected="a whole number, 0 or more", found=repr(text))
    return int(text)


def schedule_of(text: str) -> str | int:
    """The order of warps: a word, or a seed as a number."""
    if text in ("", "together", REVERSE, ELECT_LAST):
        return text or "together"
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise PtxemuError("bad --schedule", expected="together, reverse, elect-last or a seed", found=repr(text))
    return int(text)


def schedules_of(chosen: str, count: str) -> list[str | int]:
    """The orders to run: the one that was chosen, or so many different ones."""
    if not (count.isascii() and count.isdigit() and len(count) < 10 and int(count)):
        raise PtxemuError("bad --schedules", expected="a whole number from 1 to 999999999", found=repr(count))
    if (number := int(count)) > 1 and chosen:
        raise PtxemuError("--schedules", expected="no --schedule beside it", found=chosen)
    return ["together", REVERSE, *range(number - 2)][:number] if number > 1 else [schedule_of(chosen)]


def _differences(before: Array, after: Array) -> int:
    """Elements whose bits differ."""
    bits = [np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}") for array in (before, after)]
    return int((bits[0] != bits[1]).sum())


def parse_all(texts: Sequence[str], seed: int) -> list[Named]:
    """The arguments in order; random ones differ from each other and depend on `seed` alone.

    Raises:
        PtxemuError: a text that is none of `FORMS`, a name twice, or a file that cannot be read.
    """
    rng = np.random.default_rng(seed)
    values = [_parse(text, f"arg{index}", rng) for index, text in enumerate(texts)]
    names = [value.name for value in values]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PtxemuError("two arguments of one name", where="--arg", found=twice)
    return values


def _parse(text: str, name: str, rng: np.random.Generator) -> Named:
    named = _NAMED.fullmatch(text)
    name, body = (named[1], named[2]) if named else (name, text)
    if body.startswith("@"):
        return Named(name, _loaded(Path(body[1:]), text))
    dtype, *rest = body.split(":")
    try:
        if not rest:
            return Named(name, _finite(text, _number(body), body))
        if dtype not in DTYPES:
            _refuse(text, f"one of {', '.join(DTYPES)} as the dtype", dtype)
        if len(rest) == 1:
            return Named(name, _typed(text, DTYPES[dtype], rest[0]))
        if len(rest) == 2:
            return Named(name, _array(text, DTYPES[dtype], (rest[0], rest[1]), rng))
    except (ValueError, OverflowError) as error:
        raise PtxemuError("bad --arg", where=text, expected=FORMS, found=body) from error
    except MemoryError as error:
        raise PtxemuError("not enough memory", where=text, found=error, hint="a smaller array") from error
    return _refuse(text, FORMS, body)


def _number(text: str) -> int | float:
    """A number: ``5``, ``0x1f``, ``-2``, ``1e-3``, ``inf``."""
    try:
        return int(text, 0)
    except ValueError:
        return float(text)


def _finite(text: str, number: Number, word: str, dtype: str = "float64") -> Number:
    """The number that `word` stands for; an infinity has to be asked for by name."""
    if np.isinf(float(number)) and "inf" not in word.lower():
        _refuse(text, f"a number that fits {dtype}, or inf", word)
    return number


def _typed(text: str, dtype: np.dtype, word: str) -> np.generic:
    """A number of a dtype.

    Raises:
        PtxemuError: the dtype cannot hold it.
        ValueError, OverflowError: it is no number.
    """
    number = _number(word)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if not isinstance(number, int) or not info.min <= number <= info.max:
            _refuse(text, f"a whole number that fits {dtype}, {info.min} to {info.max}", word)
        return dtype.type(number)  # type: ignore[no-any-return]  # of a dtype that is not known here
    with np.errstate(over="ignore"):
        return _finite(text, dtype.type(number), word, dtype.name)


def _array(text: str, dtype: np.dtype, shape_and_fill: tuple[str, str], rng: np.random.Generator) -> Array:
    shape, fill = shape_and_fill
    if not _SHAPE.fullmatch(shape):
        _refuse(text, "a shape such as 1024 or 64x128", shape)
    sizes = tuple(map(int, shape.split("x")))
    nbytes = dtype.itemsize
    for size in sizes:
        nbytes *= size
    if nbytes > LARGEST:
        _refuse(text, f"at most {LARGEST >> 30} GiB", f"{nbytes} bytes")
    if fill not in FILLS:
        return np.full(sizes, _typed(text, dtype, fill))
    if fill in FRACTIONS and dtype.kind in "iu":
        _refuse(text, "integers: zeros, ones, arange or a number", fill)
    with np.errstate(over="ignore"):  # arange beyond the largest float16 is inf
        array: Array = FILLS[fill](rng, sizes).astype(dtype)
    return array


def _unread(path: Path) -> str:
    """Why NumPy does not read a file that is there."""
    try:
        with path.open("rb") as file:
            head = file.read(256)
    except ValueError:  # a NUL in the path
        head = b""
    if not head.startswith(b"\x93NUMPY"):
        return "not such a file"
    return "an array of Python objects" if b"'|O'" in head else "the file ends early, or is damaged"


def _loaded(path: Path, text: str) -> Array:
    if path.exists() and not path.is_file():  # a FIFO without a writer would wait for one
        _refuse(text, "a file that numpy.save wrote", f"{path}: not a regular file")
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile, TokenError) as error:
        reason = getattr(error, "strerror", None) or _unread(path)
        _refuse(text, "a file that numpy.save wrote", f"{path}: {reason}")
    if not isinstance(found, np.ndarray):
        _refuse(text, "one array, a .npy file", f"{path}: an archive of {', '.join(found.files) or 'nothing'}")
    if found.dtype not in DTYPES.values():
        _refuse(text, f"an array of one of {', '.join(DTYPES)}", f"{path}: {found.dtype.str}")
    return found


def parse_saves(texts: Sequence[str], values: Sequence[Named]) -> dict[str, Path]:
    """Where arrays go after the launch, by the argument's name; nothing is written yet.

    Raises:
        PtxemuError: not ``NAME=FILE.npy``, no array of that name, a name or a file twice, or a file that cannot be
            written.
    """
    arrays = [value.name for value in values if isinstance(value.value, np.ndarray)]
    found: dict[str, Path] = {}
    for text in texts:
        name, _, target = text.partition("=")
        if name not in arrays:
            expected = f"NAME=FILE.npy, NAME one of {', '.join(arrays) or 'no arrays'}"
            raise PtxemuError("bad --save", expected=expected, found=repr(text))
        path = output_file(target, ".npy", "--save")
        if name in found or path.resolve() in {other.resolve() for other in found.values()}:
            raise PtxemuError("bad --save", expected="each array once, each in a file of its own", found=repr(text))
        found[name] = path
    return found


def save(path: Path, array: Array) -> None:
    """Writes an array as ``.npy``, whole or not at all; bfloat16, which the format does not know, as its bits.

    Raises:
        PtxemuError: the file cannot be written.
    """
    buffer = BytesIO()
    np.save(buffer, array.view(np.uint16) if array.dtype == DTYPES["bfloat16"] else array, allow_pickle=False)
    write_whole(path, buffer.getvalue())


def _refuse(text: str, expected: str, found: str) -> NoReturn:
    raise PtxemuError("bad --arg", where=text, expected=expected, found=found)
