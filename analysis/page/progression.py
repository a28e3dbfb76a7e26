"""Question: how far did each step come against FA2, on every GPU that was measured and on those that others published?

Why one table: measured and published figures stand side by side and never in one column; a percentage without its
interval, its verdict and the A/A floor says little. Steps without a figure keep their row.

Run: ``python analysis/page/progression.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flashladder.ladder.config import DTYPES
from flashladder.ladder.iteration import Iteration
from flashladder.names import PUBLISHED_GPU
from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import HEADLINE_LENGTH, Book, Timed
from flashladder.report.page.cells import Cell, Column, Table
from flashladder.report.page.figure import INK, Drawn, Plot, draw
from flashladder.report.page.sections import Content
from flashladder.report.tables import NOT_RUN, gpu_title
from flashladder.results.published import PROGRESSION, Statistic
from flashladder.results.schema import Mean, Summary, kernel_key

ORDER, TITLE = 10, "Progression against FA2"
MEASURED = ("% of FA2", "95 %", "verdict", "h. mean")
ZOOM = 7  # from here on the steps lie within a few points of FA2


def key_of(step: Iteration, configs_of: str, dtype: str) -> str:
    """The kernel of a step in the configuration of one GPU."""
    config = step.configs.get(configs_of, step.configs[PUBLISHED_GPU])
    return kernel_key(step.number, config.with_dtype(dtype).short_form())


def mean_of(machine: Timed, kernel: str, dtype: str) -> Mean | None:
    """The harmonic mean of a kernel, where all lengths were timed."""
    means = machine.holding(kernel).result.means
    return next((mean for mean in means if (mean.kernel, mean.dtype) == (kernel, dtype)), None)


def measured(book: Book, machine: Timed, kernel: str, dtype: str, missing: str = "") -> Iterator[Cell]:
    """The cells of one kernel on one machine."""
    summary = machine.summaries.get((kernel, dtype, HEADLINE_LENGTH))
    if summary is None:
        yield Cell(missing) if missing else cells.EMPTY
        yield from (cells.EMPTY,) * (len(MEASURED) - 1)
        return
    path = machine.holding(kernel).path
    record = book.records.timing(path, kernel, dtype, summary.shape)
    yield cells.number(summary.pct, 1, record, "head")
    yield Cell(f"{summary.pct_low:.1f} to {summary.pct_high:.1f}", record, summary.pct_low)
    yield cells.verdict(summary.verdict, record)
    mean = mean_of(machine, kernel, dtype)
    yield cells.number(mean.pct, 1, book.records.mean(path, kernel, dtype)) if mean else cells.EMPTY


def published(book: Book, step: Iteration, gpu: str, statistic: Statistic) -> Cell:
    """A published figure, with where it was published; a dash for later steps."""
    found = book.ladder.published.find(step.number, gpu, statistic)
    if found is None:
        return cells.EMPTY
    facts = {
        "published by": found.source, "gives": f"{found.value:g} % of FA2 ({statistic})",
        "measured by": book.ladder.published.description.source.measured_by,
        "a measurement on this GPU may lie off by": f"{found.tolerance:g} points",
    }  # fmt: skip
    path = book.results / "published" / PROGRESSION
    return cells.number(found.value, 1, book.records.fact(path, f"Iteration {step.number} on {gpu_title(gpu)}", facts))


def table(book: Book, dtype: str, configs_of: str | None) -> Table:
    """Every step on every GPU: `configs_of` None for each GPU's own configurations."""
    gpus = book.ladder.published.gpus
    columns = cells.columns("#", "Step|text")
    groups = [("", 2)]
    for machine in book.machines:
        columns += [Column(title, "short" if title in ("verdict", "95 %") else "number") for title in MEASURED]
        groups.append((f"{machine.title}, measured", len(MEASURED)))
    for gpu in gpus if dtype == "fp16" else ():
        columns += [Column("% of FA2"), Column("h. mean")]
        groups.append((f"{gpu_title(gpu)}, published", 2))
    rows = []
    for step in book.ladder.iterations:
        row = [cells.step(step.number), Cell(step.title)]
        for machine in book.machines:
            missing = NOT_RUN if step.not_run_on(machine.result.gpu.arch) else ""
            row += measured(book, machine, key_of(step, configs_of or machine.configs_of, dtype), dtype, missing)
        for gpu in gpus if dtype == "fp16" else ():
            row += [published(book, step, gpu, "seq4096"), published(book, step, gpu, "hmean")]
        rows.append(row)
    whose = f"the {gpu_title(configs_of)}'s configurations" if configs_of else "each GPU's own configurations"
    name = f"progression-{dtype}-{configs_of or 'own'}"
    caption = f"Percent of FA2's speed at S = {HEADLINE_LENGTH} and over all lengths, {dtype}, {whose}"
    return Table(name, caption, columns, rows, groups)


def anchors(book: Book) -> Table:
    """What else computes attention on these GPUs, timed beside FA2 in the same sweep as the ladder."""
    columns = cells.columns("reference|text", "dtype|text", "version|text")
    rows = []
    names = dict.fromkeys(name for sweep in book.sweeps for name in sweep.result.references)
    for name in names:
        for dtype in DTYPES:
            versions = dict.fromkeys(
                one.result.references[name].version or f"torch {one.result.references[name].torch}"
                for one in book.sweeps if name in one.result.references
            )  # fmt: skip
            row = [Cell(name), Cell(dtype), Cell(", ".join(versions))]
            rows.append(row + [cell for one in book.sweeps for cell in measured(book, one, name, dtype)])
    groups = [("", 3), *((f"{one.title}, measured in its sweep", len(MEASURED)) for one in book.sweeps)]
    columns += [
        Column(title, "short" if title in ("verdict", "95 %") else "number") for _ in book.sweeps for title in MEASURED
    ]
    return Table("anchors", f"Other kernels on the same cards at S = {HEADLINE_LENGTH}", columns, rows, groups)


def panel(book: Book, name: str, title: str, first: int) -> Drawn:
    """Percent of FA2 over the steps from `first` on: measured lines with intervals, published ones dashed."""

    def fill(plot: Plot) -> None:
        plot.axes.axhline(100, color=INK, linewidth=1)
        for style, machine in enumerate(book.machines):
            line(book, plot, machine, style, first)
        for style, gpu in enumerate(book.ladder.published.gpus, len(book.machines)):
            own = [(one.number, cell) for one in book.ladder.iterations if one.number >= first
                   if (cell := published(book, one, gpu, "seq4096")).sort is not None]  # fmt: skip
            xs, ys = [number for number, _ in own], [cell.sort or 0.0 for _, cell in own]
            told = [f"{gpu_title(gpu)}, published: iteration {n}, {cell.text} %" for n, cell in own]
            plot.line(xs, ys, style, dash=1 + style, width=1.2)
            plot.dots(xs, ys, [plot.url(c.records, t) for (_, c), t in zip(own, told, strict=True)], style, hollow=True)
            plot.label(f"{gpu_title(gpu)}, published", style, dash=1 + style)
        plot.axes.set(xlabel="iteration", ylabel="percent of FA2, S = 4096, fp16")
        plot.axes.set_xticks([one.number for one in book.ladder.iterations if one.number >= first])
        plot.legend()

    told = "; ".join(highest(machine) for machine in book.machines)
    return draw(name, title, f"Filled: measured, with 95 % intervals; hollow: published. {told}.", fill)


def highest(machine: Timed) -> str:
    """``H100, iterations 1 to 16: at most 109.3 %``: what a line shows, and from which step to which."""
    pcts: dict[int, float] = {}
    for one in machine.summaries.values():
        if is_headline(one, machine):
            step = machine.holding(one.kernel).result.kernels[one.kernel].iteration
            pcts[step] = max(one.pct, pcts.get(step, 0.0))
    if not pcts:
        return f"{machine.title}: not measured"
    return f"{machine.title}, iterations {min(pcts)} to {max(pcts)}: at most {max(pcts.values()):.1f} %"


def is_headline(one: Summary, machine: Timed) -> bool:
    """Whether a summary is a kernel of the ladder in fp16 at the length of the headline."""
    kernels = machine.holding(one.kernel).result.kernels
    return one.kernel in kernels and (one.dtype, one.shape.seq_len) == ("fp16", HEADLINE_LENGTH)


def line(book: Book, plot: Plot, machine: Timed, style: int, first: int) -> None:
    """One measured machine's line."""
    found = []
    for step in book.ladder.iterations:
        summary = machine.summaries.get((key_of(step, machine.configs_of, "fp16"), "fp16", HEADLINE_LENGTH))
        if summary is not None and step.number >= first:
            found.append((step.number, summary))
    xs, ys = [number for number, _ in found], [summary.pct for _, summary in found]
    plot.line(xs, ys, style, width=1 if style else 2.6)
    plot.whiskers(xs, ys, [(summary.pct_low, summary.pct_high) for _, summary in found], style)
    urls = [
        plot.url(
            book.records.timing(machine.path, one.kernel, one.dtype, one.shape),
            f"{machine.title}, measured: iteration {number}, {one.pct:.1f} % "
            f"({one.pct_low:.1f} to {one.pct_high:.1f}), {one.verdict}",
        )
        for number, one in found
    ]
    plot.dots(xs, ys, urls, style, size=9 if style else 30)
    plot.label(f"{machine.title}, measured", style)


def floors(book: Book) -> Table:
    """The A/A floor of each file of timings: FA2 beside itself, what no difference within counts as one."""
    rows = [
        [Cell(one.title), Cell(dtype), cells.number(floor, 2, book.records.floor(one.path, dtype)),
         Cell(one.path.relative_to(book.root).as_posix())]
        for one in {one.path: one for one in (*book.machines, *book.sweeps, *book.grids("second_card"))}.values()
        for dtype, floor in one.result.floors_pct.items()
    ]  # fmt: skip
    columns = cells.columns("GPU|text", "dtype|text", "± points", "file|code")
    return Table("floors", "A/A floors: FA2 timed beside itself by the same protocol", columns, rows)


def content(book: Book) -> Content:
    tables: Sequence[Table] = [
        table(book, dtype, configs_of)
        for configs_of in (None, PUBLISHED_GPU)
        for dtype in DTYPES
        if book.machines or dtype == "fp16"
    ]
    return {
        "panels": [
            panel(book, "steps-all", "All steps", 1),
            panel(book, "steps-late", f"From step {ZOOM} on, closer", ZOOM),
        ],
        "main": tables[0],
        "others": tables[1:],
        "anchors": anchors(book),
        "floors": floors(book),
    }


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
