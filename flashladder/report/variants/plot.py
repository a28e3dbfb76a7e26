"""Bars of what each change, or each compiler, is worth, with 95 % intervals and the noise floor, as SVG and PNG.

Why bars from zero and not a waterfall: the changes do not add up, each is taken back or added alone. Same data and same
matplotlib release give the same bytes (`flashladder.report.plot`). Run: ``python analysis/ablation.py FILE``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flashladder.ladder.config import KernelConfig
from flashladder.report.plot import FAINT, INK, data_digest, saved
from flashladder.report.variants.tables import percent_of
from flashladder.report.variants.worth import BOTH, Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, as in the progression plot; what cannot be told from noise has no colour of its own.
COLORS = {"faster": "#0072B2", "slower": "#D55E00", "same": "#B8B8B8", "ambiguous": "#DDCC77"}
ROW_INCHES = 0.27
COLUMNS = 2  # of panels
Label = Callable[[Comparison], str]


def render(found: Sequence[Comparison], title: str, subtitle: str, label: Label) -> dict[str, bytes]:
    """Draws one panel per iteration, configuration and dtype.

    Args:
        found: comparisons at one length; those without a measurement are left out.
        title: of the figure.
        subtitle: what was measured: GPU, length.
        label: the name of a bar.

    Returns:
        bytes by suffix, ``svg`` and ``png``.
    """
    panels: dict[str, list[Comparison]] = {}
    for one in found:
        if one.worth is not None:
            name = f"{_how(one)}\n{KernelConfig.parse(one.base.config).brief()}, {one.dtype}"
            panels.setdefault(name, []).append(one)
    data = {
        name: [[label(one), one.worth and vars(one.worth), one.floor] for one in panel]
        for name, panel in panels.items()
    }
    description = f"{title}; data {data_digest(data)}"
    return saved(lambda: _figure(panels, title, subtitle, label), description, subtitle)


def _how(one: Comparison) -> str:
    """``iteration 16: each change taken back``."""
    told = {"-": "each change taken back", "+": "each change added", "": "each compiler"}
    return f"iteration {one.base.subject.text}: {told[one.variant.subject.sign]}"


def _figure(panels: dict[str, list[Comparison]], title: str, subtitle: str, label: Label) -> Figure:
    from matplotlib.figure import Figure

    columns = max(1, min(COLUMNS, len(panels)))
    rows = -(-len(panels) // columns) or 1
    bars = max((len(panel) for panel in panels.values()), default=1)
    width, height = 5.6 * columns, 0.95 + rows * (0.95 + ROW_INCHES * bars)
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.15 / width, 1 - 0.34 / height, title, fontsize=14, fontweight="bold")
    figure.text(0.15 / width, 1 - 0.6 / height, subtitle, fontsize=9, color="#555555")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    figure.subplots_adjust(
        left=1.65 / width, right=1 - 0.2 / width, top=1 - 1.25 / height, bottom=0.4 / height, wspace=0.45,
        hspace=0.95 / (ROW_INCHES * bars),
    )  # fmt: skip
    for axes, (name, panel) in zip(grid, panels.items(), strict=False):
        _panel(axes, name, panel, label)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def _panel(axes: Axes, name: str, panel: Sequence[Comparison], label: Label) -> None:
    """One bar per comparison, the first at the top; the band is the noise of two ratios."""
    axes.set_title(name, loc="left", fontsize=8.2, color="#555555", pad=6)
    noise = percent_of(BOTH * max(one.floor for one in panel))
    axes.axvspan(-noise, noise, color="#EEEEEE", zorder=0)
    axes.axvline(0, color=INK, linewidth=0.9, zorder=1.5)
    for row, one in enumerate(panel):
        if one.worth is None or one.verdict is None:
            continue
        middle, low, high = (percent_of(value) for value in (one.worth.median, one.worth.low, one.worth.high))
        axes.barh(row, middle, height=0.66, color=COLORS[one.verdict], zorder=2)
        error = [[max(0.0, middle - low)], [max(0.0, high - middle)]]
        axes.errorbar(middle, row, xerr=error, color=INK, elinewidth=1.0, capsize=2.4, zorder=3)
        offset, align = (4, "left") if middle >= 0 else (-4, "right")
        end = high if middle >= 0 else low
        axes.annotate(
            f"{middle:+.1f} %", (end, row), (offset, 0), textcoords="offset points", ha=align, va="center", fontsize=7.6
        )
    axes.set_yticks(range(len(panel)), [label(one) for one in panel], fontsize=8.2)
    axes.set_ylim(len(panel) - 0.4, -0.6)
    axes.margins(x=0.2)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter("{x:+.4g} %")
    axes.tick_params(axis="both", length=3, color=FAINT, labelsize=8.2)
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
