"""The table of instructions: one row per opcode form, with the function that computes it.

What is supported can be listed, tested and documented from one place, and an opcode that is not in it is an error with
its PTX line. A *lane* row is a pure function of arrays, applied to all lanes at once; a *machine* row sees more than
its own lane (memory, the warp, the block) and receives a `state.FullStep`.

    lane("add.u32", "u32", "u32 u32", lambda a, b: a + b, "a + b, wrapping")

A form may hold alternatives in braces: ``cvt{.rni,.rzi}.s32.f32`` stands for two forms with one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import itertools
import re
import sys
from typing import Any, Literal

Kind = Literal["lane", "machine", "control"]
CARRY = "%cc"  # the carry flag of add.cc and its kin, kept like a predicate register


@dataclass(frozen=True)
class Row:
    """One opcode form.

    Attributes:
        form: the full opcode, for example ``add.ftz.f32``.
        kind: ``lane`` (pure), ``machine`` (memory, warp, block) or ``control`` (branches, barriers: the engine's own).
        results: PTX types of the destination operands, first operands of the instruction; lane rows only.
        sources: PTX types of the source operands.
        function: lane: arrays of `sources` (plus the carry, a bool array, last) -> array of `results[0]`, or a tuple
            when there are several results (plus the carry, last, when it is written). machine: takes a `Step`.
        summary: what it computes, in one line, for the documentation.
        group: the module that defines it, for the documentation.
        reads_carry, writes_carry: whether the implicit carry flag takes part.
    """

    form: str
    kind: Kind
    results: tuple[str, ...]
    sources: tuple[str, ...]
    function: Callable[..., Any]
    summary: str
    group: str
    reads_carry: bool = False
    writes_carry: bool = False


ROWS: dict[str, Row] = {}


def expand(form: str) -> Iterator[str]:
    """Every opcode that a form with ``{a,b}`` alternatives stands for, in order."""
    pieces = re.split(r"\{([^}]*)\}", form)
    choices = [piece.split(",") if index % 2 else [piece] for index, piece in enumerate(pieces)]
    for chosen in itertools.product(*choices):
        yield "".join(chosen)


def _add(row: Row) -> None:
    if row.form in ROWS:
        raise ValueError(f"{row.form} is in the table twice: {ROWS[row.form].group} and {row.group}")
    ROWS[row.form] = row


def lane(
    form: str,
    results: str,
    sources: str,
    function: Callable[..., Any],
    summary: str,
    *,
    reads_carry: bool = False,
    writes_carry: bool = False,
) -> None:
    """Adds lane-wise forms: a pure function from the source arrays to the result array(s)."""
    group = str(sys._getframe(1).f_globals["__name__"]).rpartition(".")[2]  # noqa: SLF001 - the module that adds the row
    types = tuple(results.split()), tuple(sources.split())
    for opcode in expand(form):
        _add(Row(opcode, "lane", *types, function, summary, group, reads_carry, writes_carry))


def machine(form: str, summary: str, *, kind: Kind = "machine") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that adds forms which see memory, the warp or the block; the function takes a `Step`."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        for opcode in expand(form):
            _add(Row(opcode, kind, (), (), function, summary, function.__module__.rpartition(".")[2]))
        return function

    return add
