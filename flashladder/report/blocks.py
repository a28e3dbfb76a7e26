"""Blocks of the page: tables as data, with cells that lead to records; folded parts; plots as inline SVG.

The templates make HTML of them. A plot is matplotlib's SVG with text as text and the colours of the style sheet. The
same data and the same matplotlib release give the same bytes. The tables beside it hold its numbers and lead to their
samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
import io
import re
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.report.plot import kept
from flashladder.report.tables import DASH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# These stand for the style sheet's colours: Okabe and Ito's, which colour-blind readers tell apart. Markers differ too.
INK, FAINT, GRID, GROUND = "#010201", "#010202", "#010203", "#010204"
SERIES = tuple(f"#0102{10 + i:02d}" for i in range(8))
COLORS = {INK: "ink", FAINT: "faint", GRID: "grid", GROUND: "ground"} | {
    color: f"s{i}" for i, color in enumerate(SERIES)
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
STYLE = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.linewidth": 0.7,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "path.simplify": False,
}
HEAD = re.compile(r"^.*?<svg [^>]*?viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)
DROPPED = re.compile(r"\s*<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
IDENTIFIER = re.compile(r' id="([^"]+)"')
REFERENCE = re.compile(r"(?:#)([\w.-]+)(?=[\"\)])")
BLANKS = re.compile(r"\s*\n\s*")
LONG = re.compile(r"(\.\d)\d+")  # digits beyond a tenth of a unit
STYLED = re.compile(r' style="([^"]+)"')
OFTEN = 6  # times that a style must come to be worth a class
FONT = re.compile(r"'DejaVu Sans'[^;\"]*")


@dataclass(frozen=True)
class Panel:
    """One plot, drawn: its markup, and the digest of what it shows."""

    svg: Markup
    title: str
    description: str
    digest: str


def line(axes: Axes, xs: Sequence[float], ys: Sequence[float], style: int, label: str, *, hollow: bool = False) -> None:
    """The line of series `style` with its markers; hollow ones for figures that others published."""
    axes.plot(
        xs, ys, color=SERIES[style], linestyle=DASHES[style % len(DASHES)], linewidth=1.5, label=label,
        marker=MARKERS[style % len(MARKERS)], markersize=4.5, markerfacecolor=GROUND if hollow else SERIES[style],
    )  # fmt: skip


def draw(
    name: str, title: str, description: str, data: object, fill: Callable[[Axes], None], height: float = 3.6
) -> Panel:
    """Draws one panel.

    Args:
        name: of the panel in the page: lower-case letters, digits and hyphens.
        title: above it.
        description: GPU, dtype, length, date and what the plot says, also for readers who cannot see it.
        data: all that is drawn, for the digest by which another release's picture is compared.
        fill: draws into the axes.
        height: in inches of 72 units.
    """

    def drawn() -> dict[str, bytes]:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        mpl.use("agg")
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update({**STYLE, "svg.hashsalt": f"flashladder {name}"})  # type: ignore[dict-item]  # the stub wants literal keys
            figure = Figure(figsize=(5.4, height), facecolor="none", layout="constrained")
            axes = figure.subplots()
            axes.set_facecolor("none")
            axes.grid(visible=True)
            axes.set_axisbelow(True)
            fill(axes)
            out = io.BytesIO()
            figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        return {"svg": inlined(out.getvalue().decode("utf-8"), name, f"{title}. {description}").encode()}

    digest = sha256(repr((name, title, description, data)))
    svg = kept(drawn, ("svg",), digest)["svg"].decode()
    return Panel(Markup(svg), title, description, digest)  # noqa: S704  # escaped by matplotlib and below


def inlined(svg: str, name: str, label: str) -> str:
    """Matplotlib's SVG as a part of the page: no head, only ids that are used, the style sheet's colours.

    Raises:
        FlashladderError: matplotlib writes SVG in another form.
    """
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


@dataclass(frozen=True)
class Column:
    """One column: its title, its class (text, short, number or code), and what a pointer over it tells."""

    title: str
    kind: str = "number"
    told: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell."""

    text: str  # what is shown, as text and never as markup
    records: str = ""  # numbers of the records behind it, ``"3"`` or ``"3,17"``; empty where nothing was measured
    sort: float | None = None  # what the column is sorted by, where it is not the text
    style: str = ""  # a class of the page's style sheet, such as a verdict
    heat: int | None = None  # percent of the ground that is coloured, in a heat map
    target: str = ""  # the anchor in the page that the cell leads to, where it has no records

    @property
    def key(self) -> str:
        """What the page sorts by; empty where the text says it."""
        if self.sort is None:
            return ""
        plain = self.text.replace(",", "")
        told = plain.removeprefix("-").replace(".", "", 1).isdecimal() and float(plain) == self.sort
        return "" if told else f"{self.sort:.5g}"


@dataclass(frozen=True)
class Table:
    """One table: `groups` are titles over several columns, each with how many."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Fold:
    """Blocks below a line that unfolds them; `name` is the anchor that a link unfolds."""

    title: str
    blocks: Sequence[Block]
    name: str = ""


@dataclass(frozen=True)
class Panels:
    """Plots side by side, as far as there is room."""

    panels: Sequence[Panel]


Block = Table | Fold | Panels | str  # a text is Markdown
EMPTY = Cell(DASH)
STRONGEST = 55  # percent of the ground under a row's largest number, so that it stays readable


def number(value: float | None, digits: int = 1, records: str = "", style: str = "") -> Cell:
    """A cell with a number of so many digits, which sorts by the whole of it; a dash for None."""
    return EMPTY if value is None else Cell(f"{value:,.{digits}f}", records, float(value), style)


def heated(count: float, most: float, records: str = "") -> Cell:
    """A count on a ground as strong as its share of the row's largest, `most`."""
    return Cell(f"{count:,.0f}", records, count, heat=round(STRONGEST * count / most) if most else 0)


def step(number: int) -> Cell:
    """The number of an iteration, which leads to its note."""
    return Cell(str(number), sort=float(number), target=f"iteration-{number}")


def columns(*titles: str) -> list[Column]:
    """Columns by title and kind, ``"verdict|short"``; those of numbers by their title alone."""
    parts = [title.partition("|") for title in titles]
    return [Column(title, kind or "number") for title, _, kind in parts]


def fold(table: Table) -> Fold:
    """A table that one unfolds by its caption."""
    return Fold(table.caption, [table])
