"""Machine code as text: the listing with source lines, labels and the main loop marked, and the table of classes.

Nothing to run here; ``invoke sass`` prints both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from flashladder.columns import table
from flashladder.files import relative
from flashladder.machine_code.sass import Control, Sass

COLUMNS = [
    "total",
    "IADD3",
    "LOP3",
    "SHF",
    "IMAD.MOV.U32",
    "MOV",
    "CS2R",
    "FMUL",
    "FFMA",
    "FADD",
    "MUFU",
    "HMMA",
    "LDSM",
    "LDGSTS",
    "FMNMX",
    "IMAD",
    "SHFL",
    "BAR",
    "LDL",
    "STL",
]
WHOLE_AND_LOOP = ("whole kernel", "main loop")  # columns of one kernel's table


def count_table(columns: Mapping[str, Mapping[str, int]]) -> str:
    """A table of opcode classes (rows) by `columns`: the published classes first, then the others by size."""
    names = set().union(*columns.values())
    others = sorted(names - set(COLUMNS), key=lambda name: (-max(c.get(name, 0) for c in columns.values()), name))
    rows = [["opcode", *columns]]
    rows += [[name, *(str(c.get(name, 0)) for c in columns.values())] for name in [*COLUMNS, *others]]
    return "\n".join(table(rows, None, right=range(1, len(rows[0]))))


def listing(sass: Sass, controls: Sequence[Control] = ()) -> str:
    """The machine code with the source line over the instructions that came from it; ``|`` marks the main loop.

    Args:
        sass: a kernel's machine code.
        controls: of each instruction, to stand beside its address; none where there are none.
    """
    inside = {instruction.address for instruction in sass.main_loop()}
    names = {address: label for label, address in sass.labels.items()}
    lines: list[str] = []
    last: tuple[str, int] | None = None
    for index, instruction in enumerate(sass.instructions):
        if instruction.address in names:
            lines.append(f"{names[instruction.address]}:")
        if instruction.file is not None and instruction.line is not None:
            source = (instruction.file, instruction.line)
            if source != last:
                lines.append(f"      // {relative(Path(source[0]))}:{source[1]}  {_source_line(*source)}".rstrip())
            last = source
        margin = "|" if instruction.address in inside else " "
        control = f"{controls[index]}  " if controls else ""
        lines.append(f"{margin} {instruction.address:04x}  {control}{instruction}")
    return "\n".join(lines)


@cache
def _source_lines(file: str) -> tuple[str, ...]:
    try:
        return tuple(Path(file).read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:  # a cubin outlives its source: the listing then has the name and the number alone
        return ()


def _source_line(file: str, line: int) -> str:
    lines = _source_lines(file)
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""
