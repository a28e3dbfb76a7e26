"""Blocks of the page as data: tables with cells that lead to records, folded parts; the templates make HTML of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from flashladder.report.panels import Panel
from flashladder.report.tables import DASH

Kind = Literal["text", "short", "number", "code"]


@dataclass(frozen=True)
class Column:
    """One column: its title, how its cells are set, and what a pointer over the title tells."""

    title: str
    kind: Kind = "number"
    told: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: what is shown, as text and never as markup.
        records: numbers of the records behind it, ``"3"`` or ``"3,17"``; empty for what nothing was measured for.
        sort: what the column is sorted by, where it is not the text.
        style: a class of the page's style sheet, such as a verdict.
        heat: percent of the ground that is coloured, in a heat map.
        target: the anchor in the page that the cell leads to, where it has no records.
    """

    text: str
    records: str = ""
    sort: float | None = None
    style: str = ""
    heat: int | None = None
    target: str = ""

    @property
    def key(self) -> str:
        """What the page sorts by; empty where the text says it."""
        if self.sort is None:
            return ""
        plain = self.text.replace(",", "")
        told = plain.removeprefix("-").replace(".", "", 1).isdecimal() and float(plain) == self.sort
        return "" if told else f"{self.sort:.5g}"


@dataclass(frozen=True)
class Table:
    """One table: `groups` are titles over several columns, each with how many."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Fold:
    """Blocks below a line that unfolds them; `name` is the anchor that a link unfolds."""

    title: str
    blocks: Sequence[Block]
    name: str = ""
    open: bool = False


@dataclass(frozen=True)
class Panels:
    """Plots side by side, as far as there is room."""

    panels: Sequence[Panel]


Block = Table | Fold | Panels | str  # a text is Markdown
EMPTY = Cell(DASH)
STRONGEST = 55  # percent of the ground under a row's largest number, so that it stays readable


def number(value: float | None, digits: int = 1, records: str = "", style: str = "") -> Cell:
    """A cell with a number of so many digits, which sorts by the whole of it; a dash for None."""
    return EMPTY if value is None else Cell(f"{value:,.{digits}f}", records, float(value), style)


def heated(count: float, most: float, records: str = "") -> Cell:
    """A count on a ground as strong as its share of the row's largest, `most`."""
    return Cell(f"{count:,.0f}", records, count, heat=round(STRONGEST * count / most) if most else 0)


def step(number: int) -> Cell:
    """The number of an iteration, which leads to its note."""
    return Cell(str(number), sort=float(number), target=f"iteration-{number}")


def columns(*titles: str) -> list[Column]:
    """Columns by title and kind, ``"verdict|short"``; those of numbers by their title alone."""
    parts = [title.partition("|") for title in titles]
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    return [Column(title, kinds[kind or "number"]) for title, _, kind in parts]


def fold(table: Table) -> Fold:
    """A table that one unfolds by its caption."""
    return Fold(table.caption, [table])
