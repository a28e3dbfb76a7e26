"""Which configuration won a tuning run, whether it beats the one that the iteration has, and entering it there.

The rungs chose, the finals judge (other inputs, a fresh process), and a person decides with both intervals in view. An
iteration has one configuration per GPU for both dtypes: the winner is the one with the best harmonic mean of both among
those that went through every rung.

Run:
    python -m flashladder.sweep.winner build/sweep/h200/tune.json.gz
    python -m flashladder.sweep.winner build/sweep/h200/tune.json.gz --write   # enters those that are faster
Exit code: 0 done, 2 it could not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
import math
from pathlib import Path
import re
import shutil
import tempfile

import numpy as np

from flashladder.arguments import Parser, result_file
from flashladder.columns import csv_text
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import read_text, relative, sha256, write_atomic
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.family import Family
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.located import read_located
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


def enter(configs: Mapping[int, KernelConfig], gpu: str, evidence: str, folder: Path = ITERATIONS) -> list[Path]:
    """Writes configurations for one GPU into the iterations' files, all of them or none; returns the changed files.

    Args:
        configs: iteration to its new fp16 configuration.
        gpu: the key under which it stands.
        evidence: what a comment says about where it comes from.
        folder: of the iterations.

    Raises:
        FlashladderError: a file is not laid out as expected, or an edit would change more than was asked for.
    """
    before = {iteration.number: iteration for iteration in load_all(folder)}
    texts = {
        number: edited(load_iteration(number, folder), config, gpu, evidence) for number, config in configs.items()
    }
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / folder.name
        shutil.copytree(folder, copy)
        for number, text in texts.items():
            write_atomic(copy / before[number].path.name, text)
        for after in load_all(copy):
            wanted = dict(before[after.number].configs)
            if after.number in configs:
                wanted[gpu] = configs[after.number]
            if dict(after.configs) != wanted:
                raise FlashladderError(
                    "the edit would change another configuration than was asked for",
                    where=relative(before[after.number].path),
                    hint="an iteration may inherit it: give that one a line of its own first",
                )
    return [write_atomic(before[number].path, text) for number, text in texts.items()]


def edited(iteration: Iteration, config: KernelConfig, gpu: str, evidence: str) -> str:
    """The text of an iteration's file with another configuration for `gpu`, and a comment about its evidence above it.

    Raises:
        FlashladderError: the file has no one-line mapping for that GPU.
    """
    located = read_located(iteration.path)
    lines = read_text(iteration.path).splitlines(keepends=True)
    place = located.lines.get(("configs", gpu))
    match = re.fullmatch(rf"(\s+){gpu}:\s*\{{[^{{}}#]*\}}(\s*#.*)?\n?", lines[place - 1]) if place else None
    if place is None or match is None:
        raise FlashladderError(
            f"no configuration of {gpu} on a line of its own",
            where=located.where(("configs", gpu)),
            expected=f"  {gpu}: {{B_r: ..., ...}}",
            found=lines[place - 1].strip() if place else "none",
            hint="enter it by hand: " + knobs(iteration, config),
        )
    new = f"{match[1]}{gpu}: {knobs(iteration, config)}{match[2] or ''}\n"
    comment = f"{match[1]}# {EVIDENCE}{evidence}\n"
    start = place - 1
    if start and lines[start - 1].strip().startswith(f"# {EVIDENCE}"):
        start -= 1
    return "".join([*lines[:start], comment, new, *lines[place:]])


def knobs(iteration: Iteration, config: KernelConfig) -> str:
    """A configuration as iterations write it: ``{B_r: 128, ...}``, without what the iteration's parts decide."""
    found = iteration.family.to_knobs(iteration.parts, config)
    return "{" + ", ".join(f"{key}: {value}" for key, value in found.items()) + "}"


@dataclass(frozen=True)
class Candidate:
    """One candidate of a tuning run, as a row of its table.

    Attributes:
        pct: percent of FA2's speed; `low` and `high` end its 95 % interval, None where the pairs are too few for one.
        live: registers per thread that accumulators and fragments take on paper.
        registers: per thread, as compiled; None where the driver compiled it.
        spilled: bytes per thread, stored and loaded.
        warps: that one SM holds at once.
        failure: why there are no times; empty where there are.
    """

    iteration: int
    dtype: str
    tile: str
    config: str
    pct: float | None
    low: float | None
    high: float | None
    pairs: int
    live: int
    registers: int | None
    spilled: int | None
    warps: int | None
    failure: str = ""


def rows_of(document: BenchResult) -> list[Candidate]:
    """A row per candidate, by iteration and dtype, those with the most pairs and the fastest first; failures last.

    Raises:
        FlashladderError: the document is of no sweep, or of a GPU without a description.
    """
    key = gpu_key(document.gpu.name)
    if document.sweep is None or key is None:
        raise FlashladderError("not a tuning run on a GPU of configs/gpus", found=document.gpu.name)
    if others := [one.kernel for one in document.summaries if one.kernel not in document.kernels]:
        raise FlashladderError("not a tuning run", expected="candidates alone", found=f"{others[0]} beside them")
    gpu, enough = load_gpus()[key], document.settings.min_pairs
    found = []
    for one in stated(document).summaries:
        kernel, config = document.kernels[one.kernel], KernelConfig.parse(document.kernels[one.kernel].config)
        honest, used = one.n_pairs >= enough, kernel.registers
        found.append(
            Candidate(
                iteration=kernel.iteration,
                dtype=one.dtype,
                tile=config.tile,
                config=config.brief(),
                pct=one.pct,
                low=one.pct_low if honest else None,
                high=one.pct_high if honest else None,
                pairs=one.n_pairs,
                live=_family(kernel.iteration).live_registers(config),
                registers=used,
                spilled=None if kernel.spill_stores is None else kernel.spill_stores + (kernel.spill_loads or 0),
                warps=None
                if used is None
                else gpu.occupancy(registers=used, threads=config.n_threads, shared_bytes=config.smem_bytes).warps,
            )
        )
    found.sort(key=lambda row: (row.iteration, row.dtype, -min(row.pairs, enough), -(row.pct or 0)))
    cells = {cell.address: cell for cell in document.sweep.planned}
    for failure in document.sweep.failures:
        cell, config = cells[failure.address], KernelConfig.parse(cells[failure.address].config)
        told = f"{failure.kind}: {failure.message}"
        found.append(
            Candidate(
                int(cell.subject), cell.dtype, config.tile, config.brief(), None, None, None, 0,
                _family(int(cell.subject)).live_registers(config), None, None, None, told,
            )
        )  # fmt: skip
    return found


def to_csv(rows: Sequence[Candidate]) -> str:
    """The rows as CSV; numbers with four digits, an empty cell where there is none."""
    return csv_text(
        [field.name for field in fields(Candidate)],
        ([f"{cell:.4g}" if isinstance(cell, float) else cell for cell in asdict(row).values()] for row in rows),
    )


@lru_cache
def _family(number: int) -> Family:
    """That of an iteration: asked for every candidate."""
    return load_iteration(number).family


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace."""
    parser = Parser(
        prog="python -m flashladder.sweep.winner",
        description="Prints which configurations won a tuning run beside those that the iterations have.",
        epilog="example: python -m flashladder.sweep.winner build/sweep/h200/tune.json.gz",
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
