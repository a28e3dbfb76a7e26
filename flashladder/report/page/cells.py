"""Tables of the page as data: columns, cells, and what each cell leads to; the templates turn them into HTML.

Why data: every table of the page sorts, filters, scrolls on a phone and links its numbers in the same way, which
``templates/macros.html.j2`` alone decides. Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
        return "" if told else f"{self.sort:.7g}"


@dataclass(frozen=True)
class Table:
    """One table: `groups` are titles over several columns, each with how many."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int]] = ()


EMPTY = Cell(DASH)
STRONGEST = 55  # percent of the ground under a row's largest number, so that it stays readable


def text(value: object, style: str = "", target: str = "") -> Cell:
    """A cell of words; a dash for None."""
    return EMPTY if value is None else Cell(str(value), style=style, target=target)


def number(value: float | None, digits: int = 1, records: str = "", style: str = "") -> Cell:
    """A cell with a number of so many digits, which sorts by the whole of it; a dash for None."""
    return EMPTY if value is None else Cell(f"{value:,.{digits}f}", records, float(value), style)


def heat(count: float, most: float) -> int:
    """Percent of the ground that is coloured under a count, of which `most` is the row's largest."""
    return round(STRONGEST * count / most) if most else 0


def heated(count: float, most: float, records: str = "") -> Cell:
    """A count on a ground as strong as its share of the row's largest."""
    return Cell(f"{count:,.0f}", records, count, heat=heat(count, most))


def verdict(word: str | None, records: str = "") -> Cell:
    """A verdict in words, with its class."""
    return Cell(word, records, style=f"verdict {word}") if word else EMPTY


def step(number: int) -> Cell:
    """The number of an iteration, which leads to its article."""
    return Cell(str(number), sort=float(number), target=f"iteration-{number}")


def columns(*titles: str) -> list[Column]:
    """Columns by title and kind, ``"verdict|short"``; those of numbers by their title alone."""
    kinds: dict[str, Kind] = {"text": "text", "short": "short", "code": "code"}
    parts = [title.partition("|") for title in titles]
    return [Column(title, kinds[kind] if kind else "number") for title, _, kind in parts]
