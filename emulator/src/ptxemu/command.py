"""The command: runs a kernel of a PTX or CUDA file on this CPU; what its arrays hold, what it costs, whether it races.

    ptxemu saxpy.cu --grid 4 --block 256 --arg y=float32:1000:ones --arg x=float32:1000:randn --arg a=2.0 \
        --arg n=int32:1000 --save y=y.npy --counters --hazards

`ptxemu.__main__` calls `run`; `ptxemu.words` says what an argument may be.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import difflib
import math
from pathlib import Path
import re
import sys
import time
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ptxemu import __version__
from ptxemu.errors import EmulationError, PtxemuError, printable
from ptxemu.machine.core import Machine
from ptxemu.machine.observer import Observer
from ptxemu.nvcc import compile_file
from ptxemu.observe.counters import Counters
from ptxemu.observe.hazards import Hazards
from ptxemu.run.launch import Program, load
from ptxemu.screen import Run, as_json, render
from ptxemu.targets import BLOCK_LIMITS, GRID_LIMITS, MAX_CLUSTER
from ptxemu.text import output_file, parse_bytes, write_whole
from ptxemu.values import Array
from ptxemu.words import Named, parse_all, parse_saves, save

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

CUDA = ".cu"
DEFAULT_ARCH = "sm_80"
COULD_NOT_RUN = ("syntax", "unsupported", "arguments")  # kinds of `EmulationError` that say nothing against a kernel
QUIET, EVERY = 2.0, 0.5  # seconds before the first progress line, and between two


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
        "2 it could not run.",
        allow_abbrev=False,
    )
    made.add_argument("file", metavar="FILE", help="a PTX file, or a CUDA file (.cu), which nvcc compiles first")
    made.add_argument("--version", action="version", version=f"ptxemu {__version__}")
    for name, text in (
        ("arch", f"of a .cu file: what it is compiled for (default: {DEFAULT_ARCH})"),
        ("ptx", "of a .cu file: keep its PTX in this file"),
        ("kernel", "the entry to launch (default: the only one)"),
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
        ("schedule", "order in which ready warps run: together (default), reverse, or a seed"),
        ("target", "the GPU whose limits hold, such as sm_90 (default: the file's)"),
    ):
        made.add_argument(f"--{name}", default="", help=text)
    made.add_argument("--hazards", action="store_true", help="look for races and missing waits")
    made.add_argument(
        "--counters", action="store_true", help="Nsight Compute's counters, and the source lines with bank conflicts"
    )
    made.add_argument("--memory-budget", default="1GiB", help="registers and shared memory at a time (default: 1GiB)")
    made.add_argument("--seed", default="0", help="of random arguments (default: 0)")
    made.add_argument("--json", action="store_true", help="print JSON, for scripts")
    return made


class Progress(Observer):
    """A line on stderr, where that is a terminal and the launch takes more than two seconds."""

    def __init__(self, name: str, blocks: int) -> None:
        self.name, self.blocks = name, blocks
        self.done = self.executed = 0
        self.shown = sys.stderr is not None and sys.stderr.isatty()
        self.start_time = time.monotonic()
        self.next_time = self.start_time + QUIET

    def finish(self, machine: Machine) -> None:
        """Counts the blocks of a slice."""
        self.done += machine.shape[0]

    def __call__(self, instructions: int) -> None:
        """Warp instructions have been executed."""
        self.executed += instructions
        now = time.monotonic()
        if self.shown and now > self.next_time:
            self.next_time = now + EVERY
            did = f"{self.done} of {self.blocks} blocks, {self.executed / 1e6:.1f} million warp instructions"
            print(f"\r{self.name}: {did}, {now - self.start_time:.0f} s\033[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Removes the line."""
        if self.shown and self.next_time > self.start_time + QUIET:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def run(argv: Sequence[str] | None = None) -> tuple[str, int]:
    """Runs the kernel that the command line names; the text to print and the exit code, 0 or 1.

    Raises:
        PtxemuError: a bad option, a file that cannot be read or written, or a program that cannot run here.
        SystemExit: after ``--help`` and ``--version``.
    """
    options = parser().parse_args(argv)
    try:
        found = _launched(options)
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
    return text, int(found.hazards is not None and bool(found.hazards.reports))


def _launched(options: argparse.Namespace) -> Run:
    """Reads the options, launches, and writes what is to be saved."""
    if not (options.seed.isascii() and options.seed.isdigit() and len(options.seed) < 20):
        raise PtxemuError("bad --seed", expected="a whole number, 0 or more", found=repr(options.seed))
    grid, block = _sizes(options.grid, "--grid", GRID_LIMITS), _sizes(options.block, "--block", BLOCK_LIMITS)
    cluster = _sizes(options.cluster, "--cluster", (MAX_CLUSTER,) * 3) if options.cluster else None
    schedule = _schedule(options.schedule)
    shared = parse_bytes(options.shared, "an amount of shared memory") if options.shared not in ("", "0") else 0
    budget = parse_bytes(options.memory_budget)
    values = parse_all(options.arg, int(options.seed))
    targets = parse_saves(options.save, values)
    kernel = _program(options).kernel(options.kernel or None)
    before = {name: array.copy() for name, array in _arrays(values).items()}
    counters, hazards = Counters(), Hazards() if options.hazards else None
    progress = Progress(kernel.name, math.prod(grid))
    try:
        result = kernel.launch(
            grid,
            block,
            [value.value for value in values],
            shared_bytes=shared,
            observers=[counters, *([hazards] if hazards else []), *([progress] if progress.shown else [])],
            memory_budget=budget,
            progress=progress if progress.shown else None,
            target=options.target or None,
            cluster=cluster,
            schedule=schedule,
        )
    finally:
        progress.clear()
    after = _arrays(values)
    changed = {name: _differences(before[name], array) for name, array in after.items()}
    for name, path in targets.items():
        save(path, after[name])
    saved = {name: str(path) for name, path in targets.items()}
    return Run(kernel, grid, block, shared, values, changed, saved, result, counters, hazards)


def _program(options: argparse.Namespace) -> Program:
    """The program of the file, compiled first where it is CUDA C++."""
    path = Path(options.file)
    if path.suffix != CUDA:
        for name in ("arch", "ptx"):
            if getattr(options, name):
                raise PtxemuError(f"--{name} is for a CUDA file", expected="FILE.cu", found=repr(options.file))
        return load(path)
    arch = options.arch or DEFAULT_ARCH
    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch, re.ASCII):
        raise PtxemuError("bad --arch", expected="for example sm_80", found=repr(arch))
    kept = output_file(options.ptx, ".ptx", "--ptx") if options.ptx else None
    if not path.is_file():
        raise PtxemuError("not a regular file" if path.exists() else "no such file", where=path)
    text = compile_file(path, arch)
    if kept is not None:
        write_whole(kept, text.encode())
    return load(text, path=str(kept or path.with_suffix(".ptx")))


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


def _schedule(text: str) -> str | int:
    """The order of warps: a word, or a seed as a number."""
    if text in ("", "together", "reverse"):
        return text or "together"
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise PtxemuError("bad --schedule", expected="together, reverse or a seed", found=repr(text))
    return int(text)


def _differences(before: Array, after: Array) -> int:
    """Elements whose bits differ."""
    bits = [np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}") for array in (before, after)]
    return int((bits[0] != bits[1]).sum())
