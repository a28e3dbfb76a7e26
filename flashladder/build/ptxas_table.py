"""The table of ``invoke ptxas`` and ``invoke build`` on a terminal: the full one where it fits, else a narrower one.

Why: a short form alone has 81 characters. Where the width is short, a configuration is written as ``invoke list``
prints it, columns that are equal in every row move to a line of their own, and if that is not enough each kernel gets a
heading.

Run: ``invoke ptxas 7 --arch sm_80,sm_90``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
import textwrap

from flashladder.columns import natural_width, table
from flashladder.ladder.config import KernelConfig
from flashladder.machine_code.ptxas import PtxasRow, format_table

HEADERS = (
    ("", "#"), ("", "dtype"), ("", "configuration"), ("", "arch"), ("", "regs"), ("", "stack"), ("spill", "st"),
    ("spill", "ld"), ("bar-", "riers"), ("smem", "static"), ("smem", "dynamic"), ("", "cmem"), ("ptxas", "ms"),
)  # fmt: skip
N_KERNEL = 3  # columns that name the kernel; those after the architecture are numbers
ALWAYS = {2, 4, 6, 7, 12}  # configuration, registers, spills, time: never moved to the line of what is equal


def render(rows: Sequence[PtxasRow], warnings: Iterable[str], limit: int) -> str:
    """The rows as a table of at most `limit` columns, then each distinct warning.

    Args:
        rows: at least one.
        warnings: of the logs.
        limit: columns of the terminal, at least 70.
    """
    full = format_table(rows)
    if max(map(len, full.splitlines())) <= limit:
        return format_table(rows, warnings)
    cells = [_cells(row) for row in rows]
    equal = [i for i in range(len(HEADERS)) if i not in ALWAYS and len({row[i] for row in cells}) == 1]
    kept = [i for i in range(len(HEADERS)) if i not in equal]
    narrow = _select(cells, kept)
    if natural_width(narrow, gap=1) <= limit:
        lines = table(narrow, limit, right=_numbers(kept))
    else:
        lines = _blocks(cells, [i for i in kept if i >= N_KERNEL], limit)
    if equal:
        same = ", ".join(f"{_name(i)} {cells[0][i]}" for i in equal)
        lines += ["", *textwrap.wrap(f"In every row: {same}. Sizes in bytes.", limit)]
    return "\n".join([*lines, *dict.fromkeys(warnings)]) + "\n"


def _cells(row: PtxasRow) -> tuple[str, ...]:
    config = KernelConfig.parse(row.config)
    cmem = "-" if row.cmem is None else str(row.cmem)
    numbers = (row.registers, row.stack, row.spill_stores, row.spill_loads, row.barriers, row.smem_static)
    name = (row.kernel, config.dtype, config.brief(), row.arch)
    return (*name, *map(str, numbers), str(row.smem_dynamic), cmem, f"{row.compile_ms:.0f}")


def _select(cells: Sequence[Sequence[str]], columns: Sequence[int]) -> list[tuple[str, ...]]:
    """Two rows of headings, then the cells, of some columns."""
    heads = [tuple(HEADERS[i][line] for i in columns) for line in (0, 1)]
    return [*heads, *(tuple(row[i] for i in columns) for row in cells)]


def _numbers(columns: Sequence[int]) -> set[int]:
    """Places of the columns that are aligned to the right."""
    return {place for place, column in enumerate(columns) if column == 0 or column > N_KERNEL}


def _name(column: int) -> str:
    """A column's heading on one line."""
    return "iteration" if column == 0 else " ".join(HEADERS[column]).strip().replace("- ", "")


def _blocks(cells: Sequence[Sequence[str]], columns: Sequence[int], limit: int) -> list[str]:
    """A heading per kernel, and a line per architecture under it."""
    lines = table(_select(cells, columns), limit - 2, right=_numbers(columns))
    heads, rows = lines[:2], iter(lines[2:])
    result = [f"  {line}" for line in heads]
    for kernel, group in groupby(cells, key=lambda row: row[:N_KERNEL]):
        result += [" ".join(kernel), *(f"  {next(rows)}" for _ in group)]
    return result
