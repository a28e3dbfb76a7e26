"""Do other timers agree? The paired timer's ratios to FA2 beside those of other tools, with intervals.

Why: a systematic error of the paired timer would be in every table; tools that share no code with it would not make the
same one. Ratios of another tool: each sample against the median of FA2's in the same round, their median, and a 95 %
bootstrap interval over rounds. ``agree`` where the intervals overlap, the paired one widened by the A/A floor (rule 4
of the measurement protocol); else they differ. By how much is told in either case.

Run:
    python -m flashladder.bench 1 7 16 --seq-lens 4096 --method nvbench ncu --out opinions.json.gz    # needs a GPU
    python -m flashladder.bench 27 --references cudnn fa4 --method nvbench ncu torch warm --out doubt.json.gz
    python -m flashladder.bench.second_opinion opinions.json.gz       # prints the table; exit 1 when it does not follow
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
import sys

import numpy as np

from flashladder.bench.doubt.better import advantages, by_round, render
from flashladder.bench.doubt.timers import held_up
from flashladder.bench.opinion_program import Rounds
from flashladder.bench.opinion_tools import ASK, ROUNDS
from flashladder.bench.references import FA2
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.names import CYCLES
from flashladder.problem import Shape
from flashladder.results import derive as summaries
from flashladder.results.derive import unequal
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import Agreement, BenchResult, Method, Opinion, SecondOpinionResult, Summary, Timings
from flashladder.results.statistics import log_ratios, percent, summarize

TIMEOUT_S = 240.0  # of one tool, for each cell
Cell = tuple[str, str, Shape]


def ask(
    paired: BenchResult,
    methods: Sequence[Method],
    timeout_s: float = TIMEOUT_S,
    rounds: int | None = None,
    keep: Callable[[SecondOpinionResult], object] = lambda _: None,
) -> SecondOpinionResult:
    """Has every cell of a fresh paired result timed by other tools; a tool that cannot is left out with its reason.

    Args:
        paired: what the paired timer gave.
        methods: the tools, in this order.
        timeout_s: of one tool, for each cell.
        rounds: of each tool; None: its own number.
        keep: called with what there is, before the first tool and after each.
    """
    result = derive(
        SecondOpinionResult(
            rung=paired.rung, gpu=paired.gpu, host=paired.host, kernels=paired.kernels, paired=paired, opinions=()
        )
    )  # fmt: skip
    keep(result)
    for method in methods:
        opinions, left_out = result.opinions, result.left_out
        try:
            for cells in _alike(_rounds(paired, rounds or ROUNDS[method])):
                opinions = (*opinions, *ASK[method](cells, timeout_s * len(cells)))
        except FlashladderError as error:
            left_out = (*left_out, f"{method}: {error}")
        result = derive(result.model_copy(update={"opinions": opinions, "left_out": left_out}))
        keep(result)
    return result


def _rounds(paired: BenchResult, rounds: int) -> list[Rounds]:
    """Per dtype and shape FA2 and what was timed beside it, those that were wrong excepted."""
    subjects: dict[tuple[str, Shape], list[str]] = {}
    for summary in paired.summaries:
        subjects.setdefault((summary.dtype, summary.shape), [FA2]).append(summary.kernel)
    return [Rounds(tuple(keys), dtype, shape, rounds) for (dtype, shape), keys in subjects.items()]


def _alike(cells: Sequence[Rounds]) -> list[list[Rounds]]:
    """Cells of the same subjects, dtype and heads together: one process launches them."""
    found: dict[tuple[object, ...], list[Rounds]] = {}
    for one in cells:
        found.setdefault((one.subjects, one.dtype, one.shape.n_heads), []).append(one)
    return list(found.values())


def derive(result: SecondOpinionResult) -> SecondOpinionResult:
    """The same result with the paired tables and all agreements derived from raw samples."""
    paired = summaries.derive(result.paired)
    cells = _cells(paired)
    found = tuple(
        _agreement(opinion, timings, cells[cell], 1.0 + paired.floors_pct[opinion.dtype] / 100.0)
        for opinion in result.opinions
        for timings in opinion.timings
        if (cell := (timings.subject, opinion.dtype, opinion.shape)) in cells
    )
    return result.model_copy(update={"paired": paired, "agreements": found})


def _cells(paired: BenchResult) -> Mapping[Cell, Summary]:
    return {(one.kernel, one.dtype, one.shape): one for one in paired.summaries}


def _agreement(opinion: Opinion, timings: Timings, paired: Summary, floor: float) -> Agreement:
    """One tool's ratio of one cell; `floor` is the ratio that two runs of FA2 itself may differ by.

    Raises:
        FlashladderError: FA2 was not timed in one of the rounds.
    """
    fa2 = opinion.of(FA2)
    medians = by_round(fa2) if fa2 else {}
    if lacking := set(timings.rounds) - medians.keys():
        raise FlashladderError(f"{opinion.method} has no time of FA2", where=timings.subject, found=min(lacking))
    ratios = log_ratios([medians[number] for number in timings.rounds], timings.us)
    found = summarize(ratios, timings.rounds)
    pct, low, high = (percent(value) for value in (found.median, found.low, found.high))
    return Agreement(
        method=opinion.method,
        kernel=timings.subject,
        dtype=opinion.dtype,
        shape=opinion.shape,
        pct=pct,
        pct_low=low,
        pct_high=high,
        kernel_us=float(np.median(timings.us)),
        reference_us=float(np.median(list(medians.values()))),
        n_rounds=len(set(timings.rounds)),
        off_pct=100.0 * (pct / paired.pct - 1.0),
        agrees=low <= paired.pct_high * floor and paired.pct_low <= high * floor,
    )


def problems(result: SecondOpinionResult) -> list[str]:
    """What is wrong with a result: of the paired timer, times that cannot be, missing cells, numbers out of nowhere."""
    found = [f"paired: {line}" for line in summaries.problems(result.paired)]
    origin = ("rung", "gpu", "host", "kernels", "protocol_version")
    other = [name for name in origin if getattr(result, name) != getattr(result.paired, name)]
    found += [f"{name} is not that of the pairs" for name in other]
    cells = _cells(result.paired)
    for opinion in result.opinions:
        where = f"{opinion.method} {opinion.dtype} S={opinion.shape.seq_len}"
        expected = {FA2} | {key for key, dtype, shape in cells if (dtype, shape) == (opinion.dtype, opinion.shape)}
        timed = [one.subject for one in opinion.timings]
        found += [f"{where}: {key}: not timed" for key in sorted(expected - set(timed))]
        found += [f"{where}: {key}: not timed by the paired timer, or twice" for key in _surplus(timed, expected)]
        limit = summaries.fastest_possible_us(opinion.shape, result.gpu.name) or 0.0
        found += [
            f"{where}: {one.subject}: {min(one.us):.1f} us is below the {limit:.1f} us that the GPU's peaks allow"
            for one in opinion.timings
            if min(one.us) < limit
        ]
    if found:
        return found
    written, derived = ([one.model_dump() for one in each.agreements] for each in (result, derive(result)))
    if len(written) != len(derived):
        return [f"agreements do not follow from the samples: {len(written)} written, {len(derived)} derived"]
    return [
        f"agreements do not follow from the samples: {old['method']} {old['kernel']}{field}: written {a}, derived {b}"
        for old, new in zip(written, derived, strict=True)
        for field, a, b in unequal(old, new)
    ]


def _surplus(timed: Sequence[str], expected: set[str]) -> list[str]:
    return sorted({key for key in timed if key not in expected or timed.count(key) > 1})


def table(result: SecondOpinionResult) -> str:
    """Per dtype and shape, and per kernel: a row of the paired timer, and one of each tool."""
    lines = [f"{result.gpu.name}, rung: {result.rung}, FA2 of torch {result.paired.reference.torch}"]
    head = f"{'timer':8s} {'mode':10s} {'us':>10s} {'FA2 us':>10s} {'MHz':>5s} {'% of FA2':>8s} {'95 %':>15s}"
    for dtype, shape in dict.fromkeys((one.dtype, one.shape) for one in result.paired.summaries):
        floor = result.paired.floors_pct[dtype]
        lines.append(f"{dtype}, S={shape.seq_len}, B={shape.batch}, H={shape.n_heads}; A/A floor {floor:.2f} points")
        for one in result.paired.summaries:
            if (one.dtype, one.shape) == (dtype, shape):
                lines += [one.kernel, f"{head}  beside the paired timer", *_rows(result, one)]
    lines += [*render(advantages(result)), ""]
    intervals = "95 %: paired over pairs, others over rounds beside FA2; agree: they meet, give or take the A/A floor"
    return "\n".join([*lines, intervals, *(f"left out: {line}" for line in result.left_out)])


def _rows(result: SecondOpinionResult, paired: Summary) -> list[str]:
    cell = (paired.kernel, paired.dtype, paired.shape)
    rows = [_row("paired", result.paired.mode, paired, paired.sm_clock_mhz, "")]
    for one in result.agreements:
        if (one.kernel, one.dtype, one.shape) == cell:
            opinion = next(
                other
                for other in result.opinions
                if (other.method, other.dtype, other.shape) == (one.method, one.dtype, one.shape)
            )
            told = f"{'agree' if one.agrees else 'differ'} ({one.off_pct:+.2f} %)"
            told += "; the host's time" if held_up(opinion.of(one.kernel)) else ""
            rows.append(_row(one.method, opinion.mode, one, _clock(opinion.of(one.kernel)), told))
    return rows


def _row(timer: str, mode: str, one: Summary | Agreement, clock: float | None, told: str) -> str:
    mhz = f"{clock:5.0f}" if clock else f"{'':5s}"
    row = f"{timer:8s} {mode:10s} {one.kernel_us:10.1f} {one.reference_us:10.1f} {mhz} {one.pct:8.2f}"
    return f"{row} {one.pct_low:7.2f}-{one.pct_high:7.2f}  {told}".rstrip()


def _clock(timings: Timings | None) -> float | None:
    """SM clock in MHz during the kernel: its cycles by its time, where the tool counted them."""
    if timings is None or CYCLES not in timings.counters:
        return None
    return float(np.median(np.asarray(timings.counters[CYCLES]) / np.asarray(timings.us)))


def verify(path: Path) -> SecondOpinionResult:
    """Reads a result and derives it again.

    Raises:
        CheckFailed: it is malformed, implausible or does not follow from its samples.
    """
    result = load_as(path, SecondOpinionResult)
    if found := problems(result):
        raise CheckFailed(f"{len(found)} problems, the first: {found[0]}", where=path)
    return result


def compare(out: Path | None, paired: BenchResult, methods: Sequence[Method], rounds: int | None = None) -> None:
    """Asks the tools, writes the result and prints its table.

    Raises:
        CheckFailed: a tool's times cannot be; the file is written all the same.
    """
    import torch

    torch.cuda.empty_cache()  # the tools' processes need the memory
    result = ask(paired, methods, rounds=rounds, keep=lambda one: write_result(out, one) if out else None)
    print(table(result))
    if found := problems(result):
        raise CheckFailed(f"{len(found)} problems, the first: {found[0]}", where=out)


def main(paths: Sequence[str]) -> int:
    """Verifies result files and prints their tables."""
    if not paths or "--help" in paths:
        print("usage: python -m flashladder.bench.second_opinion FILE...   example: ... results/h200/opinions.json.gz")
        return 0 if paths else 2
    for name in paths:
        print(table(verify(Path(name))))
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main(sys.argv[1:]))
