"""What a change, or another compiler, is worth: two kernels of a sweep compared through their ratios to FA2.

Both alternated with FA2, so that the difference of their log ratios is free of the clock that each met. Its interval is
bootstrapped as that of a ratio is. Both ratios carry the noise that the A/A floor measures, independently: a difference
counts beyond the floor times the square root of two. Changes do not add up: each is taken back or added alone.

Run: ``python analysis/sweep_tables.py ablation FILE``, or ``toolchain FILE``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
import math
from typing import TYPE_CHECKING

import numpy as np

from flashladder.bench.references import BACKENDS
from flashladder.columns import csv_text, markdown
from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import Subject, load_description, parse_subject
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.names import HEADLINE_LENGTH
from flashladder.problem import Shape
from flashladder.report.plot import FAINT, INK, data_digest, saved
from flashladder.report.tables import DASH, plain
from flashladder.results.derive import Cell, by_cell, joined
from flashladder.results.schema import BenchResult, Kernel, PlannedCell, kernel_key
from flashladder.results.statistics import (
    SEED,
    Floats,
    LogSummary,
    Verdict,
    interval,
    resampled_medians,
    verdict,
    widened,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOTH = math.sqrt(2.0)  # two independent ratios are compared


@dataclass(frozen=True)
class Side:
    """One of two kernels: what it is, and what the result says about its machine code (None: it was not measured)."""

    subject: Subject
    config: str
    kernel: Kernel | None

    @property
    def brief(self) -> str:
        """Its configuration, short."""
        return KernelConfig.parse(self.config).brief()

    @property
    def numbers(self) -> tuple[str, str]:
        """Registers, and bytes of spill stores and loads."""
        if self.kernel is None or self.kernel.registers is None:
            return DASH, DASH
        return str(self.kernel.registers), f"{self.kernel.spill_stores}/{self.kernel.spill_loads}"

    @property
    def static(self) -> str:
        """The same in words."""
        return "{} registers, spills {}".format(*self.numbers)

    @property
    def nvcc(self) -> str:
        """The compiler's version."""
        return self.kernel.toolchain.get("nvidia-cuda-nvcc", DASH) if self.kernel else DASH

    @property
    def text(self) -> str:
        """The beginning of its machine code's digest."""
        return (self.kernel.text_sha256 or DASH)[:12] if self.kernel else DASH

    def field(self, name: str) -> object:
        """A field of its kernel for CSV; empty where there is none."""
        found = getattr(self.kernel, name, None)
        return "" if found is None else found


@dataclass(frozen=True)
class Comparison:
    """Two kernels at one shape.

    Attributes:
        base: the iteration itself, through the pinned compiler.
        variant: the ablation, or the same through another compiler.
        dtype: of both.
        shape: of both.
        worth: natural log of the speed with the change over that without; of a compiler, of its speed over the
            pinned one's. None where one of them was not measured.
        floor: the A/A floor of this dtype in log units, for one ratio.
        verdict: whether the change makes it faster or slower; None without a measurement.
        lacking: why it was not measured; empty when it was.
    """

    base: Side
    variant: Side
    dtype: str
    shape: Shape
    worth: LogSummary | None
    floor: float
    verdict: Verdict | None
    lacking: str = ""

    @property
    def same_code(self) -> bool:
        """Whether both are known to be the same machine code, so that any difference is noise."""
        one, other = self.base.kernel, self.variant.kernel
        return one is not None and other is not None and one.same_code(other)

    @property
    def percent(self) -> tuple[float, float, float] | None:
        """Median and bounds of what it is worth, as a change of speed in percent."""
        if self.worth is None:
            return None
        return percent_of(self.worth.median), percent_of(self.worth.low), percent_of(self.worth.high)


def compared(name: str, result: BenchResult) -> list[Comparison]:
    """Every ablation, or every other toolchain (`name` is a key of `KINDS`), that was planned, in the plan's order.

    An ablation is compared with its iteration at the configuration that follows from its own; an iteration through
    another compiler with itself through the pinned one.

    Raises:
        FlashladderError: the result is of no sweep, or its sweep has no such cells.
    """
    if result.sweep is None:
        raise FlashladderError("not the packed result of a sweep", hint="`invoke sweep --grid NAME` ends with one")
    measured = {cell: joined(parts) for cell, parts in by_cell(result.groups).items()}
    cells = {_key(cell): cell for cell in result.sweep.planned if cell.subject not in BACKENDS}
    failures = {one.address: f"{one.kind}: {one.message}" for one in result.sweep.failures}
    base_configs = cache(_base_configs)  # each is asked at every length, and the ladder's files are listed each time
    found = []
    for key, cell in cells.items():
        subject = parse_subject(cell.subject, cell.toolchain)
        if not subject.variant or bool(subject.cuda) != (name == "toolchain"):
            continue
        base = Subject(subject.number, subject.sign, subject.change) if subject.cuda else Subject(subject.number)
        for config in base_configs(subject, cell.config):
            other = (kernel_key(base.number, config, base.variant), *key[1:])
            if other in cells:
                sides = (_side(result, base, other), _side(result, subject, key))
                told = "; ".join(filter(None, (failures.get(cells[one].address) for one in (other, key))))
                found.append(_comparison(result, sides, (other, key), measured, told))
    if not found:
        raise FlashladderError(f"the sweep has no {KINDS[name].what} beside an iteration of its own")
    return found


def _key(cell: PlannedCell) -> Cell:
    subject = parse_subject(cell.subject, cell.toolchain)
    return kernel_key(subject.number, cell.config, subject.variant), cell.dtype, cell.shape


def _base_configs(subject: Subject, config: str) -> list[str]:
    """The configurations of the iteration that an ablation's `config` follows from; a compiler changes none."""
    if subject.cuda:
        return [config]
    base, own = load_iteration(subject.number), load_description(subject.text)
    dtype = "bf16" if config.startswith("(BF16") else "fp16"
    found = {
        base.configs[gpu].with_dtype(dtype).short_form(): None
        for gpu in base.configs
        if own.configs[gpu].with_dtype(dtype).short_form() == config
    }
    return list(found)


def _side(result: BenchResult, subject: Subject, cell: Cell) -> Side:
    return Side(
        subject, cell[0].removeprefix(kernel_key(subject.number, "", subject.variant)), result.kernels.get(cell[0])
    )


def _comparison(
    result: BenchResult,
    sides: tuple[Side, Side],
    cells: tuple[Cell, Cell],
    measured: Mapping[Cell, tuple[Floats, list[int]]],
    told: str,
) -> Comparison:
    _, dtype, shape = cells[0]
    if dtype not in result.floors_pct:
        raise FlashladderError("the result has no A/A floor", found=dtype, hint="time fa2 beside itself as well")
    floor = math.log1p(result.floors_pct[dtype] / 100.0)
    parts = [measured.get(cell) for cell in cells]
    base, variant = parts
    if base is None or variant is None or not base[0].size or not variant[0].size:
        return Comparison(*sides, dtype, shape, None, floor, None, told or "not measured")
    backwards = sides[1].subject.sign == "-" and not sides[1].subject.cuda
    worth = difference(base, variant) if backwards else difference(variant, base)
    found = verdict(worth, BOTH * floor, enough=result.settings.min_pairs)
    return Comparison(*sides, dtype, shape, widened(worth, BOTH * floor), floor, found)


def difference(after: tuple[Floats, list[int]], before: tuple[Floats, list[int]]) -> LogSummary:
    """How much faster `after` is than `before`, from the log ratios of each to one reference, with its 95 % interval.

    The two are resampled independently: they were timed apart.
    """
    draws = resampled_medians(*after) - resampled_medians(*before, seed=SEED + 1)
    low, high = interval(draws)
    middle = float(np.median(after[0]) - np.median(before[0]))
    return LogSummary(middle, low, high, min(after[0].size, before[0].size))


CSV = (
    "base", "subject", "cuda", "base_config", "config", "dtype", "seq_len", "batch", "n_heads", "worth_pct", "low_pct",
    "high_pct", "verdict", "a_a_floor_points", "same_machine_code", "base_text_sha256", "text_sha256", "base_registers",
    "registers", "base_spill_store_bytes", "spill_store_bytes", "lacking",
)  # fmt: skip
MARKS = {"same": " =", "ambiguous": " ?", "faster": "", "slower": ""}
Table = dict[tuple[str, str, str], list[Comparison]]  # by variant, its configuration and the base's


def percent_of(log_ratio: float) -> float:
    """A log ratio of speeds as a change in percent."""
    return 100.0 * math.expm1(log_ratio)


def worth(one: Comparison) -> str:
    """``+3.2 % (+3.0 to +3.4) =``, or why there is no number."""
    if one.percent is None or one.verdict is None:
        return one.lacking
    return "{:+.1f} % ({:+.1f} to {:+.1f})".format(*one.percent) + MARKS[one.verdict]


@dataclass(frozen=True)
class Kind:
    """What a sweep's page compares: `what` names it, `title` and `shown` head page and plot, `label` names a bar.

    `heading` gives the end of a section's heading and the line below it, `header` and `fields` the first columns.
    """

    what: str
    title: str
    shown: str
    header: tuple[str, ...]
    heading: Callable[[Comparison], tuple[str, str]]
    fields: Callable[[Comparison], tuple[str, ...]]
    label: Callable[[Comparison], str]


def _ablated(one: Comparison) -> tuple[str, str]:
    how = "taken back from it" if one.variant.subject.sign == "-" else "added to it"
    return f": the change is {how}", f"{one.base.static}. A positive number: faster with the change."


def _pinned(one: Comparison) -> tuple[str, str]:
    told = f"nvcc {one.base.nvcc}, pinned: text `{one.base.text}`, {one.base.static}. "
    return "", told + "A positive number: faster than through the pinned compiler."


def _step(one: Comparison) -> str:
    """The words of an ablation's change: ``layout linear, k_order column_major``; a step of knobs only has none."""
    change = load_description(one.variant.subject.text).change
    return ", ".join(f"{concern} {value}" for concern, value in change.items()) or "tile and loads"


KINDS: Mapping[str, Kind] = {
    "ablation": Kind(
        "ablation", "What each change is worth", "speed with the change over speed without",
        ("change", "step", "configuration", "regs", "spills"), _ablated,
        lambda one: (one.variant.subject.change, _step(one), one.variant.brief, *one.variant.numbers),
        lambda one: one.variant.subject.change,
    ),
    "toolchain": Kind(
        "other toolchain", "The same source through other compilers", "speed over that through the pinned compiler",
        ("CUDA", "nvcc", "text", "regs", "spills"), _pinned,
        lambda one: (one.variant.subject.cuda, one.variant.nvcc, one.variant.text, *one.variant.numbers),
        lambda one: f"CUDA {one.variant.subject.cuda}" + " (same code)" * one.same_code,
    ),
}  # fmt: skip


def document(name: str, result: BenchResult, found: Sequence[Comparison]) -> str:
    """One table per iteration, configuration and dtype: a line per variant, a column per length."""
    kind, sections = KINDS[name], dict[tuple[str, str, str], Table]()
    for one in found:
        section = sections.setdefault((one.base.subject.text, one.base.config, one.dtype), {})
        key = (one.variant.subject.text, one.variant.subject.cuda, one.variant.config)
        section.setdefault(key, []).append(one)
    parts = [f"# {kind.title}", _where(result)]
    for (base, config, dtype), rows in sections.items():
        how, told = kind.heading(next(iter(rows.values()))[0])
        parts += [f"## Iteration {base}, {dtype}{how}", f"`{config}`; {told}", _table(rows, kind)]
    return "\n\n".join([*parts, _legend(found)]) + "\n"


def to_csv(found: Sequence[Comparison]) -> str:
    """Every comparison in a line of its own."""
    rows: list[Sequence[object]] = []
    for one in found:
        base, variant = one.base, one.variant
        numbers = ["", "", ""] if one.percent is None else [f"{value:.4f}" for value in one.percent]
        rows.append([
            base.subject.text, variant.subject.text, variant.subject.cuda, base.config, variant.config, one.dtype,
            one.shape.seq_len, one.shape.batch, one.shape.n_heads, *numbers, one.verdict or "",
            f"{percent_of(one.floor):.4f}", one.same_code,
            *(side.field(name) for name in ("text_sha256", "registers", "spill_stores") for side in (base, variant)),
            one.lacking,
        ])  # fmt: skip
    return csv_text(CSV, rows)


def _table(rows: Table, kind: Kind) -> str:
    """A line per variant: its first columns, then its worth at each length, in order of the lengths."""
    lengths = sorted({(one.shape.seq_len, one.shape.batch) for row in rows.values() for one in row})
    lines = []
    for row in rows.values():
        cells = {(one.shape.seq_len, one.shape.batch): one for one in row}
        told = [worth(cells[length]) if length in cells else DASH for length in lengths]
        first, *others = kind.fields(row[0])
        lines.append([first + " (same machine code)" * row[0].same_code, *others, *told])
    return markdown([*kind.header, *(f"S = {length}" for length, _ in lengths)], lines, left=len(kind.header) - 2)


def _where(result: BenchResult) -> str:
    floors = ", ".join(f"{floor:.2f} points in {dtype}" for dtype, floor in sorted(result.floors_pct.items()))
    pairs = result.settings.pairs
    return (
        f"{result.gpu.name}, driver {result.gpu.driver}, torch {result.reference.torch}; each kernel in {pairs} pairs "
        f"with FA2, ratios compared through it. A/A floor, FA2 beside itself: {floors}."
    )


def _legend(found: Sequence[Comparison]) -> str:
    """What the marks mean, and how many cells were not measured."""
    lacking = sum(one.worth is None for one in found)
    told = f" {lacking} of {len(found)} comparisons lack a measurement." if lacking else ""
    return (
        "In brackets the 95 % interval, the noise of two ratios included: the floor times the square root of two. `=`: "
        "the samples' own interval lies within that noise. `?`: neither within nor beyond. Registers are per thread, "
        "spills bytes "
        f"stored and loaded, both as ptxas reports them.{told}"
    )


# Okabe and Ito's palette, as in the progression plot; what cannot be told from noise has no colour of its own.
COLORS = {"faster": "#0072B2", "slower": "#D55E00", "same": "#B8B8B8", "ambiguous": "#DDCC77"}
ROW_INCHES = 0.27
COLUMNS = 2  # of panels


def render(found: Sequence[Comparison], kind: Kind, subtitle: str) -> dict[str, bytes]:
    """Draws one panel per iteration, configuration and dtype.

    Args:
        found: comparisons at one length; those without a measurement are left out.
        kind: what is compared.
        subtitle: what was measured: GPU, length.

    Returns:
        bytes by suffix, ``svg`` and ``png``.
    """
    panels: dict[str, list[Comparison]] = {}
    for one in found:
        if one.worth is not None:
            panels.setdefault(f"{_how(one)}\n{one.base.brief}, {one.dtype}", []).append(one)
    data = {
        name: [[kind.label(one), one.worth and vars(one.worth), one.floor] for one in panel]
        for name, panel in panels.items()
    }
    description = f"{kind.title}; data {data_digest(data)}"
    return saved(lambda: _figure(panels, kind, subtitle), description, subtitle)


def _how(one: Comparison) -> str:
    """``iteration 16: each change taken back``."""
    told = {"-": "each change taken back", "+": "each change added", "": "each compiler"}
    return f"iteration {one.base.subject.text}: {told[one.variant.subject.sign]}"


def _figure(panels: dict[str, list[Comparison]], kind: Kind, subtitle: str) -> Figure:
    from matplotlib.figure import Figure

    columns = max(1, min(COLUMNS, len(panels)))
    rows = -(-len(panels) // columns) or 1
    bars = max((len(panel) for panel in panels.values()), default=1)
    width, height = 5.6 * columns, 0.95 + rows * (0.95 + ROW_INCHES * bars)
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.15 / width, 1 - 0.34 / height, kind.title, fontsize=14, fontweight="bold")
    figure.text(0.15 / width, 1 - 0.6 / height, subtitle, fontsize=9, color="#555555")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    figure.subplots_adjust(
        left=1.65 / width, right=1 - 0.2 / width, top=1 - 1.25 / height, bottom=0.4 / height, wspace=0.45,
        hspace=0.95 / (ROW_INCHES * bars),
    )  # fmt: skip
    for axes, (name, panel) in zip(grid, panels.items(), strict=False):
        _panel(axes, name, panel, kind.label)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def _panel(axes: Axes, name: str, panel: Sequence[Comparison], label: Callable[[Comparison], str]) -> None:
    """One bar per comparison, the first at the top; the band is the noise of two ratios."""
    axes.set_title(name, loc="left", fontsize=8.2, color="#555555", pad=6)
    noise = percent_of(BOTH * max(one.floor for one in panel))
    axes.axvspan(-noise, noise, color="#EEEEEE", zorder=0)
    axes.axvline(0, color=INK, linewidth=0.9, zorder=1.5)
    for row, one in enumerate(panel):
        if one.percent is None or one.verdict is None:
            continue
        middle, low, high = one.percent
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


def pages(name: str, result: BenchResult) -> dict[str, bytes]:
    """The files of a packed sweep of `name` (key of `KINDS`) by their suffix: md, csv, svg, png.

    Raises:
        FlashladderError: it holds no such cells.
    """
    kind, found = KINDS[name], compared(name, result)
    lengths = sorted({one.shape.seq_len for one in found})
    length = HEADLINE_LENGTH if HEADLINE_LENGTH in lengths else lengths[-1]
    days = sorted(process.started_utc[:10] for process in result.processes)
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    subtitle = f"{plain(result.gpu.name)}, {when}, S = {length}: {kind.shown}; whiskers: 95 % intervals, band: noise"
    drawn = render([one for one in found if one.shape.seq_len == length], kind, subtitle)
    return {"md": document(name, result, found).encode(), "csv": to_csv(found).encode(), **drawn}
