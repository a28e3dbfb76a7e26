"""A CUDA kernel with its launch and what it must compute, the ways to compile it, and how results are compared.

The kernels are in the ``.cu`` files beside this one; `launches` holds a function of each file's name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import importlib
from pathlib import Path
import re
from typing import Any

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
    """One launch of a kernel."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Sequence[Argument]  # of which every launch gets copies
    expected: Mapping[int, Array]  # argument's index -> what it holds afterwards
    tolerance: float = 0.0  # greatest difference, absolute and relative; 0: bit by bit
    fast: float | None = None  # the same under ``--use_fast_math`` and in the debug build; None: as `tolerance`
    shared_bytes: int = 0  # dynamic, of a block
    conflicts: int | None = None  # of banks, in the release build, where that is the point

    def copies(self) -> list[Argument]:
        """The arguments for one launch; arrays that nobody checks are copied too."""
        return [_copied(argument) for argument in self.arguments]

    def problems(self, arguments: Sequence[Argument], variant: str) -> list[str]:
        """What differs from the expectation after a launch with these arguments."""
        limit = self.fast if self.fast is not None and variant in {"release", "debug"} else self.tolerance
        found = (difference(outputs(arguments)[i], wanted, limit) for i, wanted in self.expected.items())
        return [f"{self.kernel}: {text}" for text in found if text]


def one(
    kernel: str, grid: Any, block: Any, arguments: Sequence[Any], *wanted: Array, after: Any = None, **more: Any
) -> Program:
    """A program; an argument ``...`` is an array of zeros that becomes the next of `wanted`, others become `after`."""
    places = [place for place, argument in enumerate(arguments) if argument is ...]
    expected: dict[int, Array] = {**(after or {}), **dict(zip(places, wanted, strict=True))}
    given = [np.zeros_like(expected[i]) if i in places else argument for i, argument in enumerate(arguments)]
    grid, block = (size if isinstance(size, tuple) else (size,) for size in (grid, block))
    return Program(kernel, grid, block, given, dict(sorted(expected.items())), **more)


def _copied(argument: Argument) -> Argument:
    if isinstance(argument, np.ndarray):
        return argument.copy()
    return tuple(map(_copied, argument)) if isinstance(argument, tuple) else argument


def outputs(arguments: Sequence[Argument]) -> list[Array]:
    """The arrays among the arguments, at their places; of a structure its only array; elsewhere empty arrays."""
    members = (argument if isinstance(argument, tuple) else (argument,) for argument in arguments)
    return [next((item for item in items if isinstance(item, np.ndarray)), np.empty(0)) for items in members]


def difference(found: Array, expected: Array, tolerance: float) -> str | None:
    """Where two arrays differ, None if they agree; a NaN is every other NaN."""
    left, right = found.reshape(-1), np.asarray(expected).reshape(-1)
    if left.dtype != right.dtype or left.shape != right.shape:
        return f"{left.dtype}{left.shape} where {right.dtype}{right.shape} belongs"
    close = left == right
    if left.dtype.kind not in "iub":
        left, right = left.astype(np.float64), right.astype(np.float64)
        with np.errstate(invalid="ignore"):
            close = np.isclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    wrong = np.flatnonzero(~close)
    if not wrong.size:
        return None
    first = wrong[0]
    return f"{wrong.size} of {close.size} differ, first [{first}]: {left[first]!r}, expected {right[first]!r}"


def exact(function: Function) -> bool:
    """Whether a GPU must give the emulator's bits: nothing in the function leaves them open."""
    return not any(INEXACT.search(item.opcode) for item in function.body if isinstance(item, Instruction))


def programs(source: str) -> list[Program]:
    module = importlib.import_module("tests.cuda_programs.launches")
    return list(getattr(module, source)())


def compiled(source: str, variant: str) -> str:
    return ptx(HERE / f"{source}.cu", VARIANTS[variant], arch="compute_80")
