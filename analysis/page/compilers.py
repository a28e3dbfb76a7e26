"""Question: is the ladder's speed that of its source, or that of one compiler?

Why: a step that another nvcc undoes is a step of that compiler's. The same source, through the compilers of later CUDA
releases, timed beside FA2 like everything else.

Run: ``python analysis/page/compilers.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book, Timed
from flashladder.report.page.cells import Cell, Table
from flashladder.report.page.records import join
from flashladder.report.page.sections import Content
from flashladder.report.variants.tables import percent_of
from flashladder.report.variants.worth import Comparison, toolchains

ORDER, TITLE = 80, "Other compilers"


def row(book: Book, one: Timed, c: Comparison) -> list[Cell]:
    """One iteration through one compiler at one length, beside the pinned one."""
    sides = [side.kernel for side in (c.base, c.variant)]
    record = join(book.records.timing(one.path, kernel.key, c.dtype, c.shape) for kernel in sides if kernel)
    pinned, other = sides
    speed = [Cell(c.lacking), cells.EMPTY, cells.EMPTY]
    if c.worth is not None:
        middle, low, high = (percent_of(value) for value in (c.worth.median, c.worth.low, c.worth.high))
        span = Cell(f"{low:+.2f} to {high:+.2f}", record, low)
        speed = [cells.number(middle, 2, record), span, cells.verdict(c.verdict, record)]
    return [
        Cell(c.base.subject.text),
        Cell(c.variant.subject.cuda),
        Cell(other.toolchain.get("nvidia-cuda-nvcc", "") if other else ""),
        cells.number(c.shape.seq_len, 0),
        *speed,
        Cell("the same" if c.same_code else "another"),
        *(cells.number(kernel.registers if kernel else None, 0, record) for kernel in (pinned, other)),
    ]


def table(book: Book, one: Timed) -> Table:
    """Every iteration through every compiler."""
    columns = cells.columns(
        "#",
        "CUDA|text",
        "nvcc|text",
        "S",
        "% faster",
        "95 %|short",
        "verdict|short",
        "machine code|text",
        "registers, pinned",
        "registers",
    )
    caption = f"The same source through other compilers on {one.title}, beside the pinned one"
    return Table(
        f"compilers-{one.path.parent.name}", caption, columns, [row(book, one, c) for c in toolchains(one.result)]
    )


def content(book: Book) -> Content:
    return {"tables": [table(book, one) for one in book.grids("toolchain")]}


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
