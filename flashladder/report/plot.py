"""The progression plot: percent of FA2 over the iterations, measured and published, as SVG and PNG.

The same data and matplotlib release give the same bytes on every machine: the font is matplotlib's own DejaVu, SVG text
is drawn as paths, ids come from a fixed salt, and no date is written. The SVG names the release (`Creator`) and the
digest of its data (`Description`). Another release draws other bytes, so a check then compares the digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.metadata import version
import io
from itertools import pairwise
import json
from pathlib import Path
import re
from typing import TYPE_CHECKING, Any, Literal

from flashladder.errors import FlashladderError
from flashladder.files import dump_json, files_in, sha256, write_atomic
from flashladder.names import HEADLINE_LENGTH
from flashladder.paths import BUILD, ROOT
from flashladder.report.data import Ladder
from flashladder.report.tables import anchors_below, gpu_title, headline_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart; markers and dashes differ as well.
MEASURED_COLORS = ("#0072B2", "#CC79A7", "#56B4E9")
PUBLISHED_STYLES: Mapping[str, tuple[str, str, tuple[int, tuple[int, ...]]]] = {
    "a100": ("#D55E00", "s", (0, (4, 2))),
    "rtx3090": ("#009E73", "^", (0, (1, 1))),
}
UPRIGHT_FROM = 12  # a picture with more steps turns its values upright, so that they do not touch
INK, FAINT = "#222222", "#8A8A8A"
Levels = Sequence[tuple[str, float]]
PICTURES = BUILD / "pictures"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "flashladder",
    "text.parse_math": False,  # a title may hold a dollar sign
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "path.simplify": False,
}


@dataclass(frozen=True)
class Point:
    """Percent of FA2 at one iteration; `low` and `high` bound the 95 % interval (None: published without one)."""

    iteration: int
    percent: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """One line of the plot. `key` is a GPU key of the published table, or None for a measurement of ours."""

    label: str
    points: tuple[Point, ...]
    key: str | None = None


def data_digest(data: Any) -> str:
    """SHA-256 of everything that is drawn; numbers have nine digits, because CPUs differ in the last bit."""
    return sha256(dump_json(json.loads(dump_json(data), parse_float=lambda text: float(f"{float(text):.9g}"))))


def of_ladder(ladder: Ladder) -> dict[str, bytes]:
    """The plot of the ladder: measured machines (fp16, each in its own configurations), then the published GPUs."""
    series = []
    for machine in ladder.machines:
        if found := ladder.headlines(machine):
            points = tuple(Point(step.number, one.pct, one.pct_low, one.pct_high) for step, one in found)
            series.append(Series(f"{machine.title}, measured", points))
    for key in ladder.published.gpus:
        column = ladder.published.column(key, "seq4096")
        line = tuple(Point(number, value) for number, value in enumerate(column, 1))
        series.append(Series(f"{gpu_title(key)}, published", line, key))
    best = headline_machine(ladder)
    anchors = anchors_below(best, "fp16") if best is not None and best is ladder.machines[0] else []
    levels = [(one.title, one.summaries[HEADLINE_LENGTH].pct) for one in anchors]
    names = {one.number: one.slug.replace("_", " ").replace("d head", "d_head") for one in ladder.iterations}
    panels = {own[0]: f"{own[0]} to {own[-1]}: family {name}" for name, own in ladder.families().items()}
    subtitle = f"Speed at S = {HEADLINE_LENGTH}, fp16, d_head 128, relative to FA2 on the same GPU; "
    days = ", ".join(f"{one.title} {one.days}" for one in ladder.machines)
    subtitle += f"measured: {days}; whiskers: 95 % intervals" if days else "nothing measured by this project yet"
    return render(series, names, subtitle, levels, panels)


def render(
    series: Sequence[Series], names: Mapping[int, str], subtitle: str, levels: Levels, panels: Mapping[int, str]
) -> dict[str, bytes]:
    """Draws the plot, measured `series` first; returns bytes by suffix, ``svg`` and ``png`` (160 dots per inch).

    `names` are the labels of the iterations. `levels`, libraries in percent of FA2 on the GPU of the first series, are
    lines across the last panel. `panels` are titles by the first iteration of a panel, each with its own scale.
    """
    data = {
        "series": [asdict(one) for one in series], "names": list(names.items()), "subtitle": subtitle,
        "levels": [{"label": label, "percent": percent} for label, percent in levels], "panels": list(panels.items()),
    }  # fmt: skip
    draw = partial(_figure, series, names, subtitle, levels, panels)
    return saved(draw, f"percent of FA2 per iteration; data {data_digest(data)}")


def saved(draw: Callable[[], Figure], description: str, *texts: str) -> dict[str, bytes]:
    """The figure of `draw` in this project's style, as bytes by suffix, ``svg`` and ``png``.

    `description` is written into the files and holds the digest of the data. A kept picture is used again while
    `description` and `texts` stay the same, so together they must determine all that is drawn.
    """
    formats: dict[str, dict[str, Any]] = {
        "svg": {"metadata": {"Date": None, "Description": description}},
        "png": {"dpi": 160, "metadata": {"Software": None, "Description": description}},
    }
    return kept(draw, STYLE, formats, description, *texts)


def kept(
    draw: Callable[[], Figure], style: dict[Any, Any], formats: Mapping[str, dict[str, Any]], *texts: str
) -> dict[str, bytes]:
    """The figure of `draw` as bytes by suffix; read from ``build/pictures`` if the same code drew it before.

    `style` are matplotlib's settings, `formats` the arguments of `Figure.savefig`; `texts` determine all that is drawn.
    """
    files = {suffix: PICTURES / f"{sha256(repr((_drawn_by(), texts)))}.{suffix}" for suffix in formats}
    if all(path.is_file() for path in files.values()):
        return {suffix: path.read_bytes() for suffix, path in files.items()}
    import matplotlib as mpl

    mpl.use("agg")
    drawn = {suffix: io.BytesIO() for suffix in formats}
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style)
        figure = draw()
        for suffix, options in formats.items():
            figure.savefig(drawn[suffix], format=suffix, **options)
    with suppress(FlashladderError):  # the folder may be read-only; then the next report draws again
        for suffix, path in files.items():
            write_atomic(path, drawn[suffix].getvalue())
    return {suffix: out.getvalue() for suffix, out in drawn.items()}


@lru_cache(maxsize=1)
def _drawn_by() -> str:
    scripts = (*files_in(Path(__file__).parent, "*.py"), *files_in(ROOT / "analysis", "**/*.py"))
    return version("matplotlib") + sha256(b"".join(path.read_bytes() for path in scripts))


def rendered_by(svg: bytes) -> tuple[str, str]:
    """(matplotlib release, digest of the data) that an SVG of this project names; empty strings if it names none."""
    text = svg.decode("utf-8", errors="replace")
    release = re.search(r"Matplotlib v([\w.+]+)", text)
    digest = re.search(r"data ([0-9a-f]{64})", text)
    return (release[1] if release else "", digest[1] if digest else "")


def _figure(
    series: Sequence[Series], names: Mapping[int, str], subtitle: str, levels: Levels, titles: Mapping[int, str]
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.4, 5.6), facecolor="white")
    spans = [[n for n in names if first <= n < end] for first, end in pairwise((*titles, max(names) + 1))]
    widths = [2.5 + len(numbers) for numbers in spans]
    panels = figure.subplots(1, len(spans), squeeze=False, gridspec_kw={"width_ratios": widths})[0]
    figure.subplots_adjust(left=0.052, right=0.868, top=0.822, bottom=0.212, wspace=0.46)
    figure.text(0.052, 0.945, "Steps of an attention forward kernel", fontsize=15, fontweight="bold")
    figure.text(0.052, 0.898, subtitle, fontsize=9.5, color="#555555")
    for axes, numbers, title in zip(panels, spans, titles.values(), strict=True):
        across = levels if axes is panels[-1] else ()
        _panel(axes, series, names, numbers, title)
        _scale(axes, series, numbers, across, upright=len(names) > UPRIGHT_FROM)
        _end_labels(axes, series, numbers, across)
    return figure


def _panel(axes: Axes, series: Sequence[Series], names: Mapping[int, str], numbers: list[int], title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.5, color="#555555", pad=8)
    axes.axhline(100, color=INK, linewidth=1.0, zorder=1.5)
    axes.annotate(
        "FA2", (0, 100), xycoords=("axes fraction", "data"), xytext=(4, -4), textcoords="offset points", fontsize=8.5,
        fontweight="bold", va="top",
    )  # fmt: skip
    for index, line in enumerate(series):
        _line(axes, line, index, [point for point in line.points if point.iteration in numbers])
    labels = [f"{names[number]}  {number}" for number in numbers]
    axes.set_xticks(numbers, labels, rotation=42, ha="right", fontsize=8.2)
    axes.tick_params(axis="x", length=3, pad=2)
    for label in axes.get_xticklabels():
        label.set_rotation_mode("anchor")
    axes.set_xlim(numbers[0] - 0.6, numbers[-1] + 0.5)
    axes.yaxis.set_major_formatter("{x:.0f} %")
    plain_axes(axes, "y")


def plain_axes(axes: Axes, across: Literal["x", "y"]) -> None:
    """Draws faint grid lines across one axis, below the data, and no frame at the top and the right."""
    axes.grid(axis=across, color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _line(axes: Axes, line: Series, index: int, points: Sequence[Point]) -> None:
    xs, ys = [point.iteration for point in points], [point.percent for point in points]
    color, marker, dash = _style(line, index)
    if line.key is not None:
        axes.plot(
            xs, ys, color=color, linestyle=dash, linewidth=1.4, marker=marker, markersize=4.5, markerfacecolor="white",
            markeredgewidth=1.2, zorder=2,
        )  # fmt: skip
        return
    below = [max(0.0, point.percent - (point.low or point.percent)) for point in points]
    above = [max(0.0, (point.high or point.percent) - point.percent) for point in points]
    axes.errorbar(
        xs, ys, yerr=[below, above], color=color, linewidth=2.2, marker=marker, markersize=5.5, capsize=3,
        elinewidth=1.2, markeredgecolor="white", markeredgewidth=0.8, zorder=3,
    )  # fmt: skip


def _style(line: Series, index: int) -> tuple[str, str, Any]:
    if line.key is None:
        return MEASURED_COLORS[index % len(MEASURED_COLORS)], "o", "-"
    return PUBLISHED_STYLES[line.key]


def _scale(axes: Axes, series: Sequence[Series], numbers: Sequence[int], levels: Levels, *, upright: bool) -> None:
    """Sets limits at multiples of 5 % around points and intervals; prints the first measured line's values on top."""
    points = [point for line in series for point in line.points if point.iteration in numbers]
    across = [100.0, *(percent for _, percent in levels)]
    low = min([*across, *(point.low or point.percent for point in points)])
    high = max([*across, *(point.high or point.percent for point in points)])
    room = (high - low) * (0.19 if upright else 0.1)
    axes.set_ylim(max(0.0, 5 * ((low - room / 3) // 5)), 5 * ((high + room) // 5 + 1))
    for percent in across[1:]:
        axes.axhline(percent, color=INK, linewidth=0.9, linestyle=(0, (6, 3)), zorder=1.4)
    for point in series[0].points if series and series[0].key is None else ():
        if point.iteration in numbers:
            axes.text(
                point.iteration, 0.985, f"{point.percent:.1f}", transform=axes.get_xaxis_transform(), ha="center",
                va="top", fontsize=8.2, rotation=90 if upright else 0, color=MEASURED_COLORS[0], fontweight="bold",
            )  # fmt: skip


def _end_labels(axes: Axes, series: Sequence[Series], numbers: Sequence[int], levels: Levels) -> None:
    """Labels libraries, and lines that end in this panel, at its right side; moves labels apart that would touch."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.105
    ends = [(percent, f"{label}\n{percent:.1f} %", INK, "normal") for label, percent in levels]
    for index, line in enumerate(series):
        if line.points and (last := line.points[-1]).iteration in numbers:
            text = f"{line.label}\n{last.iteration}: {last.percent:.1f} %"
            ends.append((last.percent, text, _style(line, index)[0], "bold" if line.key is None else "normal"))
    ends.sort()
    placed: list[float] = []
    for percent, *_ in ends:
        placed.append(max(percent, placed[-1] + gap) if placed else percent)
    over = max(0.0, placed[-1] + gap * 0.3 - high) if placed else 0.0
    for (percent, text, color, weight), y in zip(ends, placed, strict=True):
        axes.annotate(
            text, (1, percent), (1.012, y - over), xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"), color=color, fontsize=8.8, va="center", fontweight=weight,
            annotation_clip=False,
        )  # fmt: skip
