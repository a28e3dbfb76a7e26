"""Question: what do fast configurations have in common, and which won?

Why every candidate: the winner is one point; registers, spills and tiles of all that were timed say why. A point leads
to its raw pairs; of those that were left out early, of two pairs mostly, to the file that holds them.

Run: ``python analysis/page/tuning.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from pathlib import Path

from flashladder.ladder.config import KernelConfig
from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book, Timed
from flashladder.report.page.cells import Cell, Table
from flashladder.report.page.figure import INK, MARKERS, SERIES, Drawn, Plot, draw
from flashladder.report.page.sections import Content
from flashladder.results.schema import BenchResult, Kernel, Summary
from flashladder.results.statistics import LogSummary, percent
from flashladder.sweep.winner import FINALS, documents, judged

ORDER, TITLE = 70, "Tuning"
BEST = 8  # of each iteration and dtype in the table


def candidates(one: Timed, dtype: str) -> list[tuple[Summary, Kernel]]:
    """Every candidate of a run in one dtype."""
    kernels = one.result.kernels
    return [(s, kernels[s.kernel]) for s in one.result.summaries if s.dtype == dtype and s.kernel in kernels]


def panel(book: Book, one: Timed, dtype: str) -> Drawn:
    """Percent of FA2 over registers, a colour per tile; kernels that spill are crosses."""
    found = candidates(one, dtype)
    enough = one.result.settings.min_pairs
    tiles = sorted({KernelConfig.parse(kernel.config).tile for _, kernel in found})

    def fill(plot: Plot) -> None:
        for i, tile in enumerate(tiles):
            own = [(s, k) for s, k in found if KernelConfig.parse(k.config).tile == tile and k.registers]
            for spills, marker in ((False, MARKERS[i % 6]), (True, "x")):
                for deep in (False, True):
                    some = [(s, k) for s, k in own if bool(k.spill_stores) == spills and (s.n_pairs >= enough) == deep]
                    points(book, one, plot, some, (i, marker))
            plot.axes.scatter([], [], marker=MARKERS[i % 6], s=16, color=SERIES[i % len(SERIES)], label=tile)
        plot.axes.axhline(100, color=INK, linewidth=0.8)
        plot.axes.set(xlabel="registers per thread, as compiled", ylabel="percent of FA2")
        plot.axes.legend(title="B_r, B_c, warps (x: spills)", ncols=2, loc="lower left", title_fontsize=8)

    told = f"{len(found)} candidates of iterations 7 to 16 timed in turn with FA2; registers of the machine code."
    return draw(f"tuning-{one.path.parent.name}-{dtype}", f"{one.title}, {dtype}: all candidates", told, fill)


def points(book: Book, one: Timed, plot: Plot, some: list[tuple[Summary, Kernel]], style: tuple[int, str]) -> None:
    """Candidates of one tile: each a link to its samples; those that were left out early are one link together."""
    if not some:
        return
    number, marker = style
    drawn = plot.axes.scatter(
        [k.registers or 0 for _, k in some],
        [s.pct for s, _ in some],
        s=13,
        marker=marker,
        color=SERIES[number % len(SERIES)],
        linewidths=0.8,
    )
    if some[0][0].n_pairs >= one.result.settings.min_pairs:
        drawn.set_urls(
            [
                plot.url(
                    book.records.timing(one.path, s.kernel, s.dtype, s.shape),
                    f"iteration {k.iteration}, {KernelConfig.parse(k.config).brief()}: {s.pct:.1f} %",
                )
                for s, k in some
            ]
        )
        return
    where = one.path.relative_to(book.root).as_posix()
    facts = {"raw pairs": f"in the file; python analysis/samples.py {where} prints them"}
    record = book.records.fact(one.path, "Candidates that were left out early, after a few pairs", facts)
    drawn.set_urls([plot.url(record, f"left out early: {KernelConfig.parse(some[0][1].config).tile}")])


def winners(book: Book, one: Timed) -> Table:
    """Winners beside what the iterations have, by the finals."""
    rungs, finals = documents(one.path, one.result)
    path = one.path.with_name(FINALS)
    rows = []
    for standing in judged(rungs, finals):
        row = [
            cells.step(standing.number),
            Cell(standing.dtype),
            Cell(standing.config.brief()),
            cells.verdict(standing.verdict),
        ]
        for config, told in ((standing.config, standing.winner), (standing.own_config, standing.present)):
            row += span(told, timed(book, finals, path, standing.number, standing.dtype, config))
        row.insert(6, Cell(standing.own_config.brief()) if standing.own_config else cells.EMPTY)
        rows.append(row)
    columns = cells.columns(
        "#",
        "dtype|text",
        "winner|code",
        "verdict|short",
        "winner's % of FA2",
        "95 %|short",
        "present|code",
        "present's % of FA2",
        "95 %|short",
    )
    return Table(
        f"winners-{one.path.parent.name}",
        f"Winners beside the present configurations on {one.title}, timed again in a fresh process",
        columns,
        rows,
    )


def timed(book: Book, finals: BenchResult, path: Path, number: int, dtype: str, config: KernelConfig | None) -> str:
    """The samples of one configuration in the finals, of both dtypes where both decide."""
    if config is None:
        return ""
    wanted = {config.with_dtype(name).short_form() for name in (("fp16", "bf16") if dtype == "both" else (dtype,))}
    keys = [
        (key, kernel.dtype)
        for key, kernel in finals.kernels.items()
        if kernel.iteration == number and kernel.config in wanted
    ]
    return ",".join(book.records.mean(path, key, name) for key, name in keys)


def span(told: LogSummary | None, records: str) -> list[Cell]:
    """Median and interval in percent of FA2."""
    if told is None:
        return [cells.EMPTY, cells.EMPTY]
    low, high = percent(told.low), percent(told.high)
    return [cells.number(percent(told.median), 2, records), Cell(f"{low:.2f} to {high:.2f}", records, low)]


def ranking(book: Book, one: Timed) -> Table:
    """The best of each iteration and dtype by the rungs: those that stayed longest first."""
    deep, rows = one.result.settings.min_pairs, []
    for dtype in dict.fromkeys(s.dtype for s in one.result.summaries):
        found = sorted(
            candidates(one, dtype), key=lambda pair: (pair[1].iteration, -min(pair[0].n_pairs, deep), -pair[0].pct)
        )
        taken: dict[int, int] = {}
        for s, kernel in found:
            taken[kernel.iteration] = taken.get(kernel.iteration, 0) + 1
            if taken[kernel.iteration] <= BEST:
                record = book.records.timing(one.path, s.kernel, s.dtype, s.shape)
                rows.append(
                    [
                        cells.step(kernel.iteration),
                        Cell(dtype),
                        Cell(KernelConfig.parse(kernel.config).brief()),
                        cells.number(s.pct, 2, record),
                        cells.number(s.n_pairs, 0, record),
                        cells.number(kernel.registers, 0),
                        cells.number(
                            None if kernel.spill_stores is None else kernel.spill_stores + (kernel.spill_loads or 0), 0
                        ),
                    ]
                )
    columns = cells.columns("#", "dtype|text", "configuration|code", "% of FA2", "pairs", "registers", "spilled, B")
    return Table(
        f"ranking-{one.path.parent.name}",
        f"The best {BEST} of each iteration and dtype on {one.title}, by the rungs",
        columns,
        rows,
    )


def content(book: Book) -> Content:
    dtypes = [(one, dtype) for one in book.tunings for dtype in dict.fromkeys(s.dtype for s in one.result.summaries)]
    return {
        "panels": [panel(book, one, dtype) for one, dtype in dtypes],
        "tables": [table for one in book.tunings for table in (winners(book, one), ranking(book, one))],
    }


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
