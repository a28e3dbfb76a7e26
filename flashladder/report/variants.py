"""The worth of a change, or of another compiler: compares two kernels of a sweep through their ratios to FA2.

Both kernels alternated with FA2, so the clock cancels out of the difference of their log ratios. Its interval is
bootstrapped like that of one ratio. Both ratios have the independent noise of the A/A floor, so a difference counts if
it exceeds the floor times the square root of two. Worths do not add up: each change is taken back or added alone.

Run: ``python analysis/sweep_tables.py ablation FILE``, or ``toolchain FILE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
import math
from typing import TYPE_CHECKING

import numpy as np

from flashladder.bench.references import BACKENDS
from flashladder.columns import csv_of, grouped, markdown
from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import Subject, load_description, parse_subject
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.names import HEADLINE_LENGTH
from flashladder.problem import Problem
from flashladder.report.data import days_of, plain
from flashladder.report.plot import FAINT, INK, data_digest, plain_axes, saved
from flashladder.report.tables import DASH, written
from flashladder.results.derive import by_cell, joined
from flashladder.results.schema import BenchResult, Kernel, kernel_key
from flashladder.results.statistics import SEED, LogSummary, Verdict, interval, resampled_medians, verdict, widened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOTH = math.sqrt(2.0)  # two independent ratios are compared
TITLES = {"ablation": "What each change is worth", "toolchain": "The same source through other compilers"}
HEADERS = {
    "ablation": ("change", "step", "configuration", "regs", "spills"),
    "toolchain": ("CUDA", "nvcc", "text", "regs", "spills"),
}
CODE = {"text_sha256": "text_sha256", "registers": "registers", "spill_store_bytes": "spill_stores"}
MARKS = {"same": " =", "ambiguous": " ?", "faster": "", "slower": ""}
# Okabe and Ito's palette, as in the progression plot; grey and pale yellow for differences within the noise
COLORS = {"faster": "#0072B2", "slower": "#D55E00", "same": "#B8B8B8", "ambiguous": "#DDCC77"}
ROW_INCHES = 0.27
COLUMNS = 2  # of panels


@dataclass(frozen=True)
class Side:
    """One of two kernels; `kernel` describes its machine code, None if it was not measured."""

    subject: Subject
    config: str
    kernel: Kernel | None

    @property
    def brief(self) -> str:
        """The short form of its configuration."""
        return KernelConfig.parse(self.config).brief()

    @property
    def code(self) -> tuple[str, str, str, str]:
        """Compiler version, first digits of the machine code's digest, registers, bytes of spills."""
        own = self.kernel
        if own is None:
            return (DASH,) * 4
        known = own.registers is not None
        numbers = (str(own.registers), f"{own.spill_stores}/{own.spill_loads}") if known else (DASH, DASH)
        return own.toolchain.get("nvidia-cuda-nvcc", DASH), (own.text_sha256 or DASH)[:12], *numbers


@dataclass(frozen=True)
class Comparison:
    """Two kernels at one shape.

    `worth` is the natural log of the speed with the change over the speed without it; for a compiler, of its speed over
    that of the pinned one. `worth` and `verdict` are None if one of the two was not measured.
    """

    base: Side  # the iteration itself, through the pinned compiler
    variant: Side  # the ablation, or the same through another compiler
    dtype: str
    shape: Problem
    worth: LogSummary | None
    floor: float  # the A/A floor of this dtype in log units, for one ratio
    verdict: Verdict | None
    lacking: str  # the reason why one was not measured, or empty

    @property
    def same_code(self) -> bool:
        """Whether both are known to have the same machine code; then any difference is noise."""
        one, other = self.base.kernel, self.variant.kernel
        return one is not None and other is not None and one.same_code(other)

    @property
    def percent(self) -> tuple[float, ...]:
        """Median and bounds of `worth` as a change of speed in percent; empty without a `worth`."""
        own = self.worth
        return () if own is None else tuple(map(percent_of, (own.median, own.low, own.high)))

    @property
    def label(self) -> str:
        """The label of its bar in the plot."""
        cuda = self.variant.subject.cuda
        return f"CUDA {cuda}" + " (same code)" * self.same_code if cuda else self.variant.subject.change


def percent_of(log_ratio: float) -> float:
    """A log ratio of speeds as a change of speed in percent."""
    return 100.0 * math.expm1(log_ratio)


def compared(name: str, result: BenchResult) -> list[Comparison]:
    """The comparisons of all planned ablations or toolchains (`name` is a key of `TITLES`), in the order of the plan.

    An ablation is compared with its iteration, in the configuration that it was derived from. Another compiler is
    compared with the pinned one. The two kernels were timed at different times, so they are resampled independently.
    Raises `FlashladderError` if the result is not of a sweep, its sweep has no such cells, or it has no A/A floor.
    """
    if result.sweep is None:
        raise FlashladderError("not the packed result of a sweep", hint="`invoke sweep --grid NAME` ends with one")
    if missing := {cell.dtype for cell in result.sweep.planned} - result.floors_pct.keys():
        raise FlashladderError("the result has no A/A floor", found=min(missing), hint="time fa2 beside itself as well")
    measured = {cell: joined(parts) for cell, parts in by_cell(result.groups).items()}
    planned = {}
    for cell in result.sweep.planned:
        if cell.subject not in BACKENDS:
            subject = parse_subject(cell.subject, cell.toolchain)
            planned[kernel_key(subject.number, cell.config, subject.variant), cell.dtype, cell.shape] = cell, subject
    failures = {one.address: f"{one.kind}: {one.message}" for one in result.sweep.failures}
    base_configs = cache(_base_configs)  # the same at every length, and slow
    found = []
    for key, (cell, subject) in planned.items():
        if not subject.variant or bool(subject.cuda) != (name == "toolchain"):
            continue
        base = Subject(subject.number, subject.sign, subject.change) if subject.cuda else Subject(subject.number)
        floor = math.log1p(result.floors_pct[cell.dtype] / 100.0)
        for config in base_configs(subject, cell.config):
            other = (kernel_key(base.number, config, base.variant), *key[1:])
            if other not in planned:
                continue
            worth, decided, reasons = None, None, [failures.get(planned[one][0].address) for one in (other, key)]
            sides = [measured[one] for one in (other, key) if one in measured and measured[one][0].size]
            if len(sides) == 2:
                before, after = reversed(sides) if subject.sign == "-" and not subject.cuda else sides
                draws = resampled_medians(*after) - resampled_medians(*before, seed=SEED + 1)
                middle = float(np.median(after[0]) - np.median(before[0]))
                plain = LogSummary(middle, *interval(draws), min(after[0].size, before[0].size))
                decided = verdict(plain, BOTH * floor, enough=result.settings.min_pairs)
                worth = widened(plain, BOTH * floor)
            lacking = "" if worth else "; ".join(filter(None, reasons)) or "not measured"
            without = Side(base, config, result.kernels.get(other[0]))
            changed = Side(subject, cell.config, result.kernels.get(key[0]))
            found.append(Comparison(without, changed, cell.dtype, cell.shape, worth, floor, decided, lacking))
    if not found:
        what = "other toolchain" if name == "toolchain" else name
        raise FlashladderError(f"the sweep has no {what} beside an iteration of its own")
    return found


def _base_configs(subject: Subject, config: str) -> list[str]:
    """The configurations of the iteration from which `config` of an ablation was derived; a compiler changes none."""
    if subject.cuda:
        return [config]
    base, own = load_iteration(subject.number), load_description(subject.text)
    dtype = "bf16" if config.startswith("(BF16") else "fp16"
    fitting = (gpu for gpu in base.configs if own.configs[gpu].with_dtype(dtype).short_form() == config)
    return list(dict.fromkeys(base.configs[gpu].with_dtype(dtype).short_form() for gpu in fitting))


def document(name: str, result: BenchResult, found: Sequence[Comparison]) -> str:
    """The page: a table per iteration, configuration and dtype, with a line per variant and a column per length."""
    by_base = grouped(found, lambda one: (one.base.subject.text, one.base.config, one.dtype)).values()
    return written(
        "variants.md.j2", title=TITLES[name], of_compilers=name == "toolchain", result=result, found=len(found),
        sections=[(own[0].base, own[0], _table(name, own)) for own in by_base],
        lacking=sum(one.worth is None for one in found),
    )  # fmt: skip


def _table(name: str, found: Sequence[Comparison]) -> str:
    """A line per variant: its description and machine code, then its worth at each length."""
    lengths, lines = sorted({(one.shape.seq_len, one.shape.batch) for one in found}), []
    for own in grouped(found, lambda one: (one.variant.subject, one.variant.config)).values():
        first, subject = own[0], own[0].variant.subject
        nvcc, text, *numbers = first.variant.code
        what = [subject.cuda, nvcc, text]
        if name == "ablation":
            change = load_description(subject.text).change  # empty if only the configuration changes
            words = ", ".join(f"{concern} {value}" for concern, value in change.items()) or "tile and loads"
            what = [subject.change, words, first.variant.brief]
        what[0] += " (same machine code)" * first.same_code
        cells = {(one.shape.seq_len, one.shape.batch): one for one in own}
        lines.append([*what, *numbers, *(_worth(cells[n]) if n in cells else DASH for n in lengths)])
    return markdown([*HEADERS[name], *(f"S = {length}" for length, _ in lengths)], lines, left=3)


def _worth(one: Comparison) -> str:
    """``+3.2 % (+3.0 to +3.4) =``, or the reason why there is no number."""
    if one.verdict is None:
        return one.lacking
    return "{:+.1f} % ({:+.1f} to {:+.1f})".format(*one.percent) + MARKS[one.verdict]


def rows(found: Sequence[Comparison]) -> list[dict[str, object]]:
    """One CSV row per comparison."""
    made = []
    for one in found:
        sides = {"base_": one.base, "": one.variant}
        percents = [f"{value:.4f}" for value in one.percent] or [""] * 3
        code = {
            f"{prefix}{column}": getattr(side.kernel, field, None)
            for column, field in CODE.items()
            for prefix, side in sides.items()
        }
        made.append({
            "base": one.base.subject.text, "subject": one.variant.subject.text, "cuda": one.variant.subject.cuda,
            "base_config": one.base.config, "config": one.variant.config, "dtype": one.dtype,
            "seq_len": one.shape.seq_len, "batch": one.shape.batch, "n_heads": one.shape.n_heads,
            **dict(zip(("worth_pct", "low_pct", "high_pct"), percents, strict=True)), "verdict": one.verdict or "",
            "a_a_floor_points": f"{percent_of(one.floor):.4f}", "same_machine_code": one.same_code, **code,
            "lacking": one.lacking,
        })  # fmt: skip
    return made


def _figure(panels: dict[str, list[Comparison]], title: str, subtitle: str) -> Figure:
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
        _panel(axes, name, panel)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def _panel(axes: Axes, name: str, panel: Sequence[Comparison]) -> None:
    """Draws a bar per comparison, the first at the top; the band is the noise of two ratios."""
    axes.set_title(name, loc="left", fontsize=8.2, color="#555555", pad=6)
    noise = percent_of(BOTH * max(one.floor for one in panel))
    axes.axvspan(-noise, noise, color="#EEEEEE", zorder=0)
    axes.axvline(0, color=INK, linewidth=0.9, zorder=1.5)
    for row, one in enumerate(panel):
        assert one.verdict
        middle, low, high = one.percent
        axes.barh(row, middle, height=0.66, color=COLORS[one.verdict], zorder=2)
        error = [[max(0.0, middle - low)], [max(0.0, high - middle)]]
        axes.errorbar(middle, row, xerr=error, color=INK, elinewidth=1.0, capsize=2.4, zorder=3)
        offset, align = (4, "left") if middle >= 0 else (-4, "right")
        end = high if middle >= 0 else low
        axes.annotate(
            f"{middle:+.1f} %", (end, row), (offset, 0), textcoords="offset points", ha=align, va="center", fontsize=7.6
        )
    axes.set_yticks(range(len(panel)), [one.label for one in panel], fontsize=8.2)
    axes.set_ylim(len(panel) - 0.4, -0.6)
    axes.margins(x=0.2)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter("{x:+.4g} %")
    axes.tick_params(axis="both", length=3, color=FAINT, labelsize=8.2)
    plain_axes(axes, "x")


def pages(name: str, result: BenchResult) -> dict[str, bytes]:
    """The files of a sweep by suffix (md, csv, svg, png), the plot at one length; name and errors as of `compared`."""
    found = compared(name, result)
    lengths = sorted({one.shape.seq_len for one in found})
    length = HEADLINE_LENGTH if HEADLINE_LENGTH in lengths else lengths[-1]
    compilers = "speed over that through the pinned compiler"
    shown = compilers if name == "toolchain" else "speed with the change over speed without"
    each = {"-": "each change taken back", "+": "each change added", "": "each compiler"}
    subtitle = f"{plain(result.gpu.name)}, {days_of(result)}, S = {length}: {shown}"
    subtitle += "; whiskers: 95 % intervals, band: noise"
    panels = grouped(
        (one for one in found if one.worth is not None and one.shape.seq_len == length),
        lambda one: (
            f"iteration {one.base.subject.text}: {each[one.variant.subject.sign]}\n{one.base.brief}, {one.dtype}"
        ),
    )
    data = {key: [[one.label, vars(one.worth), one.floor] for one in panel] for key, panel in panels.items()}
    description = f"{TITLES[name]}; data {data_digest(data)}"
    drawn = saved(partial(_figure, panels, TITLES[name], subtitle), description, subtitle)
    return {"md": document(name, result, found).encode(), "csv": csv_of(rows(found)).encode(), **drawn}
