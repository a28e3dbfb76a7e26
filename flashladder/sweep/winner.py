"""Which configuration won a tuning run, whether it beats the one that the iteration has, and entering it there.

The rungs chose, the finals judge (other inputs, a fresh process), and a person decides with both intervals in view. An
iteration has one configuration per GPU for both dtypes: the winner is the one with the best harmonic mean of both among
those that went through every rung.

    python -m flashladder.sweep.winner build/sweep/h200/tune.json.gz --write   # enters those that are faster
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math
from pathlib import Path
import re
import shutil
import tempfile
from typing import NamedTuple

import numpy as np

from flashladder.arguments import Parser, result_file
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import read_text, relative, sha256, write_atomic
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.names import GPUS
from flashladder.paths import ITERATIONS
from flashladder.results.derive import joined
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult, Summary, kernel_key
from flashladder.results.statistics import (
    SEED,
    Floats,
    LogSummary,
    Verdict,
    harmonic_mean,
    interval,
    percent,
    resampled_medians,
    stated,
    verdict,
    widened,
)

FINALS = "tuned.json.gz"  # document of the finals, beside that of the rungs
BOTH = "both"  # dtypes, by their harmonic mean
EVIDENCE = "tuned: "  # leads the comment above an entered line


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


def present_of(document: BenchResult, number: int) -> KernelConfig | None:
    """The fp16 configuration that an iteration has now for the document's GPU; None: iterations know no such GPU."""
    return load_iteration(number, ITERATIONS).configs.get(gpu_key(document.gpu.name) or "")


def ranked(document: BenchResult, number: int) -> dict[str, list[KernelConfig]]:
    """Per dtype, and for `BOTH`, the candidates of an iteration by the rungs: those with the most pairs first.

    A candidate that was left out early has few pairs and no honest interval; it never precedes one that was not.
    """
    found: dict[str, dict[KernelConfig, Summary]] = {}  # per dtype, by the fp16 configuration
    for summary in document.summaries:
        kernel = document.kernels.get(summary.kernel)
        if kernel and kernel.iteration == number:
            config = KernelConfig.parse(kernel.config).with_dtype("fp16")
            found.setdefault(summary.dtype, {})[config] = summary

    def order(dtypes: Sequence[Mapping[KernelConfig, Summary]]) -> list[KernelConfig]:
        def rank(config: KernelConfig) -> tuple[float, float]:
            pairs = min(own[config].n_pairs for own in dtypes)
            return -min(pairs, document.settings.min_pairs), -harmonic_mean([own[config].pct for own in dtypes])

        return sorted((config for config in dtypes[0] if all(config in own for own in dtypes)), key=rank)

    orders = {dtype: order([own]) for dtype, own in found.items()}
    return orders if len(found) < 2 else {**orders, BOTH: order(list(found.values()))}


def finalists(document: BenchResult, number: int) -> tuple[KernelConfig, ...]:
    """The fp16 configurations to time again: the best two of each dtype and of both, and the present one."""
    best = [config for order in ranked(document, number).values() for config in order[:2]]
    present = present_of(document, number)
    return tuple(dict.fromkeys([*best, *([present] if present else [])]))


def judged(rungs: BenchResult, finals: BenchResult) -> list[Standing]:
    """Winners by the rungs, judged by the finals: per iteration one standing for each dtype, then one for both.

    The floor is that of the finals, the larger of the dtypes'.
    """
    found = []
    for number in sorted({kernel.iteration for kernel in rungs.kernels.values()}):
        present, orders = present_of(rungs, number), ranked(rungs, number)
        for dtype, order in orders.items():
            dtypes = [one for one in orders if one != BOTH] if dtype == BOTH else [dtype]
            drawn = ((one, _draws(finals, number, one, dtypes)) for one in order)
            config, mine = next(((one, own) for one, own in drawn if own), (None, None))
            if config is None or mine is None:
                continue
            theirs = _draws(finals, number, present, dtypes) if present else None
            said: Verdict = "same" if config == present else "ambiguous"
            floor = max(math.log1p(finals.floors_pct[one] / 100) for one in dtypes)
            if theirs and config != present:
                difference = _summary(mine[0] - theirs[0], mine[1] - theirs[1], min(mine[2], theirs[2]))
                said = verdict(difference, floor, enough=finals.settings.min_pairs)
            present_one = widened(_summary(*theirs), floor) if theirs else None
            own_one = widened(_summary(*mine), floor)
            found.append(Standing(number, dtype, config, own_one, present, present_one, said))
    return found


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
        key = kernel_key(number, form)
        values, _ = joined([(group, one) for group in finals.groups for one in group.series if one.kernel == key])
        if not values.size:
            return None
        medians.append(math.exp(float(np.median(values))))
        seed = int(sha256(form)[:8], 16) + SEED  # two configurations are drawn independently
        draws.append(np.exp(-resampled_medians(values, seed=seed)))
        pairs.append(int(values.size))
    means = len(draws) / np.sum(np.stack(draws), axis=0)
    return math.log(harmonic_mean(medians)), np.log(means), min(pairs)


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
    """The rungs' document at `path` (`rungs`, where it was read already), and that of the finals beside it.

    Raises:
        FlashladderError: one is missing, or is not of a tuning run.
    """
    again, hint = path.with_name(FINALS), "a tuning run leaves tune.json.gz and tuned.json.gz beside it; copy both"
    if path == again:
        raise FlashladderError("these are the finals", where=relative(path), expected="the rungs' document", hint=hint)
    found = rungs or load_as(path, BenchResult, hint), load_as(again, BenchResult, hint)
    for one, document in zip((path, again), found, strict=True):
        if document.purpose != "tune":
            raise FlashladderError("not a tuning run", where=relative(one), found="timings for a report", hint=hint)
    return found


def enter(configs: Mapping[int, KernelConfig], gpu: str, evidence: str) -> list[Path]:
    """Writes configurations for one GPU into the iterations' files, all of them or none; returns the changed files.

    `configs` are fp16 configurations by iteration, `gpu` the key under which they stand, `evidence` what a comment says
    about where they come from.

    Raises:
        FlashladderError: a file is not laid out as expected, or an edit would change more than was asked for.
    """
    before = load_all(ITERATIONS)
    texts = {one.path: edited(one, configs[one.number], gpu, evidence) for one in before if one.number in configs}
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(ITERATIONS, Path(scratch) / ITERATIONS.name))
        for path, text in texts.items():
            write_atomic(copy / path.name, text)
        after = load_all(copy)
    for old, new in zip(before, after, strict=True):
        if dict(new.configs) != {**old.configs, **({gpu: configs[old.number]} if old.number in configs else {})}:
            raise FlashladderError(
                "the edit would change another configuration than was asked for",
                where=relative(old.path),
                hint="an iteration may inherit it: give that one a line of its own first",
            )
    return [write_atomic(path, text) for path, text in texts.items()]


def edited(iteration: Iteration, config: KernelConfig, gpu: str, evidence: str) -> str:
    """The text of an iteration's file with another configuration for `gpu`, and a comment about its evidence above it.

    Raises:
        FlashladderError: the file has no one-line mapping for that GPU.
    """
    found = iteration.family.to_knobs(iteration.parts, config)  # without what the iteration's parts decide
    knobs = "{" + ", ".join(f"{key}: {value}" for key, value in found.items()) + "}"
    text = read_text(iteration.path)
    line = re.compile(rf"^(?:[ \t]+# {EVIDENCE}.*\n)?([ \t]+){gpu}:[ \t]*\{{[^{{}}#\n]*\}}([ \t]*#.*)?$", re.MULTILINE)
    new, count = line.subn(lambda own: f"{own[1]}# {EVIDENCE}{evidence}\n{own[1]}{gpu}: {knobs}{own[2] or ''}", text)
    if count != 1:
        raise FlashladderError(
            f"no configuration of {gpu} on a line of its own",
            where=relative(iteration.path),
            expected=f"  {gpu}: {{B_r: ..., ...}}",
            found=f"{count} such lines",
            hint=f"enter it by hand: {knobs}",
        )
    return new


class Candidate(NamedTuple):
    """One candidate of a tuning run, as a row of its table.

    `pct` is its percent of FA2's speed; `low` and `high` end the 95 % interval, None where the pairs are too few.
    `live` are registers per thread on paper, `registers` as compiled (None: by the driver), `spilled` bytes per thread,
    `warps` those that one SM holds at once. `failure` says why there are no times.
    """

    iteration: int
    dtype: str
    tile: str
    config: str
    pct: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    live: int = 0
    registers: int | None = None
    spilled: int | None = None
    warps: int | None = None
    failure: str = ""


def rows_of(document: BenchResult) -> list[Candidate]:
    """A row per candidate, by iteration and dtype, those with the most pairs and the fastest first; failures last.

    Raises:
        FlashladderError: the document is of no sweep, or of a GPU without a description.
    """
    key = gpu_key(document.gpu.name)
    if document.sweep is None or key is None:
        raise FlashladderError("not a tuning run on a GPU of configs/gpus", found=document.gpu.name)
    gpu, enough, found = load_gpus()[key], document.settings.min_pairs, []
    families = {one.number: one.family for one in load_all()}
    for one in stated(document).summaries:
        kernel = document.kernels[one.kernel]
        config, warps, spilled = KernelConfig.parse(kernel.config), None, None
        if kernel.registers is not None:
            threads, shared = config.n_threads, config.smem_bytes
            warps = gpu.occupancy(registers=kernel.registers, threads=threads, shared_bytes=shared).warps
        if kernel.spill_stores is not None:
            spilled = kernel.spill_stores + (kernel.spill_loads or 0)
        low, high = (one.pct_low, one.pct_high) if one.n_pairs >= enough else (None, None)
        live = families[kernel.iteration].live_registers(config)
        found.append(Candidate(
            kernel.iteration, one.dtype, config.tile, config.brief(), one.pct, low, high, one.n_pairs, live,
            kernel.registers, spilled, warps,
        ))  # fmt: skip
    found.sort(key=lambda row: (row.iteration, row.dtype, -min(row.pairs, enough), -(row.pct or 0)))
    cells = {cell.address: cell for cell in document.sweep.planned}
    for failure in document.sweep.failures:
        cell, told = cells[failure.address], f"{failure.kind}: {failure.message}"
        config = KernelConfig.parse(cell.config)
        live = families[int(cell.subject)].live_registers(config)
        found.append(Candidate(int(cell.subject), cell.dtype, config.tile, config.brief(), live=live, failure=told))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the standings; with ``--write`` enters winners that are faster beyond the floor."""
    parser = Parser(
        prog="python -m flashladder.sweep.winner",
        description="Prints which configurations won a tuning run beside those that the iterations have.",
        epilog="example: python -m flashladder.sweep.winner build/sweep/h200/tune.json.gz",
    )
    parser.add_argument("path", type=result_file, help="document of the rungs; that of the finals lies beside it")
    parser.add_argument("--write", action="store_true", help="enter winners that are faster into the iterations")
    options = parser.parse_args(argv)
    rungs, finals = documents(options.path)
    standings = judged(rungs, finals)
    print(render(standings))
    floors = ", ".join(f"{dtype} {floor:.2f}" for dtype, floor in finals.floors_pct.items())
    print(f"A/A floor of the finals in points: {floors}")
    if not options.write:
        return 0
    faster = {one.number: one.config for one in standings if one.dtype == BOTH and one.verdict == "faster"}
    again = options.path.with_name(FINALS)
    evidence = f"{again.name}, sha256 {sha256(again.read_bytes())[:16]}"
    key = gpu_key(rungs.gpu.name) or ""
    if key not in GPUS:
        expected = ", ".join(GPUS)
        raise FlashladderError("iterations hold no configuration for this GPU", expected=expected, found=rungs.gpu.name)
    for changed in enter(faster, key, evidence):
        print(f"entered: {relative(changed)}")
    if not faster:
        print("nothing to enter: no winner of both dtypes is faster than the present configuration beyond the floor")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
