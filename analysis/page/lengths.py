"""Question: how fast is each step at each length, in TFLOP/s and in percent of FA2, and what stands beside it?

Why beside the ratios: a ratio hides that FA2 itself is slow at short lengths. TFLOP/s are as timed, at the clock that
the card chose beside that kernel; the ratio to FA2 is what compares.

Run: ``python analysis/page/lengths.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from flashladder.ladder.config import DTYPES, KernelConfig
from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book, Timed
from flashladder.report.page.cells import Cell, Column, Table
from flashladder.report.page.figure import DASHES, Drawn, Plot, draw
from flashladder.report.page.sections import Content
from flashladder.results.schema import Summary, kernel_key

ORDER, TITLE = 20, "Speed over length"
FURTHER = ("hopper",)  # grids beside each machine's own, whose steps have references of their own time beside them
WIDEST = 0.2  # interval of a point on the line, as a share of its percentage of FA2


def milestones(book: Book, one: Timed, dtype: str) -> list[tuple[str, str]]:
    """Kernels worth a line each, with their names: the first two steps, the fastest, the last, the references."""
    found = {}
    for step in book.ladder.iterations:
        config = step.configs.get(one.configs_of) or next(iter(step.configs.values()))
        key = kernel_key(step.number, config.with_dtype(dtype).short_form())
        if (key, dtype, one.lengths[-1]) in one.summaries:
            found[step.number] = key
    if not found:
        return []
    best = max(found, key=lambda number: one.summaries[found[number], dtype, one.lengths[-1]].pct)
    numbers = sorted({*list(found)[:2], best, max(found)})
    return [(found[number], f"iteration {number}") for number in numbers] + [
        (name, name) for name in one.result.references
    ]


def panel(book: Book, one: Timed, dtype: str) -> Drawn:
    """TFLOP/s over length on one machine: the milestones, the references and FA2 beside them."""

    def fill(plot: Plot) -> None:
        chosen = milestones(book, one, dtype)
        for style, (key, name) in enumerate(chosen):
            own = [one.summaries[key, dtype, n] for n in one.lengths if (key, dtype, n) in one.summaries]
            series(book, plot, one, own, name, style)
        fa2(book, plot, one, dtype)
        plot.axes.set_xscale("log", base=2)
        plot.axes.set_xticks(one.lengths, [str(n) for n in one.lengths])
        plot.axes.minorticks_off()
        plot.axes.set(xlabel="sequence length", ylabel="TFLOP/s, as timed")
        plot.axes.set_ylim(bottom=0)
        low, high = plot.axes.get_ylim()
        plot.axes.set_ylim(low, high * 1.22)
        plot.legend("upper left", columns=3)

    told = f"Forward pass, {dtype}, d_head 128; each kernel timed in turn with FA2, whose line is the median beside all"
    if any(wide(one.summaries[key, dtype, n]) for key, _ in milestones(book, one, dtype) for n in one.lengths
           if (key, dtype, n) in one.summaries):  # fmt: skip
        told += f"; hollow, off the line: its interval is wider than {WIDEST:.0%} of it, so that it says little"
    grid = one.path.name.partition(".")[0]
    own = grid == one.path.parent.name  # the machine's own grid, named after it
    name = "-".join(["tflops", one.path.parent.name, *([] if own else [grid]), dtype])
    title = f"{one.title}, {dtype}" + ("" if own else f", grid {grid}")
    return draw(name, title, f"{told}.", fill)


def wide(summary: Summary) -> bool:
    """Whether the interval of a figure is too wide for its point to be believed."""
    return summary.pct_high - summary.pct_low > WIDEST * summary.pct


def series(book: Book, plot: Plot, one: Timed, own: list[Summary], name: str, style: int) -> None:
    """One kernel's line, without the points whose intervals are wide, which stand hollow beside it."""
    dash = style % len(DASHES)
    firm = [s for s in own if not wide(s)]
    plot.line([s.shape.seq_len for s in firm], [s.tflops for s in firm], style, dash=dash)
    for hollow, chosen in ((False, firm), (True, [s for s in own if wide(s)])):
        urls = [
            plot.url(
                book.records.timing(one.holding(s.kernel).path, s.kernel, s.dtype, s.shape),
                f"{one.title}, {name}, S = {s.shape.seq_len}: {s.tflops:.1f} TFLOP/s, {s.pct:.1f} % of FA2"
                + (f" ({s.pct_low:.1f} to {s.pct_high:.1f} %: unsure)" if hollow else ""),
            )
            for s in chosen
        ]
        plot.dots([s.shape.seq_len for s in chosen], [s.tflops for s in chosen], urls, style, hollow=hollow)
    plot.label(name, style, dash=dash)


def fa2(book: Book, plot: Plot, one: Timed, dtype: str) -> None:
    """FA2's line: at each length the median of what it reached beside the kernels; a point leads to the A/A samples."""
    points = []
    for n in one.lengths:
        found = sorted(s.reference_tflops for s in one.result.summaries if (s.dtype, s.shape.seq_len) == (dtype, n))
        if found:
            points.append((n, found[len(found) // 2]))
    record = book.records.floor(one.path, dtype)
    told = [f"{one.title}, FA2, S = {n}: {value:.1f} TFLOP/s" for n, value in points]
    xs, ys = [n for n, _ in points], [value for _, value in points]
    plot.line(xs, ys, 7, dash=0, width=2)
    plot.dots(xs, ys, [plot.url(record, text) for text in told], 7, size=14)
    plot.label("FA2", 7)


def table(book: Book, one: Timed, dtype: str) -> Table:
    """Every kernel of one file at every length."""
    columns = cells.columns("#|text", "configuration|code")
    columns += [Column(f"S = {n}", told="percent of FA2") for n in one.lengths] + [Column("TFLOP/s at the longest")]
    rows = []
    for key in dict.fromkeys(name for name, of, _ in one.summaries if of == dtype):
        kernel = one.holding(key).result.kernels.get(key)
        name = f"{kernel.iteration}{kernel.variant}" if kernel else key
        row = [
            Cell(name, sort=kernel.iteration if kernel else None),
            cells.text(KernelConfig.parse(kernel.config).brief() if kernel else None),
        ]
        for n in one.lengths:
            s = one.summaries.get((key, dtype, n))
            row.append(
                cells.number(s.pct, 1, book.records.timing(one.holding(key).path, key, dtype, s.shape), s.verdict)
                if s
                else cells.EMPTY
            )
        s = one.summaries.get((key, dtype, one.lengths[-1]))
        row.append(
            cells.number(s.tflops, 1, book.records.timing(one.holding(key).path, key, dtype, s.shape))
            if s
            else cells.EMPTY
        )
        rows.append(row)
    further = "".join(f", {each.path.name}" for each in one.further)
    where = f"{one.path.relative_to(book.root).as_posix()}{further}"
    return Table(f"lengths-{one.path.parent.name}-{one.path.name.partition('.')[0]}-{dtype}",
                 f"{one.title}, {dtype}: percent of FA2 at each length ({where})", columns, rows)  # fmt: skip


def content(book: Book) -> Content:
    files = {one.path: one for one in (*book.machines, *book.sweeps)}.values()
    further = [one for grid in FURTHER for one in book.further_sweeps(grid)]
    return {
        "panels": [panel(book, one, dtype) for one in (*book.sweeps, *further) for dtype in DTYPES],
        "tables": [table(book, one, dtype) for one in files for dtype in DTYPES],
    }


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
