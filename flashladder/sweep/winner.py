"""Finds the winner of a tuning run, compares it with the iteration's present configuration, and can enter it there.

The rungs choose a winner, and the finals judge it (other inputs, a fresh process). An iteration has one configuration
per GPU for both dtypes. So the winner has the best harmonic mean of both dtypes, among the configurations that were
timed in every rung.

    python -m flashladder.sweep.winner build/sweep/h200/tune.json.gz --write   # enters winners that are faster
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math
from pathlib import Path
import re
import shutil
import tempfile
from typing import Any, NamedTuple

import numpy as np

from flashladder.arguments import module_parser, result_file
from flashladder.errors import FlashladderError, run_main
from flashladder.files import read_text, relative, sha256, write_atomic
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.names import GPUS
from flashladder.paths import ITERATIONS
from flashladder.results import statistics
from flashladder.results.derive import joined
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult, Summary, kernel_key

FINALS = "tuned.json.gz"  # document of the finals, in the folder of the rungs' document
BOTH = "both"  # both dtypes, by the harmonic mean of their results
EVIDENCE = "tuned: "  # start of the comment above an entered line


@dataclass(frozen=True)
class Standing:
    """Winner and present configuration of an iteration in one dtype, or in `BOTH`, measured in the finals."""

    number: int
    dtype: str
    config: KernelConfig
    winner: statistics.LogSummary
    own_config: KernelConfig | None
    present: statistics.LogSummary | None  # None: `own_config` was not timed, and `verdict` is ``ambiguous``
    verdict: statistics.Verdict


def present_of(document: BenchResult, number: int) -> KernelConfig | None:
    """An iteration's present fp16 configuration for the document's GPU; None if it has none for this GPU."""
    return load_iteration(number, ITERATIONS).configs.get(gpu_key(document.gpu.name) or "")


def ranked(document: BenchResult, number: int) -> dict[str, list[KernelConfig]]:
    """An iteration's candidates per dtype and for `BOTH`: most pairs first, so dropped ones last, then fastest."""
    by_dtype: dict[str, dict[KernelConfig, Summary]] = {}  # the fp16 configurations
    for summary in document.summaries:
        kernel = document.kernels.get(summary.kernel)
        if kernel and kernel.iteration == number:
            config = KernelConfig.parse(kernel.config).with_dtype("fp16")
            by_dtype.setdefault(summary.dtype, {})[config] = summary

    def order(dtypes: Sequence[Mapping[KernelConfig, Summary]]) -> list[KernelConfig]:
        def rank(config: KernelConfig) -> tuple[float, float]:
            found = [summaries[config] for summaries in dtypes]
            pairs = min(document.settings.min_pairs, *(one.n_pairs for one in found))
            return -pairs, -statistics.harmonic_mean([one.pct for one in found])

        return sorted((config for config in dtypes[0] if all(config in one for one in dtypes)), key=rank)

    orders = {dtype: order([summaries]) for dtype, summaries in by_dtype.items()}
    return orders if len(by_dtype) < 2 else {**orders, BOTH: order(list(by_dtype.values()))}


def finalists(document: BenchResult, number: int) -> tuple[KernelConfig, ...]:
    """The fp16 configurations to time again: the best two of each dtype and of both, and the present one."""
    best = [config for order in ranked(document, number).values() for config in order[:2]]
    return tuple(dict.fromkeys(config for config in (*best, present_of(document, number)) if config))


def judged(rungs: BenchResult, finals: BenchResult) -> list[Standing]:
    """The rungs' winners, judged by the finals and their noise floor: per dtype, then for both (the larger floor)."""
    standings = []
    for number in sorted({kernel.iteration for kernel in rungs.kernels.values()}):
        present, orders = present_of(rungs, number), ranked(rungs, number)
        for dtype, order in orders.items():
            dtypes = [one for one in orders if one != BOTH] if dtype == BOTH else [dtype]
            drawn = ((config, _draws(finals, number, config, dtypes)) for config in order)
            config, mine = next(((config, draws) for config, draws in drawn if draws), (None, None))
            if config is None or mine is None:
                continue
            floor = max(math.log1p(finals.floors_pct[one] / 100) for one in dtypes)
            theirs = _draws(finals, number, present, dtypes) if present else None
            judgement: statistics.Verdict = "same" if config == present else "ambiguous"
            if theirs and config != present:
                difference = _summary(mine[0] - theirs[0], mine[1] - theirs[1], min(mine[2], theirs[2]))
                judgement = statistics.verdict(difference, floor, enough=finals.settings.min_pairs)
            winner = statistics.widened(_summary(*mine), floor)
            loser = statistics.widened(_summary(*theirs), floor) if theirs else None
            standings.append(Standing(number, dtype, config, winner, present, loser, judgement))
    return standings


def _summary(middle: float, draws: statistics.Floats, n: int) -> statistics.LogSummary:
    low, high = statistics.interval(draws)
    return statistics.LogSummary(middle, min(low, middle), max(high, middle), n)


def _draws(
    finals: BenchResult, number: int, config: KernelConfig, dtypes: Sequence[str]
) -> tuple[float, statistics.Floats, int] | None:
    """Median log ratio of a configuration (harmonic mean over `dtypes`), its bootstrap draws and number of pairs."""
    medians, draws, n_pairs = [], [], []
    for dtype in dtypes:
        form = config.with_dtype(dtype).short_form()
        key = kernel_key(number, form)
        values, _ = joined([(group, one) for group in finals.groups for one in group.series if one.kernel == key])
        if not values.size:
            return None
        medians.append(math.exp(statistics.median(values)))
        seed = int(sha256(form)[:8], 16) + statistics.SEED  # so configurations have independent draws
        draws.append(np.exp(-statistics.resampled_medians(values, seed=seed)))
        n_pairs.append(int(values.size))
    return math.log(statistics.harmonic_mean(medians)), np.log(len(draws) / np.sum(draws, axis=0)), min(n_pairs)


def render(standings: Sequence[Standing]) -> str:
    """The standings as a table: winner and present configuration with their intervals, and the verdict."""
    lines = [
        "finals: percent of FA2 [95 %], other inputs, a fresh process; the verdict judges the difference",
        f"{'':9s} {'winner':24s} {'':22s}   {'present':24s} {'':22s}   verdict",
    ]
    for one in standings:
        present = one.own_config.brief() if one.own_config else "none for this GPU"
        cells = f"{one.config.brief():24s} {_shown(one.winner):22s}   {present:24s} {_shown(one.present):22s}"
        lines.append(f"{one.number:4d} {one.dtype:4s} {cells}   {one.verdict}")
    lines.append("both: harmonic mean of both dtypes, which share one configuration per GPU")
    return "\n".join(lines)


def _shown(summary: statistics.LogSummary | None) -> str:
    if summary is None:
        return "not timed"
    middle, low, high = map(statistics.percent, (summary.median, summary.low, summary.high))
    return f"{middle:6.1f} % [{low:.1f}, {high:.1f}]"


def documents(path: Path) -> tuple[BenchResult, BenchResult]:
    """The documents of the rungs at `path` and of the finals beside it; `FlashladderError`: no tuning run."""
    again, hint = path.with_name(FINALS), "a tuning run writes tune.json.gz and tuned.json.gz; copy both"
    if path == again:
        raise FlashladderError("file contains the finals", where=relative(path), expected="the rungs", hint=hint)
    found = load_as(path, BenchResult, hint), load_as(again, BenchResult, hint)
    for one, document in zip((path, again), found, strict=True):
        if document.purpose != "tune":
            raise FlashladderError("not a tuning run", where=relative(one), found="timings for a report", hint=hint)
    return found


def enter(configs: Mapping[int, KernelConfig], gpu: str, evidence: str) -> list[Path]:
    """Enters fp16 `configs` by iteration number, for the key `gpu`, all or none; returns the changed files.

    The comment above each configuration contains `evidence`, the source of the configurations.
    Raises `FlashladderError`: a file has an unexpected layout, or an edit would change other configurations, too.
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
            hint = "an iteration may inherit this one: first give it its own line"
            raise FlashladderError(
                "the edit would change another configuration, too", where=relative(old.path), hint=hint
            )
    return [write_atomic(path, text) for path, text in texts.items()]


def edited(iteration: Iteration, config: KernelConfig, gpu: str, evidence: str) -> str:
    """An iteration's file with a configuration for `gpu` and its evidence; `FlashladderError`: not one line there."""
    values = iteration.family.to_knobs(iteration.parts, config)  # without those that the iteration's parts fix
    knobs = "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"
    text = read_text(iteration.path)
    line = re.compile(rf"^(?:[ \t]+# {EVIDENCE}.*\n)?([ \t]+){gpu}:[ \t]*\{{[^{{}}#\n]*\}}([ \t]*#.*)?$", re.MULTILINE)
    new, count = line.subn(lambda own: f"{own[1]}# {EVIDENCE}{evidence}\n{own[1]}{gpu}: {knobs}{own[2] or ''}", text)
    if count != 1:
        what, expected = f"no one-line configuration of {gpu}", f"  {gpu}: {{B_r: ..., ...}}"
        where, found, hint = relative(iteration.path), f"{count} such lines", f"enter it by hand: {knobs}"
        raise FlashladderError(what, where=where, expected=expected, found=found, hint=hint)
    return new


class Candidate(NamedTuple):
    """One candidate of a tuning run, as a row of its table."""

    iteration: int
    dtype: str
    tile: str
    config: str
    pct: float | None = None  # its speed in percent of FA2
    low: float | None = None  # of the 95 % interval; None: too few pairs
    high: float | None = None
    pairs: int = 0
    live: int = 0  # estimated registers per thread
    registers: int | None = None  # compiled ones per thread; None: the driver compiles
    spilled: int | None = None  # bytes per thread
    warps: int | None = None  # resident per SM
    failure: str = ""  # the reason if there are no times


def rows_of(document: BenchResult) -> list[Candidate]:
    """Rows by iteration and dtype: most pairs, then fastest first; failures last. `FlashladderError`: unknown GPU."""
    key = gpu_key(document.gpu.name)
    if document.sweep is None or key is None:
        raise FlashladderError("not a tuning run on a GPU of configs/gpus", found=document.gpu.name)
    gpu, enough, rows = load_gpus()[key], document.settings.min_pairs, list[Candidate]()
    families = {one.number: one.family for one in load_all()}

    def add(number: int, config: KernelConfig, **facts: Any) -> None:
        live = families[number].live_registers(config)
        rows.append(Candidate(number, config.dtype, config.tile, config.brief(), live=live, **facts))

    for one in statistics.stated(document).summaries:
        kernel = document.kernels[one.kernel]
        config, warps, spilled = KernelConfig.parse(kernel.config), None, None
        if (registers := kernel.registers) is not None:
            shared = config.smem_bytes
            warps = gpu.occupancy(registers=registers, threads=config.n_threads, shared_bytes=shared).warps
        if kernel.spill_stores is not None:
            spilled = kernel.spill_stores + (kernel.spill_loads or 0)
        low, high = (one.pct_low, one.pct_high) if one.n_pairs >= enough else (None, None)
        times = {"pct": one.pct, "low": low, "high": high, "pairs": one.n_pairs}
        add(kernel.iteration, config, **times, registers=registers, spilled=spilled, warps=warps)
    rows.sort(key=lambda row: (row.iteration, row.dtype, -min(row.pairs, enough), -(row.pct or 0)))
    cells = {cell.address: cell for cell in document.sweep.planned}
    for failure in document.sweep.failures:
        cell, reason = cells[failure.address], f"{failure.kind}: {failure.message}"
        add(int(cell.subject), KernelConfig.parse(cell.config), failure=reason)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the standings; with ``--write`` enters winners that are faster by more than the noise floor."""
    description = "Compares the winners of a tuning run with the iterations' present configurations."
    parser = module_parser("sweep.winner", description, "build/sweep/h200/tune.json.gz")
    parser.add_argument("path", type=result_file, help="document of the rungs, in the folder of the finals' document")
    parser.add_argument("--write", action="store_true", help="enter winners that are faster into the iterations")
    options = parser.parse_args(argv)
    rungs, finals = documents(options.path)
    standings = judged(rungs, finals)
    print(render(standings))
    floors = ", ".join(f"{dtype} {floor:.2f}" for dtype, floor in finals.floors_pct.items())
    print(f"A/A floor of the finals in percentage points: {floors}")
    if not options.write:
        return
    key = gpu_key(rungs.gpu.name) or ""
    if key not in GPUS:
        expected = ", ".join(GPUS)
        raise FlashladderError("iterations have no entry for this GPU", expected=expected, found=rungs.gpu.name)
    faster = {one.number: one.config for one in standings if one.dtype == BOTH and one.verdict == "faster"}
    evidence = f"{FINALS}, sha256 {sha256(options.path.with_name(FINALS).read_bytes())[:16]}"
    for changed in enter(faster, key, evidence):
        print(f"entered: {relative(changed)}")
    if not faster:
        print("nothing to enter: no winner of both dtypes beats the present configuration by more than the floor")


if __name__ == "__main__":
    run_main(main)
