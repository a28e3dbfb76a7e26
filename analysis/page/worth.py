"""Question: what is each step worth: in its place in the ladder, taken back from the last kernel, added to the first?

Why three answers: a step's gain in the ladder hangs on what came before it; taken back from the finished kernel it is
what the step still holds up. The steps do not add up, so that the ladder's waterfall and the ablation stand apart.

Run: ``python analysis/page/worth.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

import re

from flashladder.ladder.config import KernelConfig
from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import HEADLINE_LENGTH, Book, Timed
from flashladder.report.page.cells import Cell, Table
from flashladder.report.page.figure import FAINT, INK, SERIES, Drawn, Plot, draw
from flashladder.report.page.records import join
from flashladder.report.page.sections import Content
from flashladder.report.variants.tables import percent_of
from flashladder.report.variants.worth import BOTH, Comparison, Side, ablations
from flashladder.results.schema import Summary, kernel_key

ORDER, TITLE = 40, "What each step is worth"
HOW = {"-": "taken back from", "+": "added to"}
COLORS = {"faster": SERIES[0], "slower": SERIES[1], "same": FAINT, "ambiguous": SERIES[4]}


def points(gain: float) -> str:
    """Percentage points with their sign, which what rounds to nothing has not."""
    return f"{gain:+.1f}" if round(gain, 1) else "0.0"


def steps(book: Book, one: Timed) -> list[tuple[int, str, Summary]]:
    """Number, name and timing of each step in the machine's own configurations, fp16."""
    found = []
    for step in book.ladder.iterations:
        config = step.configs.get(one.configs_of) or next(iter(step.configs.values()))
        summary = one.summaries.get((kernel_key(step.number, config.short_form()), "fp16", HEADLINE_LENGTH))
        if summary:
            found.append((step.number, step.slug.replace("_", " "), summary))
    return found


def waterfall(book: Book, one: Timed) -> Drawn:
    """Percent of FA2 from step to step: a bar from where the ladder stood to where the step left it."""
    found = steps(book, one)
    noise = BOTH * one.result.floors_pct.get("fp16", 0.0)

    def fill(plot: Plot) -> None:
        for i, (number, _, summary) in enumerate(found):
            before = found[i - 1][2] if i else None
            start = before.pct if before else 0.0
            gain = summary.pct - start
            color = INK if before is None else SERIES[0] if gain > 0 else SERIES[1]
            bar = plot.axes.barh(
                i,
                gain,
                left=start,
                height=0.7,
                color=color if abs(gain) > noise else "none",
                edgecolor=color,
                linewidth=1,
            )
            record = join(
                book.records.timing(one.holding(s.kernel).path, s.kernel, s.dtype, s.shape)
                for s in (before, summary)
                if s
            )
            bar[0].set_url(
                plot.url(record, f"iteration {number}: {start:.1f} to {summary.pct:.1f} %, {points(gain)} points")
            )
            right = max(start, summary.pct)
            plot.axes.annotate(
                points(gain), (right, i), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8
            )
        plot.axes.axvline(100, color=FAINT, linewidth=1)
        plot.axes.set_yticks(range(len(found)), [f"{name} {number}" for number, name, _ in found])
        plot.axes.invert_yaxis()
        plot.axes.set(xlabel=f"percent of FA2, S = {HEADLINE_LENGTH}, fp16", xlim=(0, 125))

    told = (
        "Points of FA2's speed gained (blue) and lost (orange) from step to step; hollow bars lie within "
        f"{noise:.2f} points, the A/A floor of two ratios."
    )
    return draw(f"waterfall-{one.path.parent.name}", f"The ladder on {one.title}", told, fill, (5.4, 4.4))


def ablated(book: Book, one: Timed, own: list[Comparison]) -> Drawn:
    """Bars of what each change is worth when it alone is taken back from one kernel, or added to it."""
    noise, base, sign = percent_of(BOTH * own[0].floor), own[0].base.subject.text, own[0].variant.subject.sign
    config = KernelConfig.parse(own[0].base.config)

    def fill(plot: Plot) -> None:
        plot.axes.axvspan(-noise, noise, color=FAINT, alpha=0.25, linewidth=0)
        plot.axes.axvline(0, color=INK, linewidth=0.8)
        for i, c in enumerate(own):
            middle, low, high = worth(c)
            bar = plot.axes.barh(
                i,
                middle,
                height=0.7,
                color=COLORS[c.verdict or "same"],
                xerr=[[middle - low], [high - middle]],
                error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2},
            )
            bar[0].set_url(
                plot.url(
                    records(book, one, c),
                    f"{c.variant.subject.change}: {middle:+.1f} % ({low:+.1f} to {high:+.1f}), {c.verdict}",
                )
            )
        plot.axes.set_yticks(range(len(own)), [c.variant.subject.change for c in own])
        plot.axes.invert_yaxis()
        plot.axes.set(xlabel="percent faster with the change")

    title = f"{one.title}: each change {HOW[sign]} iteration {base}, {config.brief()}"
    told = (
        f"S = {HEADLINE_LENGTH}, whiskers: 95 % intervals, band: noise of two ratios (±{noise:.2f} %); grey and yellow "
        "bars cannot be told from it."
    )
    name = re.sub(
        r"[^a-z0-9]+",
        "-",
        f"ablation-{one.path.parent.name}-{base}-{config.brief()}-{'back' if sign == '-' else 'added'}",
    )
    return draw(name, title, told, fill, (5.4, 1 + 0.2 * len(own)))


def sets(found: list[Comparison]) -> list[list[Comparison]]:
    """Comparisons at the headline's length by the kernel that they vary, and whether they take back or add."""
    by_base: dict[tuple[str, str, str], list[Comparison]] = {}
    for c in found:
        if c.worth is not None and c.shape.seq_len == HEADLINE_LENGTH:
            by_base.setdefault((c.base.subject.text, c.base.config, c.variant.subject.sign), []).append(c)
    return list(by_base.values())


def worth(c: Comparison) -> tuple[float, float, float]:
    """Median and interval of a comparison in percent; zeros where it was not measured."""
    if c.worth is None:
        return 0.0, 0.0, 0.0
    middle, low, high = (percent_of(value) for value in (c.worth.median, c.worth.low, c.worth.high))
    return middle, low, high


def records(book: Book, one: Timed, c: Comparison) -> str:
    """The samples of both sides."""

    def key(side: Side) -> str:
        return side.kernel.key if side.kernel else ""

    return join(book.records.timing(one.path, key(side), c.dtype, c.shape) for side in (c.base, c.variant))


def table(book: Book, one: Timed, found: list[Comparison]) -> Table:
    """Every ablation at every length."""
    columns = cells.columns(
        "change|text",
        "how|text",
        "dtype|text",
        "S",
        "configuration|code",
        "% faster with it",
        "95 %|short",
        "verdict|short",
        "registers without",
        "with",
    )
    rows = []
    for c in found:
        record, (middle, low, high) = records(book, one, c), worth(c)
        backwards = c.variant.subject.sign == "-"
        without, with_it = (c.variant, c.base) if backwards else (c.base, c.variant)
        rows.append(
            [
                Cell(c.variant.subject.change),
                Cell(f"{HOW[c.variant.subject.sign]} {c.base.subject.text}"),
                Cell(c.dtype),
                cells.number(c.shape.seq_len, 0),
                Cell(KernelConfig.parse(c.variant.config).brief()),
                cells.number(middle, 2, record) if c.worth else Cell(c.lacking),
                Cell(f"{low:+.2f} to {high:+.2f}", record, low) if c.worth else cells.EMPTY,
                cells.verdict(c.verdict, record),
                *(cells.number(side.kernel.registers if side.kernel else None, 0) for side in (without, with_it)),
            ]
        )
    name = one.path.relative_to(book.root).as_posix()
    return Table(
        f"ablation-{one.path.parent.name}", f"Every change at every length on {one.title} ({name})", columns, rows
    )


def content(book: Book) -> Content:
    measured = [(one, ablations(one.result)) for one in book.grids("ablation")]
    panels = [waterfall(book, one) for one in book.machines]
    panels += [ablated(book, one, own) for one, found in measured for own in sets(found)]
    return {"panels": panels, "tables": [table(book, one, found) for one, found in measured]}


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
