"""How broken Hopper kernels are compiled, launched and judged; `defects.DEFECTS` are the kernels.

A defect is on the lines that say ``BROKEN <kernel>``. It is *caught* by an error, by a report of the race detector, or,
where nothing but the numbers can tell, by numbers that differ from the twin's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import re

import numpy as np
from tests.compile import ptx
from tests.hopper_programs.program import HEADERS, Run

import ptxemu
from ptxemu.syntax.tree import Instruction, SourceLine

KERNELS = Path(__file__).parent / "kernels"
PAIR = KERNELS.parents[1] / "kernels" / "pair.cuh"
MAX_INSTRUCTIONS = 20_000  # far more than any of these kernels needs


@dataclass(frozen=True, eq=False)
class Defect:
    """A launch that must be caught, and whose twin must not.

    Attributes:
        make: arguments, and what the twin must leave where.
        caught: kinds of errors or reports, any of which tells; "numbers" where only they do.
        says: what the message must say.
    """

    file: str
    kernel: str
    make: Callable[[], Run]
    caught: tuple[str, ...]
    says: str = ""
    threads: int = 64
    grid: int = 1
    cluster: int = 1
    schedule: str | int = "together"  # in which it shows

    def __str__(self) -> str:
        return self.kernel


@dataclass(frozen=True)
class Seen:
    """What one launch showed: (kind, message, instructions) of each complaint, and whether the numbers were right."""

    complaints: tuple[tuple[str, str, tuple[Instruction, ...]], ...]
    right: bool


@cache
def program(file: str) -> ptxemu.Program:
    """A file on the emulator."""
    path = KERNELS / file
    text = path.read_text(encoding="utf-8") if file.endswith(".ptx") else ptx(path, headers=(PAIR, *HEADERS))
    return ptxemu.load(text, path=file.replace(".cu", ".ptx"))


def kernel(defect: Defect, *, fixed: bool) -> ptxemu.Kernel:
    """The kernel or its twin."""
    if defect.file.endswith(".ptx"):
        return program(defect.file).kernel(defect.kernel + ("_fixed" if fixed else ""))
    pattern = re.compile(rf"_Z\d+{defect.kernel}ILb{int(fixed)}E")
    (name,) = (name for name in program(defect.file).entries if pattern.match(name))
    return program(defect.file).kernel(name)


def see(defect: Defect, *, fixed: bool, schedule: str | int) -> Seen:
    """Launches the kernel or its twin with counters and the race detector."""
    run, hazards = defect.make(), ptxemu.Hazards()
    try:
        kernel(defect, fixed=fixed).launch(
            defect.grid,
            defect.threads,
            run.arguments,
            cluster=defect.cluster if defect.cluster > 1 else None,
            observers=(ptxemu.Counters(), hazards),
            max_instructions=MAX_INSTRUCTIONS,
            schedule=schedule,
        )
    except ptxemu.EmulationError as error:
        where = (error.instruction,) if isinstance(error.instruction, Instruction) else ()
        return Seen(((error.kind, str(error), where),), right=False)
    found = tuple((each.kind, each.render(), (each.first, each.second)) for each in hazards.reports)
    return Seen(found, all(np.array_equal(*each) for each in run.results))


@cache
def marked(file: str, name: str) -> frozenset[int]:
    """The lines of a file that say ``BROKEN <name>``."""
    lines = (KERNELS / file).read_text(encoding="utf-8").splitlines()
    return frozenset(number for number, line in enumerate(lines, 1) if re.search(rf"//.*\bBROKEN {name}\b", line))


def lines_of(instruction: Instruction, file: str) -> frozenset[int]:
    """The lines of a file that an instruction comes from: its own, or those of the calls it was inlined into."""
    if file.endswith(".ptx"):
        return frozenset({instruction.line})
    found: set[int] = set()
    source: SourceLine | None = instruction.source
    while source is not None:
        if source.file.endswith(f"hopper/kernels/{file}"):
            found.add(source.line)
        source = source.inlined_at
    return frozenset(found)
