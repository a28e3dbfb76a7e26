"""How fast each step is at each length, in TFLOP/s and percent of FA2, and how near that is to the GPU's peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flashladder.columns import grouped
from flashladder.ladder.gpus import load_gpus
from flashladder.names import DTYPES, PUBLISHED_GPU
from flashladder.report import page
from flashladder.report.book import Book
from flashladder.report.data import Timed
from flashladder.report.page import GROUND, MARKERS, SERIES, Block, Cell, Column, Panel, Table, draw, line
from flashladder.report.sweeps import named
from flashladder.results.schema import Summary, kernel_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDER, TITLE = 20, "Speed over length"
WIDEST = 0.2  # interval of a point on the line, as a share of its percentage of FA2
EXPLAINED = (
    "Colour tells a cell's verdict: faster or slower than FA2 beyond the A/A floor, grey where they cannot be told "
    "apart. TFLOP/s are as timed, at the clock that the card chose for that kernel; compare ratios to FA2."
)


def grid_of(one: Timed) -> str:
    """The grid of a sweep, by the file's name."""
    return one.path.name.partition(".")[0]


def milestones(book: Book, one: Timed, dtype: str) -> list[tuple[str, str]]:
    """Kernels worth a line each, with their names: the first two steps, the fastest, the last, the libraries."""
    found = {}
    for step in book.ladder.iterations:
        config = step.configs.get(one.configs_of, step.configs[PUBLISHED_GPU]).with_dtype(dtype)
        key = kernel_key(step.number, config.short_form())
        if (key, dtype, one.lengths[-1]) in one.summaries:
            found[step.number] = key
    best = max(found, key=lambda number: one.summaries[found[number], dtype, one.lengths[-1]].pct, default=0)
    numbers = sorted({*list(found)[:2], best, max(found, default=0)} - {0})
    steps = [(found[number], f"iteration {number}") for number in numbers]
    return [*steps, *((name, name) for name in one.result.references)]


def wide(summary: Summary) -> bool:
    """Whether the interval of a figure is too wide for its point to be believed."""
    return summary.pct_high - summary.pct_low > WIDEST * summary.pct


def series(book: Book, one: Timed, dtype: str) -> list[tuple[str, list[tuple[int, float]], list[tuple[int, float]]]]:
    """Name, points on the line, and points off it whose intervals are wide; FA2 is the median beside all kernels."""
    found = []
    for key, name in milestones(book, one, dtype):
        own = [s for n in one.lengths if (s := one.summaries.get((key, dtype, n)))]
        firm, doubtful = ([(s.shape.seq_len, s.tflops) for s in own if wide(s) is so] for so in (False, True))
        found.append((name, firm, doubtful))
    beside = grouped((s for s in one.result.summaries if s.dtype == dtype), lambda s: s.shape.seq_len)
    fa2 = {n: sorted(s.reference_tflops for s in own) for n, own in sorted(beside.items())}
    return [*found, ("FA2", [(n, own[len(own) // 2]) for n, own in fa2.items()], [])]


def panel(book: Book, one: Timed, dtype: str) -> Panel:
    """TFLOP/s over length on one machine: the milestones, the libraries and FA2 beside them."""
    lines = series(book, one, dtype)

    def fill(axes: Axes) -> None:
        for style, (name, firm, doubtful) in enumerate(lines):
            line(axes, [n for n, _ in firm], [y for _, y in firm], style % len(SERIES), name)
            axes.scatter(
                [n for n, _ in doubtful], [y for _, y in doubtful], s=22, marker=MARKERS[style % len(MARKERS)],
                facecolors=GROUND, edgecolors=SERIES[style % len(SERIES)], zorder=4,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(one.lengths, [str(n) for n in one.lengths])
        axes.minorticks_off()
        axes.set(xlabel="sequence length", ylabel="TFLOP/s, as timed")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.22)
        axes.legend(loc="upper left", ncols=3)

    told = f"Forward pass, {dtype}, d_head 128, {one.days}; each kernel alternates with FA2, whose line is the median"
    if any(doubtful for *_, doubtful in lines):
        told += f"; hollow, off the line: the interval is wider than {WIDEST:.0%} of the figure"
    name = f"tflops-{one.name}-{grid_of(one)}-{dtype}"
    return draw(name, f"{one.title}, {dtype}, grid {grid_of(one)}", f"{told}.", lines, fill)


def table(book: Book, one: Timed, dtype: str) -> Table:
    """Every kernel of a machine's files at every length."""
    columns = page.columns("#|text", "configuration|code")
    columns += [Column(f"S = {n}", hint="percent of FA2") for n in one.lengths] + [Column("TFLOP/s at the longest")]
    rows = []
    for key in dict.fromkeys(name for name, of, _ in one.summaries if of == dtype):
        path, result = one.holding(key)
        kernel = result.kernels.get(key)
        name, brief = named(key, result.kernels)
        row = [Cell(name, sort=kernel.iteration if kernel else None), Cell(brief)]
        found = [one.summaries.get((key, dtype, n)) for n in one.lengths]
        last = found[-1]
        records = [book.records.timing(path, key, dtype, s.shape) if s else "" for s in found]
        row += [
            page.number(s.pct if s else None, 1, r, s.verdict if s else "") for s, r in zip(found, records, strict=True)
        ]
        rows.append([*row, page.number(last.tflops if last else None, 1, records[-1])])
    where = ", ".join([one.path.relative_to(book.root).as_posix(), *(path.name for path, _ in one.files[1:])])
    caption = f"{one.title}, {dtype}: percent of FA2 at each length ({where})"
    return Table(f"lengths-{one.name}-{grid_of(one)}-{dtype}", caption, columns, rows)


def peaks(book: Book) -> Table:
    """The best step and FA2 in percent of the tensor cores' documented peak, which binds at every length."""
    lengths = sorted({n for one in book.beside_libraries for n in one.lengths})
    rows = []
    for one in book.beside_libraries:
        peak = load_gpus()[one.key].peaks["fp16_tensor"] if one.key else None
        for name in ("fastest step", "FA2") if peak else ():
            shares = []
            for n in lengths:
                own = [s for s in one.result.summaries if (s.dtype, s.shape.seq_len) == ("fp16", n)]
                best = max((s for s in own if s.kernel in one.result.kernels), key=lambda s: s.pct, default=None)
                tflops = 0.0 if not best else best.reference_tflops if name == "FA2" else best.tflops
                record = book.records.timing(one.path, best.kernel, best.dtype, best.shape) if best else ""
                shares.append(page.number(100 * tflops / peak.value if best and peak else None, 0, record))
            of = f"{peak.value:g} {peak.unit}" if peak else ""
            rows.append([Cell(one.title), Cell(grid_of(one)), Cell(name), *shares, Cell(of)])
    columns = page.columns("GPU|text", "grid|text", "kernel|text", *(f"S = {n}" for n in lengths), "peak|text")
    return Table("peaks", "Percent of the tensor cores' documented fp16 peak (configs/gpus)", columns, rows)


def content(book: Book) -> Sequence[Block]:
    """A panel for each sweep, the share of the peak, and a table for each machine and dtype."""
    tables = [table(book, one, dtype) for one in book.machines for dtype in DTYPES]
    panels = [panel(book, one, "fp16") for one in book.beside_libraries]
    return [panels, EXPLAINED, peaks(book), *map(page.fold, tables)]
