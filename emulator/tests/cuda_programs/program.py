"""A CUDA kernel with its launch and what it must compute, the ways to compile it, and how results are compared.

Why: the emulator should run what nvcc makes of ordinary CUDA, not just of this project's kernels. The kernels are in
the ``.cu`` files beside this one, each with a Python module of the same name that holds the launches and references.
Compiling needs the toolchain wheels; running compiled PTX needs the emulator only, or a GPU's driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
import importlib
from pathlib import Path
import re

import numpy as np
from tests.compile import FAST, ptx

from ptxemu.machine.arguments import Argument
from ptxemu.syntax.tree import Function, Instruction
from ptxemu.values import Array

HERE = Path(__file__).parent
SOURCES = ("reductions", "matrices", "functions", "integers", "structs", "libraries")
VARIANTS = {
    "release": FAST,
    "precise": ("-std=c++17", "-lineinfo"),
    "debug": ("-std=c++17", "--use_fast_math", "-G", "-O0"),
    "plain": ("-std=c++17", "-Xcicc", "-O1"),
}
# Approximate units, tensor cores (their order of summation), and floating-point atomics (the order of the threads).
INEXACT = re.compile(r"approx|\.full|^mma|^(atom|red)\..*\.b?f\d+")


@dataclass(frozen=True)
class Program:
    """One launch of a kernel.

    Attributes:
        kernel: its name.
        grid, block: sizes of the launch.
        arguments: of which every launch gets copies.
        expected: argument's index -> what it holds afterwards.
        tolerance: greatest difference, absolute and relative; 0: bit by bit.
        fast: the same under ``--use_fast_math`` (and in the debug build, which has it too); None: as `tolerance`.
        shared_bytes: dynamic shared memory of a block.
        conflicts: bank conflicts of shared loads and stores in the release build, where that is the point.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Sequence[Argument]
    expected: Mapping[int, Array]
    tolerance: float = 0.0
    fast: float | None = None
    shared_bytes: int = 0
    conflicts: int | None = field(default=None)

    def copies(self) -> list[Argument]:
        """The arguments for one launch; arrays that nobody checks are copied too."""
        return [_copied(argument) for argument in self.arguments]

    def limit(self, variant: str) -> float:
        """The tolerance of a build."""
        return self.fast if self.fast is not None and variant in {"release", "debug"} else self.tolerance

    def problems(self, arguments: Sequence[Argument], variant: str) -> list[str]:
        """What differs from the expectation after a launch with these arguments."""
        found = [difference(outputs(arguments)[i], self.expected[i], self.limit(variant)) for i in self.expected]
        return [f"{self.kernel}: {text}" for text in found if text]


def _copied(argument: Argument) -> Argument:
    if isinstance(argument, np.ndarray):
        return argument.copy()
    return tuple(_copied(item) for item in argument) if isinstance(argument, tuple) else argument


def outputs(arguments: Sequence[Argument]) -> list[Array]:
    """The arrays among the arguments, at their places; of a structure its only array; elsewhere empty arrays."""
    found = []
    for argument in arguments:
        items = argument if isinstance(argument, tuple) else (argument,)
        found.append(next((item for item in items if isinstance(item, np.ndarray)), np.empty(0)))
    return found


def difference(found: Array, expected: Array, tolerance: float) -> str | None:
    """Where two arrays differ, None if they agree; a NaN is every other NaN."""
    left, right = found.reshape(-1), np.asarray(expected).reshape(-1)
    if left.dtype != right.dtype or left.shape != right.shape:
        return f"{left.dtype}{left.shape} where {right.dtype}{right.shape} belongs"
    if left.dtype.kind not in "iub":
        left, right = left.astype(np.float64), right.astype(np.float64)
        with np.errstate(invalid="ignore"):
            close = np.isclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        close = left == right
    wrong = np.flatnonzero(~close)
    if not wrong.size:
        return None
    first = wrong[0]
    return f"{wrong.size} of {close.size} differ, first [{first}]: {left[first]!r}, expected {right[first]!r}"


def exact(function: Function) -> bool:
    """Whether a GPU must give the emulator's bits: nothing in the function leaves them open."""
    opcodes = (item.opcode for item in function.body if isinstance(item, Instruction))
    return not any(INEXACT.search(opcode) for opcode in opcodes)


def programs(source: str) -> list[Program]:
    """The programs of one ``.cu`` file."""
    found: list[Program] = importlib.import_module(f"tests.cuda_programs.{source}").PROGRAMS
    return found


def compiled(source: str, variant: str) -> str:
    """The PTX of a ``.cu`` file with the variant's flags.

    Raises:
        AssertionError: nvcc refuses the file.
    """
    return ptx(HERE / f"{source}.cu", VARIANTS[variant], arch="compute_80")
