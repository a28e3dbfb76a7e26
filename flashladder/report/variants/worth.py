"""What a change, or another compiler, is worth: two kernels of a sweep compared through their ratios to FA2.

Why through FA2: both were timed in turn with it, so that the difference of their log ratios is free of the clock that
each met. Its interval is bootstrapped as that of a ratio is (`flashladder.results.statistics`). Both ratios carry the
noise that the A/A floor measures, independently, so that a difference counts beyond the floor times the square root of
two.

Tables: `flashladder.report.variants.tables`; plot: `flashladder.report.variants.plot`; run:
``python analysis/ablation.py FILE``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
import math

import numpy as np

from flashladder.bench.references import BACKENDS
from flashladder.errors import FlashladderError
from flashladder.ladder.ablation import load_description
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.subject import Subject, parse_subject
from flashladder.results.derive import Cell, by_cell, joined
from flashladder.results.schema import BenchResult, Failure, Kernel, PlannedCell, Shape, kernel_key
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

BOTH = math.sqrt(2.0)  # two independent ratios are compared


@dataclass(frozen=True)
class Side:
    """One of two kernels: what it is, and what the result says about its machine code (None: it was not measured)."""

    subject: Subject
    config: str
    kernel: Kernel | None


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


def ablations(result: BenchResult) -> list[Comparison]:
    """Every ablation of a packed sweep against its iteration, at the configuration that follows from its own.

    Raises:
        FlashladderError: the result is of no sweep, or its sweep has no ablation.
    """
    found = [one for one in _compared(result) if one.variant.subject.sign and not one.variant.subject.cuda]
    return _some(found, "ablation")


def toolchains(result: BenchResult) -> list[Comparison]:
    """Every iteration through another compiler against itself through the pinned one.

    Raises:
        FlashladderError: the result is of no sweep, or its sweep has no other toolchain.
    """
    return _some([one for one in _compared(result) if one.variant.subject.cuda], "other toolchain")


def _some(found: list[Comparison], what: str) -> list[Comparison]:
    if not found:
        raise FlashladderError(f"the sweep has no {what} beside an iteration of its own")
    return found


def _compared(result: BenchResult) -> Iterator[Comparison]:
    """Every variant that was planned, with what it varies, in the order of the plan."""
    if result.sweep is None:
        raise FlashladderError("not the packed result of a sweep", hint="`invoke sweep --grid NAME` ends with one")
    measured = {cell: joined(parts) for cell, parts in by_cell(result.groups).items()}
    cells = {_key(cell): cell for cell in result.sweep.planned if cell.subject not in BACKENDS}
    failures = {failure.address: failure for failure in result.sweep.failures}
    base_configs = cache(_base_configs)  # each is asked at every length, and the ladder's files are listed each time
    for key, cell in cells.items():
        subject = parse_subject(cell.subject, cell.toolchain)
        for config in base_configs(subject, cell.config) if subject.variant else ():
            base = (
                Subject(subject.number) if not subject.cuda else Subject(subject.number, subject.sign, subject.change)
            )
            other = (kernel_key(base.number, config, base.variant), *key[1:])
            if other in cells:
                sides = (_side(result, base, other), _side(result, subject, key))
                told = "; ".join(filter(None, (_failed(failures, cells[other]), _failed(failures, cell))))
                yield _comparison(result, sides, (other, key), measured, told)


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


def _failed(failures: Mapping[str, Failure], cell: PlannedCell) -> str:
    failure = failures.get(cell.address)
    return f"{failure.kind}: {failure.message}" if failure else ""


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
