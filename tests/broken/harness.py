"""How broken kernels are compiled, launched and compared with the lines of their files that are marked.

A kernel's defect is on the lines that say ``BROKEN <kernel>``; of a race these hold the second access, those that say
``FIRST <kernel>`` the first one. `defects.BROKEN` and `defects.RACES` are the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import re

import numpy as np

from flashladder.build import compile as compiling
from flashladder.build.store import PtxEntry, fill_all, ptx_entry
import ptxemu
from ptxemu.machine.arguments import Argument
from ptxemu.syntax.tree import Instruction, SourceLine
from ptxemu.values import Array

KERNELS = Path(__file__).parent / "kernels"
HEADERS = tuple(sorted(KERNELS.glob("*.cuh")))
MAX_INSTRUCTIONS = 20_000  # far more than any of these kernels needs


def ramp(length: int) -> Array:
    """0, 1, 2, ... as floats."""
    return np.arange(length, dtype=np.float32)


def zeros(length: int) -> Array:
    """A result to be written, of 32-bit integers."""
    return np.zeros(length, dtype=np.int32)


def floats(length: int) -> Array:
    """A result to be written."""
    return np.zeros(length, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel of `file` and how it is launched; `result`: what the twin must leave in its first argument."""

    file: str
    kernel: str
    arguments: Callable[[], tuple[Argument, ...]]
    result: Array
    threads: int = 64
    blocks: int = 1
    shared_bytes: int = 0
    name: str = ""  # where one kernel is launched in several ways

    def __str__(self) -> str:
        return self.name or self.kernel

    def run(self, kernel: ptxemu.Kernel, *observers: ptxemu.Counters | ptxemu.Hazards) -> Array:
        """Launches the kernel and returns its first argument."""
        arguments = self.arguments()
        kernel.launch(
            (self.blocks,),
            (self.threads,),
            arguments,
            shared_bytes=self.shared_bytes,
            observers=observers,
            max_instructions=MAX_INSTRUCTIONS,
        )
        assert isinstance(arguments[0], np.ndarray)
        return arguments[0]


@dataclass(frozen=True)
class Broken:
    """A launch that must fail.

    Attributes:
        kind: of the `EmulationError`; `opcode`: how the offending instruction begins.
        thread, block: of the first offender, None where there is none to name.
        address: bytes of the shared or local window; of global memory from the buffer that is named.
        says, also: what the message must say beside the place.
    """

    launch: Launch
    kind: str
    opcode: str
    says: str
    thread: int | None = None
    block: tuple[int, int, int] | None = (0, 0, 0)
    address: int | None = None
    also: str = ""


@dataclass(frozen=True)
class Race:
    """A launch that ends and must be reported: kind, the two instructions, the threads and the address of the first."""

    launch: Launch
    kind: str
    space: str
    first: str
    second: str
    threads: tuple[int, int]
    address: int
    blocks: tuple[int, int] = (0, 0)
    numbers_right: bool = True  # whether the emulator's order of execution happens to give the right numbers


@cache
def entry(file: str) -> PtxEntry:
    """The store's entry of a CUDA file: its PTX, compiled as the iterations' is."""
    return ptx_entry(f'#include "{file}"\n', KERNELS, [KERNELS / file, *HEADERS], compiling.tools_of())


def compile_all(files: set[str]) -> None:
    """Compiles what the store lacks, all files at once.

    Raises:
        FlashladderError: no toolchain, or nvcc refused a file.
    """
    fill_all([entry(file) for file in sorted(files)])


@cache
def text_of(file: str) -> str:
    """The PTX of a file."""
    return (KERNELS / file if file.endswith(".ptx") else entry(file).ptx).read_text(encoding="utf-8")


@cache
def load(launch: Launch, *, fixed: bool) -> ptxemu.Kernel:
    """The kernel or its twin; of a template by its mangled name."""
    program = ptxemu.load(text_of(launch.file), path=launch.file.replace(".cu", ".ptx"))
    if launch.file.endswith(".ptx"):
        return program.kernel(launch.kernel + ("_fixed" if fixed else ""))
    names = [function.name for function in program.module.functions if function.is_entry]
    (name,) = (name for name in names if re.match(rf"_Z\d+{launch.kernel}ILb{int(fixed)}E", name))
    return program.kernel(name)


@cache
def marked(file: str, mark: str, kernel: str) -> frozenset[int]:
    """The lines of a file that say ``<mark> <kernel>``."""
    lines = (KERNELS / file).read_text(encoding="utf-8").splitlines()
    return frozenset(number for number, line in enumerate(lines, 1) if re.search(rf"//.*\b{mark} {kernel}\b", line))


def lines_of(instruction: Instruction, file: str) -> frozenset[int]:
    """The lines of a file that an instruction comes from: its own, or those of the calls it was inlined into."""
    if file.endswith(".ptx"):
        return frozenset({instruction.line})
    found: set[int] = set()
    source: SourceLine | None = instruction.source
    while source is not None:
        if source.file == f"kernels/{file}":
            found.add(source.line)
        source = source.inlined_at
    return frozenset(found)
