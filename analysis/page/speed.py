"""How fast each step is, beside what, and why: the first screen of the page, and the same on every GPU and dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from flashladder.columns import listed
from flashladder.ladder.iteration import Iteration
from flashladder.names import DTYPES, HEADLINE_LENGTH, PUBLISHED_GPU
from flashladder.report import page
from flashladder.report.book import Book
from flashladder.report.data import TITLES, Machine, Timed
from flashladder.report.page import INK, Block, Cell, Column, Panel, Table, draw, line
from flashladder.report.tables import NOT_RUN, gpu_title
from flashladder.results.published import PROGRESSION, Statistic
from flashladder.results.schema import A_A, Summary, kernel_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDER, TITLE = 10, "How fast, beside what, and why"
MEASURED = ("% of FA2", "95 %|short", "verdict|short", "h. mean")
BEST = 5  # steps of the first screen
EXPLAINED = (
    "Percentages are of FA2's speed on the same GPU in the same process: 100 is FA2, more is better. Intervals include "
    "the A/A floor (FA2 timed beside itself) and what other runs of the same machine code say. *same*: within the "
    "floor; *ambiguous*: neither within nor beyond it. Published columns are others' figures, not measured here."
)


def references(book: Book, machine: Machine) -> list[tuple[str, Timed, Summary]]:
    """The libraries that a machine timed in fp16 at S = 4096, each in its newest sweep."""
    found = {}
    for sweep in book.beside_libraries:
        for name in sweep.result.references if sweep.key == machine.key else ():
            if (name, "fp16", HEADLINE_LENGTH) in sweep.summaries:
                found[name] = (sweep, sweep.summaries[name, "fp16", HEADLINE_LENGTH])
    return [(name, *one) for name, one in found.items()]


def gist(step: Iteration) -> str:
    """The first sentence of an iteration's reason."""
    return f"{' '.join(step.why.split()).partition('. ')[0].rstrip('.')}."


def first_screen(book: Book, machine: Machine) -> Iterator[Block]:
    """Three answers: how fast, beside what, why."""
    found = book.ladder.headlines(machine)
    if not found:
        return
    (_, first), (best, top) = found[0], max(found, key=lambda one: one[1].pct)
    beside = [f"{TITLES[name]} {one.pct:.0f} %" for name, _, one in references(book, machine)]
    gains = [(new.pct - old.pct, step) for (_, old), (step, new) in pairwise(found)]
    largest = sorted(gains, key=lambda one: -one[0])[:BEST]
    yield (
        f"**How fast?** On an {machine.title} the steps lead from {first.pct:.1f} % of FlashAttention-2's (FA2) speed "
        f"to {top.pct:.1f} % (step {best.number}).\n\n"
        f"**Beside what?** Each step and each library alternates with FA2 in one process, which cancels the clock. "
        f"{f'Libraries in the same units: {listed(beside)}.' if beside else 'No library was timed beside it.'}\n\n"
        "**Why?** The largest gains, in points of FA2's speed:\n\n"
        + "\n".join(f"- +{gain:.0f}: step {step.number}, {step.title}. {gist(step)}" for gain, step in largest)
    )


def measured(book: Book, machine: Timed, kernel: str, dtype: str, missing: str = "") -> Iterator[Cell]:
    """The cells of one kernel on one machine."""
    summary = machine.summaries.get((kernel, dtype, HEADLINE_LENGTH))
    if summary is None:
        yield from (Cell(missing) if missing else page.EMPTY, *(page.EMPTY,) * (len(MEASURED) - 1))
        return
    path, result = machine.holding(kernel)
    record = book.records.timing(path, kernel, dtype, summary.shape)
    mean = next((mean for mean in result.means if (mean.kernel, mean.dtype) == (kernel, dtype)), None)
    yield page.number(summary.pct, 1, record, "head")
    yield Cell(f"{summary.pct_low:.1f} to {summary.pct_high:.1f}", record, summary.pct_low)
    yield Cell(summary.verdict, style=f"verdict {summary.verdict}")
    yield page.number(mean.pct, 1, book.records.mean(path, kernel, dtype)) if mean else page.EMPTY


def published(book: Book, step: Iteration, gpu: str, statistic: Statistic) -> Cell:
    """A published figure, with where it was published; a dash for later steps."""
    found = book.ladder.published.find(step.number, gpu, statistic)
    if found is None:
        return page.EMPTY
    facts = {
        "published by": found.source, "gives": f"{found.value:g} % of FA2 ({statistic})",
        "measured by": book.ladder.published.description.source.measured_by,
        "a measurement on this GPU may differ by": f"{found.tolerance:g} points",
    }  # fmt: skip
    path = book.results / "published" / PROGRESSION
    return page.number(found.value, 1, book.records.fact(path, f"Iteration {step.number} on {gpu_title(gpu)}", facts))


def table(book: Book, dtype: str, configs_of: str | None) -> Table:
    """Every step on every GPU: `configs_of` None for each GPU's own configurations."""
    gpus = book.ladder.published.gpus if dtype == "fp16" else ()
    columns, groups, rows = page.columns("#", "Step|text"), [("", 2)], []
    for machine in book.machines:
        columns += page.columns(*MEASURED)
        groups.append((f"{machine.title}, measured", len(MEASURED)))
    for gpu in gpus:
        columns += page.columns("% of FA2", "h. mean")
        groups.append((f"{gpu_title(gpu)}, published", 2))
    kernels = []
    for machine in book.machines:
        own = book.ladder.rows(machine, dtype, configs_of)
        kernels.append([kernel_key(row.iteration.number, row.config) for row in own])
    for i, step in enumerate(book.ladder.iterations):
        row = [page.step(step.number), Cell(step.title)]
        for machine, keys in zip(book.machines, kernels, strict=True):
            missing = NOT_RUN if step.not_run_on(machine.gpu.arch) else ""
            row += measured(book, machine, keys[i], dtype, missing)
        rows.append(row + [published(book, step, gpu, what) for gpu in gpus for what in ("seq4096", "hmean")])
    whose = f"the {gpu_title(configs_of)}'s configurations" if configs_of else "each GPU's own configurations"
    caption = f"Percent of FA2's speed at S = {HEADLINE_LENGTH} and over all lengths (harmonic mean), {dtype}, {whose}"
    return Table(f"progression-{dtype}-{configs_of or 'own'}", caption, columns, rows, groups)


def libraries(book: Book) -> Table:
    """What else computes attention on these GPUs, timed beside FA2 in the ladder's sweeps."""
    columns = page.columns("GPU|text", "library|text", "version|text", "dtype|text", *MEASURED, "file|code")
    rows = [
        [
            Cell(one.title), Cell(TITLES[name]), Cell(reference.version or f"torch {reference.torch}"), Cell(dtype),
            *measured(book, one, name, dtype), Cell(one.path.relative_to(book.root).as_posix()),
        ]
        for one in book.beside_libraries
        for name, reference in one.result.references.items()
        for dtype in DTYPES
    ]  # fmt: skip
    return Table("libraries", f"Other libraries on the same cards at S = {HEADLINE_LENGTH}", columns, rows)


def panel(book: Book, family: str, first: int, last: int) -> Panel:
    """Percent of FA2 over the steps of a family: measured lines with their intervals, published ones hollow."""
    series: list[tuple[str, list[tuple[int, float, float, float]], bool]] = []
    for machine in book.machines:
        found = book.ladder.headlines(machine)
        points = [(step.number, one.pct, one.pct_low, one.pct_high) for step, one in found]
        series.append((f"{machine.title}, measured", points, False))
    for gpu in book.ladder.published.gpus:
        cell = {one.number: published(book, one, gpu, "seq4096").sort for one in book.ladder.iterations}
        series.append((f"{gpu_title(gpu)}, published", [(n, y, y, y) for n, y in cell.items() if y], True))
    series = [(label, [one for one in points if first <= one[0] <= last], hollow) for label, points, hollow in series]

    def fill(axes: Axes) -> None:
        axes.axhline(100, color=INK, linewidth=1)
        for style, (label, points, hollow) in enumerate(series):
            if points:
                xs, ys, lows, highs = zip(*points, strict=True)
                line(axes, xs, ys, style, label, hollow=hollow)
                axes.vlines(xs, lows, highs, color=INK, linewidth=1)
        axes.set(xlabel="iteration", ylabel=f"percent of FA2, S = {HEADLINE_LENGTH}, fp16")
        axes.set_xticks(range(first, last + 1))
        if any(points for _, points, _ in series):
            axes.legend(loc="best")

    days = "; ".join(f"{machine.title}: {machine.days}" for machine in book.machines)
    told = (
        f"fp16, S = {HEADLINE_LENGTH}, d_head 128. Filled: measured ({days}), with 95 % intervals; hollow: published."
    )
    return draw(f"steps-{first}", f"Steps {first} to {last}, family {family}", told, series, fill)


def floors(book: Book) -> Table:
    """The A/A floor of each file of timings: FA2 beside itself, what no difference within counts as one."""
    every = (*book.machines, *book.sweeps, *book.grids("second_card"))
    files = {path: (one.title, result) for one in every for path, result in one.files}
    rows = [
        [Cell(title), Cell(dtype), page.number(floor, 2, book.records.mean(path, A_A, dtype)),
         Cell(path.relative_to(book.root).as_posix())]
        for path, (title, result) in files.items()
        for dtype, floor in result.floors_pct.items()
    ]  # fmt: skip
    columns = page.columns("GPU|text", "dtype|text", "± points", "file|code")
    return Table("floors", "A/A floors: FA2 timed beside itself by the same protocol", columns, rows)


def reasons(book: Book, own: Table) -> Table:
    """The table with a column that says why."""
    rows = [[*row, Cell(gist(step))] for row, step in zip(own.rows, book.ladder.iterations, strict=True)]
    return Table(own.name, own.caption, [*own.columns, Column("why", "text")], rows, [*own.groups, ("", 1)])


def content(book: Book) -> Sequence[Block]:
    """The first screen, then every GPU, dtype and set of configurations."""
    configs = (None, PUBLISHED_GPU)
    main, *others = [table(book, dtype, of) for of in configs for dtype in DTYPES if book.machines or dtype == "fp16"]
    answers = first_screen(book, book.machines[0]) if book.machines else ()
    folded = [page.fold(one) for one in (*others, libraries(book), floors(book)) if one.rows]
    panels = [panel(book, name, own[0], own[-1]) for name, own in book.ladder.families().items()]
    return [*answers, panels, reasons(book, main), EXPLAINED, *folded]
