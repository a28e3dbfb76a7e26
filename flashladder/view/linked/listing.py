"""What a selection of a kernel looks like in a terminal, and as data for scripts.

Two orders: by address, each machine instruction under the PTX and the CUDA lines it came from (``invoke sass``), and by
line of PTX, each with what it became below (``invoke ptx``). ``|`` marks the main loop, as in the whole listing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flashladder.machine_code.sass import count
from flashladder.view.linked.kernel import Linked, Place, PtxRow
from flashladder.view.linked.select import Selection

ADDED = "the assembler's own"
NOTHING = "no instruction of its own: removed, or one with another's"


def by_address(kernel: Linked, chosen: Selection) -> str:
    """The selected machine instructions in order, over each group the PTX and the CUDA lines that it came from."""
    lines = list[str]()
    last: tuple[int | None, tuple[Place, ...]] = (-1, ())
    for index in sorted(chosen.sass):
        origin = kernel.made_from[index]
        chain = () if origin is None else kernel.ptx[origin].chain
        if chain != last[1]:
            lines += _heading(kernel, chain)
        if origin != last[0]:
            lines.append(_ptx(kernel.ptx[origin]) if origin is not None else f"      // {ADDED}")
        last = origin, chain
        lines.append(_sass(kernel, index))
    return "\n".join([*lines, *([""] if lines else []), summary(kernel, chosen)])


def by_ptx(kernel: Linked, chosen: Selection) -> str:
    """The selected lines of PTX in order, each with all machine instructions that were made from it."""
    lines = list[str]()
    last: tuple[Place, ...] = ()
    for row in sorted(chosen.ptx):
        if kernel.ptx[row].chain != last:
            lines += _heading(kernel, kernel.ptx[row].chain)
        last = kernel.ptx[row].chain
        lines.append(_ptx(kernel.ptx[row]))
        lines += [_sass(kernel, index) for index in kernel.became.get(row, ())] or [f"        ({NOTHING})"]
    return "\n".join([*lines, "", summary(kernel, chosen)])


def _heading(kernel: Linked, chain: Sequence[Place]) -> Iterator[str]:
    """A chain of calls, and the text of its innermost line."""
    if chain:
        yield f"// {' < '.join(map(str, chain))}"
        if text := kernel.source(chain[0]).strip():
            yield f"//   {text}"


def _ptx(row: PtxRow) -> str:
    return f"{row.line:6d}  {row.text}"


def _sass(kernel: Linked, index: int) -> str:
    margin, instruction = "|" if index in kernel.main_loop else " ", kernel.sass.instructions[index]
    return f"{margin}       {instruction.address:04x}  {instruction}"


def summary(kernel: Linked, chosen: Selection) -> str:
    """How much it is: lines of PTX, machine instructions by class, and how many of them the main loop holds."""
    counts = count(kernel.sass.instructions[index] for index in chosen.sass)
    total = counts.pop("total")
    classes = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    told = f": {', '.join(f'{n} {name}' for name, n in classes)}" if classes else ""
    lost = sum(row not in kernel.became for row in chosen.ptx)
    without = f" ({lost} without machine code of their own)" if lost else ""
    inside = f"; {len(chosen.sass & kernel.main_loop)} in the main loop" if total else ""
    return f"PTX lines {len(chosen.ptx)}{without}, machine instructions {total}{told}{inside}"


def as_data(kernel: Linked, chosen: Selection) -> dict[str, Any]:
    """The same as JSON can hold it: every selected line of PTX and every selected machine instruction."""
    instructions = kernel.sass.instructions
    return {
        "kernel": kernel.title,
        "config": kernel.config,
        "arch": kernel.arch,
        "sha256": dict(kernel.digests),
        "ptx": [
            {
                "line": row.line,
                "text": row.text,
                "cuda": list(map(str, row.chain)),
                "sass": [instructions[i].address for i in kernel.became.get(index, ())],
            }
            for index, row in enumerate(kernel.ptx)
            if index in chosen.ptx
        ],
        "sass": [
            {
                "address": instructions[index].address,
                "text": str(instructions[index]),
                "class": instructions[index].opcode_class,
                "ptx": None if (origin := kernel.made_from[index]) is None else kernel.ptx[origin].line,
                "main_loop": index in kernel.main_loop,
            }
            for index in sorted(chosen.sass)
        ],
    }
