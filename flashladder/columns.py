"""Tables and status lines for a terminal, Markdown tables, and CSV.

A table that is wider than the terminal gets narrower gaps, and then wrapped cells. The width is that of the terminal or
of COLUMNS, and 80 in a pipe. Run: ``COLUMNS=60 invoke list``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
import csv
import io
from itertools import zip_longest
import shutil
import sys
import textwrap
from threading import Timer
from typing import TypeVar

LEAST = 40  # columns; a narrower terminal breaks the lines itself
GAPS = (2, 1)  # blanks between columns; the first that fits is used

Row = Sequence[str]
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def terminal_width() -> int:
    """The number of columns that a line may take."""
    return max(LEAST, shutil.get_terminal_size((80, 24)).columns)


def hanging(head: str, text: str) -> str:
    """Puts `text` after `head`, wrapped for the terminal; further lines are indented two columns more than `head`."""
    width, indent = terminal_width(), " " * (len(head) + 2) if head else ""
    if len(head) + len(text) <= width:
        return head + text
    return textwrap.fill(
        text, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def natural_width(rows: Sequence[Row]) -> int:
    """The number of columns that the table takes when no cell is wrapped."""
    return sum(_widths(rows)) + GAPS[0] * (len(rows[0]) - 1)


def table(
    rows: Sequence[Row], limit: int | None, right: Collection[int] = (), wrapped: Collection[int] = ()
) -> list[str]:
    """Aligns rows of equally many cells, in lines of at most `limit` columns (None: any) if the words are short enough.

    `right` are the indices of the columns that are aligned to the right, `wrapped` of those whose cells may be broken
    between words, the widest first.
    """
    widths, limit = _widths(rows), sys.maxsize if limit is None else limit
    least = {column: max(len(word) for row in rows for word in row[column].split() or [""]) for column in wrapped}
    narrowest = sum(least.get(column, width) for column, width in enumerate(widths))
    fitting = (gap for total in (sum(widths), narrowest) for gap in GAPS if total + gap * (len(widths) - 1) <= limit)
    gap = next(fitting, GAPS[0])
    while sum(widths) + gap * (len(widths) - 1) > limit:
        candidates = [column for column in wrapped if widths[column] > least[column]]
        if not candidates:
            break
        widths[max(candidates, key=lambda column: widths[column])] -= 1
    return [line for row in rows for line in _lines(row, widths, gap, right)]


def _widths(rows: Sequence[Row]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _lines(row: Row, widths: Sequence[int], gap: int, right: Collection[int]) -> Iterator[str]:
    """One row, on as many lines as its longest cell needs."""
    cells = [
        textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) if len(cell) > width else [cell]
        for cell, width in zip(row, widths, strict=True)
    ]
    for parts in zip_longest(*cells, fillvalue=""):
        padded = [
            part.rjust(width) if column in right else part.ljust(width)
            for column, (part, width) in enumerate(zip(parts, widths, strict=True))
        ]
        yield (" " * gap).join(padded).rstrip()


def listed(names: Sequence[str]) -> str:
    """Joins the names as ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Lists of the items with equal keys, in the order of each key's first item."""
    found: dict[Key, list[Item]] = {}
    for one in items:
        found.setdefault(key(one), []).append(one)
    return found


def csv_records(lines: Iterable[str]) -> list[dict[str, str]]:
    """The rows of a CSV by its header's names; `ValueError`: no header, unequal numbers of cells, or malformed."""
    reader = csv.reader(lines)
    try:
        header = next(reader, [])
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    if not header or len(set(header)) != len(header):
        raise ValueError("line 1: expected a header, each name once")
    for number, row in rows:
        if len(row) != len(header):
            raise ValueError(f"line {number} has {len(row)} cells, and the header {len(header)}")
    return [dict(zip(header, row, strict=True)) for _, row in rows]


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The rows as CSV under one header line; None becomes an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_no_formula(cell) for cell in row] for row in rows)
    return out.getvalue()


def csv_of(records: Sequence[Mapping[str, object]]) -> str:
    """Records with the same keys as CSV; empty when there are no records."""
    return csv_text(list(records[0]), (list(record.values()) for record in records)) if records else ""


def _no_formula(cell: object) -> object:
    """Quotes a text that a spreadsheet would take for a formula, such as a name that begins with ``=``."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "@", "\t", "\r")) else cell


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 2) -> str:
    """A Markdown table with padded cells; the first `left` columns are left-aligned, the others right-aligned."""
    rows = [[" ".join(cell.replace("|", "\\|").splitlines()) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join(line(cells) for cells in (header, rule, *rows))


@contextmanager
def after(seconds: float, do: Callable[[], object]) -> Iterator[None]:
    """Calls `do` in another thread when the body takes longer than `seconds`."""
    timer = Timer(seconds, do)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def told_on_terminal(text: str) -> Iterator[None]:
    """Shows `text` on a terminal's stderr while the body runs, if it takes longer than a second; then erases it."""
    if not sys.stderr.isatty():
        yield
        return
    try:
        with after(1, lambda: print(text, end="", file=sys.stderr, flush=True)):
            yield
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
