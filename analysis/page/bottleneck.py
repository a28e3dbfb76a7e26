"""Question: what binds each step on each GPU, and how near is the model that says so?

Why beside the measured tables: no profiler ran on the A100 and the RTX 3090, and no kernel on the RTX 4090. The model
(`invoke explain`, docs/explain.md) is fitted to no kernel's speed; where a GPU was timed, or figures of it were
published, they stand beside what it predicts.

Run: ``python analysis/page/bottleneck.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from flashladder.explain.validation import NAME, Compared, Predicted, Predictions, compare, known, load_predictions
from flashladder.ladder.gpus import load_gpus
from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book
from flashladder.report.page.cells import Cell, Table
from flashladder.report.page.figure import INK, Drawn, Plot, draw
from flashladder.report.page.sections import Content

ORDER, TITLE = 65, "What binds each step"
RESOURCES = ("tensor", "FMA", "ALU", "MUFU", "shared memory", "issue slots", "L2", "DRAM")
MOST = 130  # percent of FA2


def row(book: Book, data: Predictions, gpu: str, one: Predicted, actual: dict[int, float]) -> list[Cell]:
    """One step on one GPU; a resource's ground is as deep as its share of the predicted clocks."""
    facts = {
        "predicted, not measured": "python analysis/explain_validation.py",
        "configuration": one.config,
        "clocks of a CTA alone": f"{one.alone:,.0f}",
        "chain of dependences, clocks": f"{one.chain:,.0f}",
        "schedulers idle": ", ".join(f"{why} {100 * share:.0f} %" for why, share in one.idle.items() if share > 0.005),
    }
    title = f"Iteration {one.iteration} on {load_gpus()[gpu].title}, S = {data.seq_len}, predicted"
    record = book.records.fact(book.results / NAME, title, facts)
    shares = [100 * one.resources[name] / one.clocks for name in RESOURCES]
    told, fa2 = actual.get(one.iteration), one.percent_of_fa2
    return [
        cells.step(one.iteration),
        Cell(one.binding),
        *(Cell(f"{share:.0f}", record, share, heat=round(min(share, 100) * 0.5)) for share in shares),
        cells.number(one.clocks, 0, record),
        cells.number(one.percent_of_peak, 1, record),
        cells.number(fa2, 1, record),
        cells.number(told, 1),
        cells.number(None if told is None or fa2 is None else fa2 - told, 1),
    ]


def table(book: Book, data: Predictions, gpu: str) -> Table:
    """Every step on one GPU."""
    what, actual = known(gpu, data.gpus[gpu], data.seq_len, book.results)
    columns = cells.columns(
        "#", "binding|text", *RESOURCES, "clocks", "% of peak", "% of FA2", what or "measured", "off"
    )
    rows = [row(book, data, gpu, one, actual) for one in data.gpus[gpu]]
    caption = f"Predicted for the {load_gpus()[gpu].title}: shares of the clocks of a KV block, in percent"
    return Table(f"bottleneck-{gpu}", caption, columns, rows)


def panel(one: Compared) -> Drawn:
    """Predicted over measured or published percent of FA2 on one GPU."""

    def fill(plot: Plot) -> None:
        plot.axes.plot([0, MOST], [0, MOST], color=INK, linewidth=1)
        xs, ys = [theirs for _, theirs in one.pairs.values()], [mine for mine, _ in one.pairs.values()]
        urls = [
            plot.url("", f"iteration {number}: predicted {mine:.1f} %, {one.what} {theirs:.1f} %")
            for number, (mine, theirs) in one.pairs.items()
        ]
        plot.dots(xs, ys, urls, 0)
        plot.axes.set(xlabel=f"{one.what}, percent of FA2", ylabel="predicted", xlim=(0, MOST), ylim=(0, MOST))

    number, off = one.largest
    return draw(
        f"bottleneck-{one.gpu}",
        load_gpus()[one.gpu].title,
        f"Spearman {one.spearman:.2f}, median error {one.median_error:.1f} points, largest {off:+.1f} (step {number}).",
        fill,
    )


def content(book: Book) -> Content:
    if not (book.results / NAME).is_file():
        return {"panels": [], "tables": []}
    data = load_predictions(book.results / NAME)
    compared = [found for gpu in data.gpus if (found := compare(data, gpu, book.results))]
    return {"panels": [panel(one) for one in compared], "tables": [table(book, data, gpu) for gpu in data.gpus]}


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
