"""Which configuration won a tuning run, whether it beats the one that the iteration has, and entering it there.

Why a command of its own: the rungs chose, the finals judge (other inputs, a fresh process), and a person decides with
both intervals in view. An iteration has one configuration per GPU for both dtypes: the winner is the one with the best
harmonic mean of both among those that went through every rung.

Run:
    python -m flashladder.sweep.tune.winner build/sweep/h200/tune.json.gz
    python -m flashladder.sweep.tune.winner build/sweep/h200/tune.json.gz --write   # enters those that are faster
Exit code: 0 done, 2 it could not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math
from pathlib import Path

import numpy as np

from flashladder.arguments import Parser, result_file
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import relative, sha256
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key
from flashladder.ladder.iteration import load_iteration
from flashladder.names import GPUS
from flashladder.paths import ITERATIONS
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult, Summary, kernel_key
from flashladder.results.statistics import (
    SEED,
    Floats,
    LogSummary,
    Verdict,
    harmonic_mean,
    interval,
    log_ratios,
    percent,
    resampled_medians,
    verdict,
    widened,
)
from flashladder.sweep.tune.pack import FINALS

BOTH = "both"  # dtypes, by their harmonic mean


@dataclass(frozen=True)
class Standing:
    """One iteration in one dtype, or in `BOTH`: winner and present configuration, as the finals saw them.

    `present` is None where the iteration's own configuration was not timed, `verdict` then ``ambiguous``.
    """

    number: int
    dtype: str
    config: KernelConfig
    winner: LogSummary
    own_config: KernelConfig | None
    present: LogSummary | None
    verdict: Verdict


def present_of(document: BenchResult, number: int, folder: Path = ITERATIONS) -> KernelConfig | None:
    """The fp16 configuration that an iteration has now for the document's GPU; None: iterations know no such GPU."""
    return load_iteration(number, folder).configs.get(gpu_key(document.gpu.name) or "")


def gpu_of(document: BenchResult) -> str:
    """The key under which iterations hold configurations for the document's GPU.

    Raises:
        FlashladderError: there is none.
    """
    key = gpu_key(document.gpu.name)
    if key not in GPUS:
        raise FlashladderError(
            "iterations hold no configuration for this GPU", expected=", ".join(GPUS), found=document.gpu.name
        )
    return key


def _summaries(document: BenchResult, number: int) -> dict[str, dict[KernelConfig, Summary]]:
    """Per dtype the summaries of an iteration's candidates, by their fp16 configuration."""
    found: dict[str, dict[KernelConfig, Summary]] = {}
    for summary in document.summaries:
        kernel = document.kernels.get(summary.kernel)
        if kernel and kernel.iteration == number:
            config = KernelConfig.parse(kernel.config).with_dtype("fp16")
            found.setdefault(summary.dtype, {})[config] = summary
    return found


def ranked(document: BenchResult, number: int) -> dict[str, list[KernelConfig]]:
    """Per dtype, and for `BOTH`, the candidates of an iteration by the rungs: those with the most pairs first.

    A candidate that was left out early has few pairs and no honest interval; it never precedes one that was not.
    """
    found = _summaries(document, number)
    deep = document.settings.min_pairs
    orders = {
        dtype: sorted(own, key=lambda config, own=own: (-min(own[config].n_pairs, deep), -own[config].pct))  # type: ignore[misc]  # a default binds it
        for dtype, own in found.items()
    }
    if len(found) > 1:
        common = set.intersection(*(set(own) for own in found.values()))
        orders[BOTH] = sorted(common, key=lambda config: _joint(config, list(found.values()), deep))
    return orders


def _joint(config: KernelConfig, dtypes: Sequence[Mapping[KernelConfig, Summary]], deep: int) -> tuple[float, float]:
    pairs = min(own[config].n_pairs for own in dtypes)
    return -min(pairs, deep), -harmonic_mean([own[config].pct for own in dtypes])


def finalists(document: BenchResult, number: int, folder: Path = ITERATIONS) -> tuple[KernelConfig, ...]:
    """The fp16 configurations to time again: the best two of each dtype and of both, and the present one."""
    best = [config for order in ranked(document, number).values() for config in order[:2]]
    present = present_of(document, number, folder)
    return tuple(dict.fromkeys([*best, *([present] if present else [])]))


def judged(rungs: BenchResult, finals: BenchResult, folder: Path = ITERATIONS) -> list[Standing]:
    """Winners by the rungs, judged by the finals: per iteration one standing for each dtype, then one for both."""
    found = []
    for number in sorted({kernel.iteration for kernel in rungs.kernels.values()}):
        present = present_of(rungs, number, folder)
        orders = ranked(rungs, number)
        for dtype, order in orders.items():
            dtypes = [one for one in orders if one != BOTH] if dtype == BOTH else [dtype]
            config = next((one for one in order if _draws(finals, number, one, dtypes)), None)
            if config is not None:
                found.append(_standing(finals, (number, dtype), config, present, dtypes))
    return found


def _standing(
    finals: BenchResult,
    place: tuple[int, str],
    config: KernelConfig,
    present: KernelConfig | None,
    dtypes: Sequence[str],
) -> Standing:
    """Winner against present configuration; the floor is that of the finals, the larger of the dtypes'."""
    number, dtype = place
    mine = _draws(finals, number, config, dtypes)
    theirs = _draws(finals, number, present, dtypes) if present else None
    if mine is None:
        raise FlashladderError("the winner was not timed again", found=config.short_form())
    said: Verdict = "same" if config == present else "ambiguous"
    floor = max(math.log1p(finals.floors_pct[one] / 100) for one in dtypes)
    if theirs and config != present:
        difference = _summary(mine[0] - theirs[0], mine[1] - theirs[1], min(mine[2], theirs[2]))
        said = verdict(difference, floor, enough=finals.settings.min_pairs)
    present_one = widened(_summary(*theirs), floor) if theirs else None
    return Standing(number, dtype, config, widened(_summary(*mine), floor), present, present_one, said)


def _summary(median: float, draws: Floats, n: int) -> LogSummary:
    low, high = interval(draws)
    return LogSummary(median, min(low, median), max(high, median), n)


def _draws(
    finals: BenchResult, number: int, config: KernelConfig, dtypes: Sequence[str]
) -> tuple[float, Floats, int] | None:
    """Median log ratio of a configuration (of dtypes' harmonic mean), bootstrap draws of it, and its pairs."""
    medians, draws, pairs = [], [], []
    for dtype in dtypes:
        form = config.with_dtype(dtype).short_form()
        values = _values(finals, kernel_key(number, form))
        if not values.size:
            return None
        medians.append(math.exp(float(np.median(values))))
        seed = int(sha256(form)[:8], 16) + SEED  # two configurations are drawn independently
        draws.append(np.exp(-resampled_medians(values, seed=seed)))
        pairs.append(int(values.size))
    means = len(draws) / np.sum(np.stack(draws), axis=0)
    return math.log(harmonic_mean(medians)), np.log(means), min(pairs)


def _values(document: BenchResult, key: str) -> Floats:
    """Log ratios of a kernel in the blocks that count."""
    kept = []
    for group in document.groups:
        dropped = {block.index for block in group.blocks if block.dropped is not None}
        for series in group.series:
            kept += [pair for pair in series.pairs if series.kernel == key and pair.block not in dropped]
    if not kept:
        return np.empty(0)
    return log_ratios([pair.reference_us for pair in kept], [pair.kernel_us for pair in kept])


def render(standings: Sequence[Standing]) -> str:
    """The standings as a table: winner and present configuration with their intervals, and the verdict."""
    lines = [
        "finals: percent of FA2 [95 %], other inputs and a fresh process; the verdict is on their difference",
        f"{'':9s} {'winner':24s} {'':22s}   {'present':24s} {'':22s}   verdict",
    ]
    for one in standings:
        own = one.own_config.brief() if one.own_config else "none for this GPU"
        cells = f"{one.config.brief():24s} {_told(one.winner):22s}   {own:24s} {_told(one.present):22s}"
        lines.append(f"{one.number:4d} {one.dtype:4s} {cells}   {one.verdict}")
    lines.append("both: harmonic mean of both dtypes, which share one configuration per GPU")
    return "\n".join(lines)


def _told(summary: LogSummary | None) -> str:
    if summary is None:
        return "not timed"
    return f"{percent(summary.median):6.1f} % [{percent(summary.low):.1f}, {percent(summary.high):.1f}]"


def documents(path: Path, rungs: BenchResult | None = None) -> tuple[BenchResult, BenchResult]:
    """The rungs' document at `path`, and that of the finals beside it.

    Args:
        path: the document of the rungs.
        rungs: what is in it, where it was read already.

    Raises:
        FlashladderError: one is missing, or is not of a tuning run.
    """
    found, again = [], path.with_name(FINALS)
    if path.name == FINALS:
        raise FlashladderError(
            "these are the finals", where=relative(path), expected="the rungs' document, such as tune.json.gz beside it"
        )
    if path.is_file() and not again.is_file():
        raise FlashladderError(
            "the finals of this run are missing", where=relative(again), hint="a tuning run leaves both; copy both"
        )
    for one, known, hint in (
        (path, rungs, "what a grid of mode tune leaves"),
        (again, None, "a tuning run leaves both; copy both"),
    ):
        document = known or load_as(one, BenchResult, hint=hint)
        if document.purpose != "tune":
            raise FlashladderError("not a tuning run", where=relative(one), found="timings for a report", hint=hint)
        found.append(document)
    return found[0], found[1]


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace."""
    parser = Parser(
        prog="python -m flashladder.sweep.tune.winner",
        description="Prints which configurations won a tuning run beside those that the iterations have.",
        epilog="example: python -m flashladder.sweep.tune.winner build/sweep/h200/tune.json.gz",
    )
    parser.add_argument("path", type=result_file, help="document of the rungs; that of the finals lies beside it")
    parser.add_argument("--write", action="store_true", help="enter winners that are faster into the iterations")
    parser.add_argument("--iterations", type=Path, default=ITERATIONS, metavar="FOLDER", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the standings; with ``--write`` enters winners that are faster beyond the floor."""
    options = parse_arguments(argv)
    rungs, finals = documents(options.path)
    standings = judged(rungs, finals, options.iterations)
    print(render(standings))
    floors = ", ".join(f"{dtype} {floor:.2f}" for dtype, floor in finals.floors_pct.items())
    print(f"A/A floor of the finals in points: {floors}")
    if not options.write:
        return 0
    from flashladder.sweep.tune.winner_yaml import enter

    faster = {one.number: one.config for one in standings if one.dtype == BOTH and one.verdict == "faster"}
    again = options.path.with_name(FINALS)
    evidence = f"{again.name}, sha256 {sha256(again.read_bytes())[:16]}"
    for changed in enter(faster, gpu_of(rungs), evidence, options.iterations):
        print(f"entered: {relative(changed)}")
    if not faster:
        print("nothing to enter: no winner of both dtypes is faster than the present configuration beyond the floor")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
