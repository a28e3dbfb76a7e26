"""The page results/report/index.html: all results that are worth exploring, in one file that makes no request.

A section is a script of ``analysis/page/`` with `ORDER`, `TITLE` and ``content(book)``, which returns blocks: tables,
folded parts, plots and texts. A plot is matplotlib's SVG, with text as text and the colours of the style sheet. The
page's `Content-Security-Policy` forbids every request and every script but its own. jinja2 escapes all values.

Run: ``invoke report --open``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from pathlib import Path
import re
import runpy
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from flashladder.errors import FlashladderError
from flashladder.files import deflated, files_in, inflated, relative, sha256
from flashladder.paths import PACKAGE, ROOT
from flashladder.report.book import Book
from flashladder.report.data import Ladder
from flashladder.report.plot import kept
from flashladder.report.tables import DASH, TEMPLATES, environment, headline_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INDEX = "index.html"
PLACES = (ROOT, PACKAGE.parent)  # the checkout of FLASHLADDER_ROOT may hold only data
SECTIONS = next((root for root in PLACES if (root / "analysis" / "page").is_dir()), ROOT) / "analysis" / "page"
RECORDS = "\x02records\x03"  # placeholder of the records
_RECORDS = re.compile(rb'(?<=<script type="text/plain" id="records">)[^<]+')
MOST_BYTES = 1_000_000
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
SCROLLED = '<div class="scroll" tabindex="0" role="group" aria-label="table"><table>'

# Placeholders of the style sheet's colours: Okabe and Ito's, which colour-blind readers can tell apart.
INK, FAINT, GRID, GROUND = "#010201", "#010202", "#010203", "#010204"
SERIES = tuple(f"#0102{10 + i:02d}" for i in range(8))
COLORS = {INK: "ink", FAINT: "faint", GRID: "grid", GROUND: "ground", **{s: f"s{i}" for i, s in enumerate(SERIES)}}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 8.5, "axes.linewidth": 0.7,
    "axes.edgecolor": FAINT, "axes.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "text.color": INK, "xtick.color": INK, "ytick.color": INK, "grid.color": GRID, "grid.linewidth": 0.6,
    "legend.frameon": False, "legend.fontsize": 8, "path.simplify": False,
}  # fmt: skip
HEAD = re.compile(r"^.*?<svg [^>]*?viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)
DROPPED = re.compile(r"\s*<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
IDENTIFIER = re.compile(r' id="([^"]+)"')
REFERENCE = re.compile(r"(?:#)([\w.-]+)(?=[\"\)])")
BLANKS = re.compile(r"\s*\n\s*")
LONG = re.compile(r"(\.\d)\d+")  # decimals after the first
STYLED = re.compile(r' style="([^"]+)"')
OFTEN = 6  # a style that occurs so many times becomes a class
FONT = re.compile(r"'DejaVu Sans'[^;\"]*")
STRONGEST = 55  # percent of colour behind a row's largest number, so that it stays readable


@dataclass(frozen=True)
class Panel:
    """One plot: its markup, and the digest of what it shows."""

    svg: Markup
    title: str
    description: str
    digest: str


@dataclass(frozen=True)
class Column:
    """One column: its title, its class (text, short, number or code), and its tooltip."""

    title: str
    kind: str = "number"
    hint: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell."""

    text: str  # shown as text, never as markup
    records: str = ""  # numbers of the records behind it, ``"3"`` or ``"3,17"``; empty if nothing was measured
    sort: float | None = None  # sort key of the column, if it is not the text
    style: str = ""  # a class of the style sheet, such as a verdict
    heat: int | None = None  # strength of the background in a heat map, in percent
    target: str = ""  # the anchor in the page that a cell without records links to

    @property
    def key(self) -> str:
        """The sort key for the page's script; empty if the text says it."""
        if self.sort is None:
            return ""
        plain = self.text.replace(",", "")
        in_text = plain.removeprefix("-").replace(".", "", 1).isdecimal() and float(plain) == self.sort
        return "" if in_text else f"{self.sort:.5g}"


EMPTY = Cell(DASH)


@dataclass(frozen=True)
class Table:
    """One table: `groups` are titles above several columns, each with the number of columns."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Fold:
    """Blocks that a click on their title unfolds, or a link to the anchor `name`."""

    title: str
    blocks: Sequence[Block]
    name: str = ""


Block = Table | Fold | list[Panel] | str  # panels are side by side if there is room; a text is Markdown
Section = tuple[str, str, Callable[[Book], Sequence[Block]]]  # name of the script, title, function that returns blocks


def number(value: float | None, digits: int = 1, records: str = "", style: str = "") -> Cell:
    """A cell with a rounded number that sorts by the exact one; a dash for None."""
    return EMPTY if value is None else Cell(f"{value:,.{digits}f}", records, float(value), style)


def heated(count: float, most: float, records: str = "") -> Cell:
    """A count; its background is as strong as its share of `most`, the largest of the row."""
    return Cell(f"{count:,.0f}", records, count, heat=round(STRONGEST * count / most) if most else 0)


def step(number: int) -> Cell:
    """The number of an iteration, with a link to its note."""
    return Cell(str(number), sort=float(number), target=f"iteration-{number}")


def columns(*titles: str) -> list[Column]:
    """Columns by title and kind, ``"verdict|short"``; columns of numbers by their title alone."""
    parts = [title.partition("|") for title in titles]
    return [Column(title, kind or "number") for title, _, kind in parts]


def fold(table: Table) -> Fold:
    """A table that is folded below its caption."""
    return Fold(table.caption, [table])


def line(axes: Axes, xs: Sequence[float], ys: Sequence[float], style: int, label: str, *, hollow: bool = False) -> None:
    """Draws the line of series `style`; published figures get hollow markers."""
    axes.plot(
        xs, ys, color=SERIES[style], linestyle=DASHES[style % len(DASHES)], linewidth=1.5, label=label,
        marker=MARKERS[style % len(MARKERS)], markersize=4.5, markerfacecolor=GROUND if hollow else SERIES[style],
    )  # fmt: skip


def draw(
    name: str, title: str, description: str, data: object, fill: Callable[[Axes], None], height: float = 3.6
) -> Panel:
    """Draws one panel, `height` inches high.

    `name` has lower-case letters, digits and hyphens. `description` gives GPU, dtype, length, date and what the plot
    says, also for readers who cannot see it. `data` is all that is drawn; its digest identifies the picture.
    """

    def figure() -> Figure:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.4, height), facecolor="none", layout="constrained")
        axes = figure.subplots()
        axes.set_facecolor("none")
        axes.grid(visible=True)
        axes.set_axisbelow(True)
        fill(axes)
        return figure

    digest, style = sha256(repr((name, title, description, data))), {**STYLE, "svg.hashsalt": f"flashladder {name}"}
    made = kept(figure, style, {"svg": {"transparent": True, "metadata": {"Date": None}}}, digest)["svg"]
    svg = inlined(made.decode(), name, f"{title}. {description}")
    return Panel(Markup(svg), title, description, digest)  # noqa: S704  # escaped by matplotlib and below


def inlined(svg: str, name: str, label: str) -> str:
    """Matplotlib's SVG as a part of the page: without head and unused ids, in the style sheet's colours."""
    box = HEAD.match(svg)
    if box is None:
        raise FlashladderError("matplotlib drew no SVG as this project knows it", found=svg[:80])
    body = DROPPED.sub("", svg[box.end() :])
    used = {match[1] for match in IDENTIFIER.finditer(body)} & {match[1] for match in REFERENCE.finditer(body)}
    body = IDENTIFIER.sub(lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", body)
    body = REFERENCE.sub(lambda match: f"#{name}-{match[1]}" if match[1] in used else match[0], body)
    for color, variable in COLORS.items():
        body = body.replace(color, f"var(--{variable})")
    body = FONT.sub("var(--font)", body).replace("xlink:href", "href")
    body = LONG.sub(r"\1", BLANKS.sub(" ", body))
    counts = Counter(match[1] for match in STYLED.finditer(body))
    often = {style: f"{name}-{i}" for i, (style, count) in enumerate(counts.items()) if count >= OFTEN}
    rules = "".join(f".{name} {{{style}}}" for style, name in often.items())
    body = STYLED.sub(lambda match: f' class="{often[match[1]]}"' if match[1] in often else match[0], body)
    head = f'<svg role="img" aria-label="{escape(label)}" viewBox="{box[1]}" xmlns="http://www.w3.org/2000/svg">'
    return head + (f"<style>{rules}</style>" if rules else "") + body


def find(folder: Path = SECTIONS) -> list[Section]:
    """Every section of `folder`, by its `ORDER`; FlashladderError if there is none."""
    made = {script.stem: runpy.run_path(str(script)) for script in files_in(folder, "[!_]*.py")}
    if not made:
        raise FlashladderError("no section of the page", where=relative(folder), hint="git checkout -- analysis/page")
    order = sorted(made, key=lambda name: (made[name]["ORDER"], name))
    return [(name, made[name]["TITLE"], made[name]["content"]) for name in order]


def page(ladder: Ladder, root: Path = ROOT, sections: Sequence[Section] | None = None) -> bytes:
    """The page with every section, or with `sections` only; FlashladderError if it is larger than `MOST_BYTES`."""
    book, drawn, shown = Book(ladder, root), dict[str, Panel](), find() if sections is None else sections

    def plot(panel: Panel) -> Markup:
        mark = f"\x02{panel.digest}\x03"
        drawn[mark] = panel
        return Markup(mark)  # noqa: S704  # a digest between two marks, until the page has its own digest

    whole = environment(TEMPLATES).get_template("frame.html.j2").render(
        summary=_summary(ladder),
        sections=[(name, title, content(book)) for name, title, content in shown],
        records=Markup(RECORDS),  # noqa: S704  # a mark
        html=html,
        plot=plot,
    )  # fmt: skip
    data = book.records.data()
    whole = whole.replace(RECORDS, data, 1)
    # the head names the matplotlib release, and the digest of all that does not depend on it
    whole = whole.replace("\x02drawn-by\x03", f"Matplotlib v{version('matplotlib')}; data {sha256(whole)}", 1)
    for mark, panel in drawn.items():
        whole = whole.replace(mark, panel.svg)
    packed = whole.replace(data, deflated(data), 1).encode()
    if len(packed) > MOST_BYTES:
        expected = f"at most {MOST_BYTES:,} bytes"
        raise FlashladderError("the page is too large to send", expected=expected, found=f"{len(packed):,}")
    return packed


def inflated_page(page: bytes) -> bytes:
    """The page with its records in plain text; zlib releases pack them into different bytes."""
    try:
        return _RECORDS.sub(lambda found: inflated(found[0].decode()).encode(), page, count=1)
    except ValueError:
        return page  # its records are damaged


def html(text: str) -> Markup:
    """Markdown as safe markup: headings are one level lower, each table is in a box that scrolls."""
    tokens = MARKDOWN.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + 1)}"
    found = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})  # HTML in the source is off, so all tags are ours
    return Markup(found.replace("<table>\n", SCROLLED).replace("</table>\n", "</table></div>"))  # noqa: S704


def _summary(ladder: Ladder) -> str:
    """The first sentence of the page: the speed of the first and of the fastest step, and the GPU."""
    machine = headline_machine(ladder)
    timed = ladder.headlines(machine) if machine else []
    if machine is None or not timed:
        return "Nothing was measured by this project yet; published figures only."
    (_, first), (step, best) = timed[0], max(timed, key=lambda one: one[1].pct)
    return (
        f"From {first.pct:.1f} % of FlashAttention-2's speed to {best.pct:.1f} % (iteration {step.number}), measured "
        f"on one {machine.gpu.name}: S = 4096, fp16, d_head 128, forward, non-causal."
    )
