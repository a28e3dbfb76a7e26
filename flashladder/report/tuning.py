"""A tuning run as page, table and plot: winners by the finals, the best by the rungs, and every candidate.

Why: a ranking says who won; all candidates together say what the fast ones have in common. The plot sets percent of FA2
against registers on paper, registers as compiled and warps per SM, one colour per tile, spilling kernels as crosses.

Run: ``python analysis/sweep_tables.py tune results/h200/tune.json.gz``; `invoke report` does so for committed runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flashladder.columns import markdown
from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.paths import ITERATIONS
from flashladder.report.plot import FAINT, data_digest, saved
from flashladder.report.tables import DASH, plain
from flashladder.results.schema import BenchResult
from flashladder.results.statistics import LogSummary, percent
from flashladder.sweep.winner import Candidate, documents, judged, rows_of, to_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BEST = 5  # of each iteration and dtype on the page
PANELS = (
    ("live", "registers per thread on paper (255 exist)"),
    ("registers", "registers per thread as compiled"),
    ("warps", "warps per SM"),
)
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#222222")
WINNERS = (
    "Timed again: a fresh process, other inputs. An iteration has one configuration per GPU for both dtypes, so that "
    "`both` decides, by the harmonic mean; the verdict is on the difference of the two ratios, against the finals' A/A "
    "floor. `faster`, `slower`: beyond the floor, and the interval too; `ambiguous`: not told apart; `same`: within "
    "the floor, or the one that the iteration has. What is faster enters an iteration by a person's command "
    "([how](../../docs/tuning.md)), since all that was timed with the present one is then timed anew."
)
RANKING = (
    "In the order of the rungs, each candidate with FA2 in turn: those that stayed longest first, the faster first "
    "among equals. What was left out early has few pairs, a median without interval, which may exceed that of one "
    "above it. Registers and spilled bytes per thread, stored and loaded, are those of the machine code."
)


def pages(path: Path, rungs: BenchResult | None = None, iterations: Path = ITERATIONS) -> dict[str, bytes]:
    """The files of a tuning run by their suffix: md, csv, svg, png.

    Args:
        path: the document of the rungs; that of the finals lies beside it.
        rungs: what is in it, where it was read already.
        iterations: folder of the iterations whose present configurations the winners are compared with.

    Raises:
        FlashladderError: one of the documents is missing or of no tuning run.
    """
    rungs, finals = documents(path, rungs)
    try:
        rows = rows_of(rungs)
    except FlashladderError as error:
        error.where = relative(path)
        raise
    day = min(process.started_utc for process in rungs.processes)[:10]
    lengths = "S = " + ", ".join(str(n) for n in sorted({group.shape.seq_len for group in rungs.groups}))
    floors = "; ".join(
        f"{name} " + ", ".join(f"{floor:.2f} in {dtype}" for dtype, floor in document.floors_pct.items())
        for name, document in (("rungs", rungs), ("finals", finals))
    )
    where = (
        f"{len(rows)} candidates, {sum(bool(row.failure) for row in rows)} of them failed, {lengths}, {day}; driver "
        f"{rungs.gpu.driver}, torch {rungs.reference.torch}, mode {rungs.mode}, rung {rungs.rung}, protocol "
        f"{rungs.protocol_version}. A/A floor, FA2 beside itself, in points: {floors}."
    )
    winners = [
        (
            str(one.number), one.dtype, one.config.brief(), one.verdict, _told(one.winner),
            one.own_config.brief() if one.own_config else "none for this GPU", _told(one.present),
        )
        for one in judged(rungs, finals, iterations)
    ]  # fmt: skip
    gpu, dtypes = plain(rungs.gpu.name), ", ".join(sorted({one.dtype for one in rungs.summaries}))
    parts = [
        f"# Tuning on {gpu}",
        where,
        "## Winners beside what the iterations have, percent of FA2 [95 %]",
        markdown(("#", "dtype", "winner", "verdict", "winner's", "present", "present's"), winners, left=4),
        WINNERS,
        f"## The best {BEST} of each iteration and dtype",
        ranking(rows, BEST),
        RANKING,
    ]
    subtitle = f"{gpu}, {day}, {dtypes}, {len(rungs.summaries)} configurations, {lengths}"
    data = [[row.tile, row.pct, row.spilled, *(getattr(row, name) for name, _ in PANELS)] for row in rows]
    drawn = saved(partial(_figure, rows, subtitle), f"{subtitle}; data {data_digest(data)}")
    return {"md": ("\n\n".join(parts) + "\n").encode(), "csv": to_csv(rows).encode(), **drawn}


def _told(summary: LogSummary | None) -> str:
    if summary is None:
        return "not timed"
    return f"{percent(summary.median):.2f} [{percent(summary.low):.2f}, {percent(summary.high):.2f}]"


def ranking(rows: Sequence[Candidate], most: int) -> str:
    """The first `most` candidates of each iteration and dtype as a table, and how many there are besides."""
    header = ("#", "dtype", "configuration", "% of FA2", "95 %", "pairs", "registers", "spilled", "warps per SM")
    lines: list[tuple[str, ...]] = []
    for place in dict.fromkeys((row.iteration, row.dtype) for row in rows):
        own = [row for row in rows if (row.iteration, row.dtype) == place]
        for row in own[:most]:
            span = f"{row.low:.2f} to {row.high:.2f}" if row.low is not None else "too few pairs"
            speed = (row.failure, DASH) if row.failure else (f"{row.pct:.2f}", span)
            numbers = ("" if value is None else str(value) for value in (row.registers, row.spilled, row.warps))
            lines.append((str(place[0]), place[1], row.config, *speed, str(row.pairs), *numbers))
        if len(own) > most:
            rest = "" if own[most].pct is None else f"up to {max(row.pct or 0.0 for row in own[most:]):.2f}"
            lines.append((str(place[0]), place[1], f"and {len(own) - most} more", rest, *[""] * 5))
    return markdown(header, lines, left=3)


def _figure(rows: Sequence[Candidate], subtitle: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(13, 5.2), dpi=200, facecolor="white")
    axes = list(figure.subplots(1, len(PANELS), sharey=True))
    tiles = sorted({row.tile for row in rows if row.pct is not None})
    for axis, (name, label) in zip(axes, PANELS, strict=True):
        for color, tile in zip(COLORS * len(tiles), tiles, strict=False):
            _points(axis, [row for row in rows if row.tile == tile], name, (color, tile))
        axis.axhline(100, color=FAINT, linewidth=0.8)
        axis.set_xlabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("percent of FA2")
    axes[-1].legend(title="B_r, B_c, warps (x: spills)", fontsize=8, loc="lower right")
    figure.text(0.01, 0.94, "What fast configurations have in common", fontsize=14, fontweight="bold")
    figure.text(0.01, 0.89, subtitle, fontsize=9, color="#555555")
    figure.subplots_adjust(left=0.05, right=0.99, top=0.85, bottom=0.11, wspace=0.06)
    return figure


def _points(axis: Axes, rows: Sequence[Candidate], name: str, style: tuple[str, str]) -> None:
    """One tile's candidates in one panel; those that spill are crosses. As pixels: drawn, they take 0.8 MB."""
    color, label = style
    for spills, marker in ((False, "o"), (True, "x")):
        own = [row for row in rows if bool(row.spilled) == spills and None not in (getattr(row, name), row.pct)]
        xs, ys = [getattr(row, name) for row in own], [row.pct or 0.0 for row in own]
        axis.scatter(
            xs, ys, s=14, marker=marker, color=color, alpha=0.7, rasterized=True, label=None if spills else label
        )
