"""Plots of the page: matplotlib's SVG, set into HTML so that colours follow the theme and points lead to records.

Why not a picture: text stays text, colours are the style sheet's (light, dark, print), and every point is a link with
a title. Each plot is one small panel, about 400 units wide: two stand side by side on a desk, one fills a phone.

Same data and same matplotlib release give the same bytes. The digest of what is drawn stands in the page, as for the
report's other pictures (`flashladder.report.plot`). Nothing to run here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
import io
import re
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from flashladder.errors import FlashladderError
from flashladder.files import sha256

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What is drawn in these colours takes the style sheet's: told apart under the common kinds of colour blindness
# (Okabe and Ito's, darkened on light ground); marker and dash differ as well.
INK, FAINT, GRID, GROUND = "#010201", "#010202", "#010203", "#010204"
SERIES = tuple(f"#0102{10 + i:02d}" for i in range(8))
COLORS = {INK: "ink", FAINT: "faint", GRID: "grid", GROUND: "ground"} | {
    color: f"s{i}" for i, color in enumerate(SERIES)
}
Place = Literal["lower right", "lower left", "upper left", "upper right"]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
STYLE = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.7,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
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
METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
LINK = re.compile(r'<a xlink:href="p:(\d+)"[^>]*>(.*?)</a>', re.DOTALL)
IDENTIFIER = re.compile(r' id="([^"]+)"')
REFERENCE = re.compile(r"(?:#)([\w.-]+)(?=[\"\)])")
STYLES = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
BLANKS = re.compile(r"\s*\n\s*")
LONG = re.compile(r"(\.\d\d)\d+")  # digits beyond a hundredth of a unit
STYLED = re.compile(r' style="([^"]+)"')
OFTEN = 12  # times that a style must come to be worth a class
FONT = re.compile(r"'DejaVu Sans'[^;\"]*")


@dataclass
class Plot:
    """One panel while it is drawn: `axes`, and the points that lead somewhere.

    Attributes:
        axes: matplotlib's.
        points: of every point its records and its title.
        named: what the legend names.
    """

    axes: Axes
    points: list[tuple[str, str]] = field(default_factory=list)
    named: list[tuple[Any, str]] = field(default_factory=list)

    def url(self, records: str, told: str) -> str:
        """What matplotlib is given as the address of a point that leads to `records`."""
        self.points.append((records, " ".join(told.split())))
        return f"p:{len(self.points) - 1}"

    def dots(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        urls: Sequence[str],
        style: int,
        *,
        size: float = 22,
        hollow: bool = False,
    ) -> None:
        """Points of series `style`, each a link; `hollow` for figures that others published."""
        if not xs:
            return
        face = GROUND if hollow else SERIES[style]
        points = self.axes.scatter(
            xs, ys, s=size, marker=MARKERS[style % len(MARKERS)], facecolors=face, edgecolors=SERIES[style],
            linewidths=1.0, zorder=4,
        )  # fmt: skip
        points.set_urls(list(urls))

    def line(self, xs: Sequence[float], ys: Sequence[float], style: int, *, dash: int = 0, width: float = 1.5) -> None:
        """The line of series `style`."""
        self.axes.plot(xs, ys, color=SERIES[style], linestyle=DASHES[dash % len(DASHES)], linewidth=width, zorder=3)

    def label(self, text: str, style: int, *, dash: int = 0) -> None:
        """Names series `style` in the legend, with its line and its marker."""
        from matplotlib.lines import Line2D

        face = GROUND if dash else SERIES[style]
        line, marker = DASHES[dash % len(DASHES)], MARKERS[style % len(MARKERS)]
        sample = Line2D(
            [], [], color=SERIES[style], linestyle=line, marker=marker, markersize=4.5, markerfacecolor=face
        )
        self.named.append((sample, text))

    def legend(self, place: Place = "lower right", columns: int = 1) -> None:
        """The legend of what was named."""
        if self.named:
            self.axes.legend([one for one, _ in self.named], [text for _, text in self.named], loc=place, ncols=columns)

    def whiskers(
        self, xs: Sequence[float], ys: Sequence[float], spans: Sequence[tuple[float, float]], style: int
    ) -> None:
        """Intervals around points: `spans` are their ends."""
        below = [max(0.0, y - low) for y, (low, _) in zip(ys, spans, strict=True)]
        above = [max(0.0, high - y) for y, (_, high) in zip(ys, spans, strict=True)]
        self.axes.errorbar(
            xs, ys, yerr=[below, above], fmt="none", ecolor=SERIES[style], elinewidth=1.1, capsize=2.5, zorder=3
        )


@dataclass(frozen=True)
class Drawn:
    """One panel, drawn: its markup, and the digest of what it shows."""

    svg: Markup
    title: str
    description: str
    digest: str


def draw(
    name: str, title: str, description: str, fill: Callable[[Plot], None], size: tuple[float, float] = (5.4, 3.6)
) -> Drawn:
    """Draws one panel.

    Args:
        name: of the panel in the page, letters and hyphens.
        title: above it.
        description: what a reader learns who cannot see it: what is drawn, and what it says.
        fill: draws into the axes.
        size: width and height in inches of 72 units.

    Raises:
        FlashladderError: the name is none.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise FlashladderError("not the name of a plot", expected="lower-case letters and hyphens", found=repr(name))
    mpl.use("agg")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**STYLE, "svg.hashsalt": f"flashladder {name}"})  # type: ignore[dict-item]  # the stub wants literal keys
        figure = Figure(figsize=size, facecolor="none", layout="constrained")
        axes = figure.subplots()
        axes.set_facecolor("none")
        axes.grid(visible=True)
        axes.set_axisbelow(True)
        plot = Plot(axes)
        fill(plot)
        out = io.BytesIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = inlined(out.getvalue().decode("utf-8"), name, title, description, plot.points)
    return Drawn(Markup(svg), title, description, sha256(repr((name, title, description, plot.points))))  # noqa: S704  # escaped by matplotlib and below


def inlined(svg: str, name: str, title: str, description: str, points: Sequence[tuple[str, str]]) -> str:
    """Matplotlib's SVG as a part of the page: no head, no ids but used ones, the style sheet's colours, links."""
    box = HEAD.match(svg)
    if box is None:
        raise FlashladderError("matplotlib drew no SVG as this project knows it", found=svg[:80])
    body = METADATA.sub("", svg[box.end() :])
    body = LINK.sub(lambda match: _linked(match[2], *points[int(match[1])]), body)
    used = {match[1] for match in IDENTIFIER.finditer(body)} & {match[1] for match in REFERENCE.finditer(body)}
    body = IDENTIFIER.sub(lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", body)
    body = REFERENCE.sub(lambda match: f"#{name}-{match[1]}" if match[1] in used else match[0], body)
    body = STYLES.sub("", body)
    for color, variable in COLORS.items():
        body = body.replace(color, f"var(--{variable})")
    body = FONT.sub("var(--font)", body).replace("xlink:href", "href")
    body = classed(LONG.sub(r"\1", BLANKS.sub(" ", body)), name)
    role = "group" if points else "img"
    return (
        f'<svg role="{role}" aria-label="{escape(f"{title}. {description}")}" viewBox="{box[1]}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}'
    )


def classed(body: str, name: str) -> str:
    """The same with styles that come often as classes: hundreds of points look alike."""
    counts = Counter(match[1] for match in STYLED.finditer(body))
    often = {style: f"{name}-{i}" for i, (style, count) in enumerate(counts.items()) if count >= OFTEN}
    rules = "".join(f".{name} {{{style}}}" for style, name in often.items())
    body = STYLED.sub(lambda match: f' class="{often[match[1]]}"' if match[1] in often else match[0], body)
    return f"<style>{rules}</style>{body}" if rules else body


def _linked(inner: str, records: str, told: str) -> str:
    """A point with its title, a link where it has records. The tables hold the same numbers for who has no pointer."""
    shown = f"<title>{escape(told)}</title>{inner}"
    if not records:
        return f"<g>{shown}</g>"
    return f'<a xlink:href="#record" data-p="{escape(records)}" tabindex="-1">{shown}</a>'
