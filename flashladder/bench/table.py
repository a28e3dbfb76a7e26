"""Tables for a terminal, made from results alone: progression by length, ranking of a tuning run, sustained runs.

A committed file prints the same table without a GPU.

Run:
    python -m flashladder.bench.table results/h200/bench.json.gz
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from pathlib import Path
from statistics import median
import sys

from flashladder.errors import one_line_errors
from flashladder.results.derive import NO_THROTTLE, SW_POWER_CAP, reason_names
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult, EnergyResult, Gpu, Summary, Sustained
from flashladder.results.statistics import stated

MARKS = {"faster": "+", "slower": "-", "same": "=", "ambiguous": "?"}
HEADLINE = 4096
FULL_CLOCK = 0.96  # of the highest: from here on a card is not held back
FULL_POWER = 0.95  # of the limit: from here on it is
POWER, STRUCTURE, UNKNOWN = "power", "structure", "?"
LEGEND = (
    f"Limited by power: below {100 * FULL_CLOCK:.0f} % of the highest clock, and at {100 * FULL_POWER:.0f} % of the "
    "power limit or more, or held back for it by the driver's own word; fewer joules per FLOP make such a kernel "
    "faster. By structure: at the highest clock, where it waits for something else."
)


def _half(summary: Summary) -> float:
    return (summary.pct_high - summary.pct_low) / 2


def table(result: BenchResult) -> str:
    """Per dtype and kernel: percent of FA2's speed at each length, harmonic mean, TFLOP/s and SM clock."""
    lines, result = [], stated(result)
    for dtype in dict.fromkeys(summary.dtype for summary in result.summaries):
        mine = [summary for summary in result.summaries if summary.dtype == dtype]
        lengths = sorted({summary.shape.seq_len for summary in mine})
        means = {mean.kernel: mean for mean in result.means if mean.dtype == dtype}
        head = HEADLINE if HEADLINE in lengths else lengths[-1]
        fa2 = median(summary.reference_tflops for summary in mine if summary.shape.seq_len == head)
        lines += [
            f"{result.gpu.name}, {dtype}, {result.mode}, rung: {result.rung}",
            f"percent of FA2 (torch {result.reference.torch}), A/A floor {result.floors_pct[dtype]:.2f} points",
            "".join(f"{length:>8d}" for length in lengths)
            + f"{'hmean':>8s} {'95 %':>13s} {'TF/s@' + str(head):>11s} {'+-':>5s} {'MHz':>5s}  kernel",
        ]
        for kernel in dict.fromkeys(summary.kernel for summary in mine):
            by_length = {summary.shape.seq_len: summary for summary in mine if summary.kernel == kernel}
            cells = "".join(_cell(by_length.get(length)) for length in lengths)
            mean = means[kernel]
            tail = _headline(by_length.get(head), fa2)
            lines.append(
                f"{cells}{mean.pct:8.1f} {mean.pct_low:6.1f}-{mean.pct_high:5.1f} {tail}  {_label(result, kernel)}"
            )
        dropped = sum(summary.dropped_share for summary in mine) / len(mine)
        again = sum(summary.readmitted_share for summary in mine) / len(mine)
        lines.append(f"blocks dropped {dropped:.1%}; counted although power cap or host flickered {again:.1%}")
        lines.append(f"TF/s@{head}: the ratio times one figure for FA2, {fa2:.1f}: its median beside these kernels")
        lines.append("+ faster, - slower, = same within the floor, ? ambiguous")
    return "\n".join(lines)


def _label(result: BenchResult, key: str) -> str:
    """A kernel by its key, a reference with its version: ``cudnn (9.19.0)``."""
    version = result.references[key].version if key in result.references else None
    return f"{key} ({version})" if version else key


def _cell(summary: Summary | None) -> str:
    return f"{'':8s}" if summary is None else f"{summary.pct:7.1f}{MARKS[summary.verdict]}"


def _headline(summary: Summary | None, fa2: float) -> str:
    if summary is None:
        return f"{'':11s} {'':5s} {'':5s}"
    clock = f"{summary.sm_clock_mhz:5.0f}" if summary.sm_clock_mhz is not None else f"{'':5s}"
    return f"{summary.pct / 100 * fa2:11.1f} {_half(summary):5.2f} {clock}"


def _spread(summary: Summary, enough: int) -> str:
    """Half an interval; where there are too few pairs for one, how many there are."""
    return f"+- {_half(summary):4.2f}" if summary.n_pairs >= enough else f"{summary.n_pairs:2d} pairs"


def ranking(result: BenchResult, most: int = 8) -> str:
    """Per iteration, dtype and length the best configurations, fastest first; never to be reported as a measurement.

    Those that were left out with few pairs follow those that were timed to the end, and have no interval.
    """
    groups: dict[tuple[int, str, int], list[Summary]] = {}
    for summary in result.summaries:
        if summary.kernel in result.references:
            continue
        number = result.kernels[summary.kernel].iteration
        groups.setdefault((number, summary.dtype, summary.shape.seq_len), []).append(summary)
    lines = ["tuning only: time the winner again in a fresh process before reporting it"]
    for (number, dtype, seq_len), found in groups.items():
        lines.append(f"iteration {number}, {dtype}, S={seq_len}: best {min(most, len(found))} of {len(found)}")
        enough = result.settings.min_pairs
        best = sorted(found, key=lambda summary: (-min(summary.n_pairs, enough), -summary.pct))[:most]
        fa2 = median(summary.reference_tflops for summary in found)
        lines += [
            f"  {one.pct:6.1f} % {_spread(one, enough)}  {one.pct / 100 * fa2:6.1f} TFLOP/s  {one.kernel[3:]}"
            for one in best
        ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Steady:
    """A subject at one dtype and length: medians over its turns.

    Attributes:
        subject: a kernel's key, ``fa2``, or a reference's name.
        mhz: of the SMs; None where the GPU does not tell.
        limit: ``power``, ``structure``, another reason of the driver, or ``?``.
    """

    subject: str
    dtype: str
    seq_len: int
    tflops: float
    watts: float
    mhz: float | None
    pj_per_flop: float
    limit: str


def steady(result: EnergyResult) -> tuple[Steady, ...]:
    """One entry per subject, dtype and length, in the order of their first runs."""
    cells: dict[tuple[str, str, int], list[Sustained]] = {}
    for run in result.runs:
        cells.setdefault((run.subject, run.dtype, run.shape.seq_len), []).append(run)
    return tuple(
        Steady(
            *cell,
            tflops=median(run.tflops for run in runs),
            watts=median(run.watts for run in runs),
            mhz=_median_clock(runs),
            pj_per_flop=median(run.pj_per_flop for run in runs),
            limit=limit_of(result.gpu, runs),
        )
        for cell, runs in cells.items()
    )


def limit_of(gpu: Gpu, runs: Sequence[Sustained]) -> str:
    """What holds a kernel, from its clock, its power and the driver's reasons; ``?`` where they do not tell."""
    clock = _median_clock(runs)
    if clock is None or not gpu.max_sm_clock_mhz:
        return UNKNOWN
    if clock >= FULL_CLOCK * gpu.max_sm_clock_mhz:
        return STRUCTURE
    looks = [one.throttle_bits for run in runs for one in run.samples if one.throttle_bits is not None]
    capped = 2 * sum(bool(bits & SW_POWER_CAP) for bits in looks) > len(looks)
    if capped or (gpu.power_limit_w and median(run.watts for run in runs) >= FULL_POWER * gpu.power_limit_w):
        return POWER
    always = reduce(and_, looks) & ~NO_THROTTLE if looks else 0
    return ", ".join(reason_names(always)) or UNKNOWN


def _median_clock(runs: Sequence[Sustained]) -> float | None:
    clocks = [clock for run in runs if (clock := run.sm_clock_mhz) is not None]
    return median(clocks) if clocks else None


def main(paths: Sequence[str]) -> int:
    """Prints the table of each result file."""
    if not paths or "--help" in paths:
        print("usage: python -m flashladder.bench.table FILE...   example: ... results/h200/bench.json.gz")
        return 0 if paths else 2
    for name in paths:
        result = load_as(Path(name), BenchResult)
        print(ranking(result) if result.purpose == "tune" else table(result))
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main(sys.argv[1:]))
