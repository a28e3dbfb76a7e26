"""A grid of mode ``tune`` ranks every configuration of a tuning space on this machine's GPUs by successive halving.

The speeds in a space of a hundred configurations spread over 20 %, so two pairs separate most of them from the best.
Each iteration and dtype has a ladder of rungs. The first rung times all candidates with few pairs. Each next rung times
the better half with more pairs, until a handful have 24. Ties with the leader also advance, because noise may have put
them behind it. The finals time the best candidates and the iteration's present configuration again, in a fresh process
on other inputs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
import json
import math
from pathlib import Path
from statistics import median, variance
import sys
import textwrap

from flashladder.bench.command import ranking
from flashladder.bench.references import FA2
from flashladder.bench.timing import FIRST_SEED
from flashladder.columns import grouped, table
from flashladder.errors import FlashladderError
from flashladder.files import relative, sha256
from flashladder.ladder.grid import FEWEST_PAIRS
from flashladder.ladder.iteration import Iteration, load_iteration
from flashladder.results.derive import Plan as Pairs
from flashladder.results.derive import joined, settle, too_fast
from flashladder.results.schema import BenchResult, Failure, PlannedCell, kernel_key
from flashladder.sweep import plan
from flashladder.sweep.measure import candidate_in
from flashladder.sweep.place import Place, code_of
from flashladder.sweep.plan import RUNGS, Settings, cell_of, with_code
from flashladder.sweep.records import CellRecord, Records
from flashladder.sweep.screen import WIDTH, Planned, Screen, exit_code, join, shard_done
from flashladder.sweep.winner import FINALS, finalists, judged, render
from flashladder.sweep.workers import GOES_ON, Task, run

HANDFUL = 4  # candidates in every rung at least: the winner needs competitors
HALF = 0.5
MOST = 0.75  # largest share of a rung's candidates that advance, ties included
TIES = 2.0  # two candidates tie if they differ by at most this many standard errors
HOPELESS = 3.0  # in ties: limit for the better half's distance to the leader (see `survivors`)
LEAST_TIE = 0.004  # log units; the smallest tie, from the A/A floors of all GPUs measured so far
FINAL_SEED = FIRST_SEED + 500_000  # seed of inputs that no rung uses
CHECKED_S = 0.03  # estimated time of one candidate's checks, before and after timing
RUNG_S = 0.6  # estimated time of a rung's inputs and warm-up
PATIENCE = 10.0  # times the estimate until a rung times out
PLANS = tuple(
    Pairs(pairs=pairs, blocks=pairs, extra_blocks=0, min_pairs=FEWEST_PAIRS, input_sets=2, seed=index)
    for index, pairs in enumerate(RUNGS)
)
SAYS_NOTHING = ("gpu-lost", "refused")  # failures that blame no candidate unless they name one

Part = tuple[PlannedCell, ...]


def tie(values: Mapping[str, Sequence[float]]) -> float:
    """The largest difference of a tie, in log units, from the average spread within the candidates."""
    spreads = [variance(ratios) for ratios in values.values() if len(ratios) > 1]
    noise = math.sqrt(sum(spreads) / len(spreads)) if spreads else 0.0
    fewest = min((len(ratios) for ratios in values.values() if ratios), default=1)
    return max(LEAST_TIE, TIES * noise * math.sqrt(2 / fewest))


def survivors(values: Mapping[str, Sequence[float]]) -> list[str]:
    """The candidates that advance, fastest first. If any candidate has no valid ratio, all candidates advance.

    The better half advances, except those far behind the leader (`HOPELESS`). Ties with the leader advance, too.
    `values` contains all valid log ratios (FA2's time / kernel's time) of each remaining candidate.
    """
    ranked = sorted(values, key=lambda name: (-median(values[name]) if values[name] else math.inf, name))
    if not ranked or not all(values.values()):
        return ranked
    leader, close, half = median(values[ranked[0]]), tie(values), math.ceil(HALF * len(ranked))
    return [
        name
        for rank, name in enumerate(ranked[: most_survivors(len(ranked))])
        if rank < HANDFUL or leader - median(values[name]) <= (HOPELESS * close if rank < half else close)
    ]


def most_survivors(n: int, share: float = MOST) -> int:
    """How many of `n` candidates advance if a `share` of them does, at least `HANDFUL`. Default: the maximum."""
    return min(n, max(HANDFUL, math.ceil(share * n)))


def pairs_for(n: int, share: float = MOST) -> int:
    """Pairs that `n` candidates need if a `share` of them advances after each rung. Default: the maximum."""
    total = 0
    for pairs in RUNGS:
        total += n * pairs
        n = most_survivors(n, share=share)
    return total


def key_of(cell: PlannedCell) -> str:
    """The key of a candidate in series."""
    return kernel_key(int(cell.subject), cell.config)


@dataclass
class Ladder:
    """The rungs of one iteration in one dtype.

    The records of earlier rungs decide the next rung, so a resumed run replays them. If a candidate makes its rung
    fail, the ladder removes it and times the others again. If the failure names no candidate, the ladder halves the
    rung until only the cause remains.
    """

    candidates: list[PlannedCell]  # the remaining ones, fastest first
    settings: Settings
    plans: Sequence[Pairs] = PLANS  # the timing plan of each rung; finals have a single rung
    first_seed: int = FIRST_SEED
    rung: int = 0
    parts: list[Part] = field(default_factory=list)  # the untimed groups of the current rung
    documents: list[BenchResult] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)  # those of removed candidates
    held: str = ""  # a failure that blames no candidate, such as a lost GPU, and stops this ladder

    def __post_init__(self) -> None:
        self.entered = tuple(self.candidates)
        self.parts = [self.entered]
        self._values: dict[str, list[float]] = {key_of(cell): [] for cell in self.entered}

    @property
    def done(self) -> bool:
        """Whether every rung is measured, or no candidate remains."""
        return self.rung == len(self.plans) or not self.candidates

    def cell(self, part: Part) -> PlannedCell:
        """The cell that stands for a part of the current rung in its record."""
        first, how = part[0], self.plans[self.rung]
        name = "final" if self.plans is not PLANS else f"rung {self.rung + 1} of {len(self.plans)}"
        code = sha256(json.dumps([name, asdict(how), self.first_seed, [cell.address for cell in part]]))
        one = cell_of(first.subject, f"{name}, {len(part)} candidates", first.dtype, first.shape)
        return with_code(one, code, self.settings)

    def follow(self, record: CellRecord) -> None:
        """Adds the record of one part of the current rung; starts the next rung after the last part."""
        part = next(part for part in self.parts if self.cell(part).address == record.cell.address)
        if isinstance(record.document, BenchResult):
            self.parts.remove(part)
            self._measured(part, record.document)
        elif record.failure:
            self._failed(part, record.failure)
        if not self.parts and not self.done:
            by_key = {key_of(cell): cell for cell in self.candidates}
            self.candidates = [by_key[key] for key in survivors({key: self._values[key] for key in by_key})]
            self.rung += 1
            self.parts = [] if self.done else [tuple(self.candidates)]

    def _measured(self, part: Part, document: BenchResult) -> None:
        """Stores the ratios of a part, and removes candidates with wrong results."""
        self.documents.append(document)
        group, how = document.groups[0], self.plans[self.rung]
        counted = group.model_copy(update={"blocks": settle(group.blocks, visit=how.visit, min_pairs=how.min_pairs)})
        series_of = {series.kernel: series for series in group.series}
        for cell in part:
            series = series_of[key_of(cell)]
            best_us = min((pair.kernel_us for pair in series.pairs), default=math.inf)
            reasons = too_fast("fastest launch", best_us, group.shape, document.gpu.name)
            if reasons := [series.wrong] if series.wrong else reasons:
                self._leave_out(cell, Failure(address=cell.address, kind="wrong", message=reasons[0]))
            else:
                self._values[series.kernel] += map(float, joined([(counted, series)])[0])

    def _failed(self, part: Part, failure: Failure) -> None:
        """Removes the candidate that caused the failure, or halves the part if that is unknown."""
        cells = {key_of(cell): cell for cell in part}
        named = candidate_in(failure, list(cells))
        if named is None and failure.kind in SAYS_NOTHING:
            self.held = f"{failure.kind}: {failure.message}"
            return
        self.parts.remove(part)
        if named is None and len(part) > 1:
            middle = len(part) // 2
            self.parts += [part[:middle], part[middle:]]
            return
        cause = cells[named] if named else part[0]
        self._leave_out(cause, failure)
        if len(part) > 1:
            self.parts.append(tuple(cell for cell in part if cell != cause))

    def _leave_out(self, cell: PlannedCell, failure: Failure) -> None:
        """Removes a candidate, and stores its failure under the candidate's address."""
        message = failure.message.removeprefix(f"{key_of(cell)}: ")
        self.failures.append(failure.model_copy(update={"address": cell.address, "message": message}))
        self.candidates.remove(cell)

    def replay(self, records: Records, *, retry: bool = False) -> None:
        """Adds the records of an earlier run; with `retry` it skips failures."""
        there = set(records.addresses())
        while found := next((one for part in self.parts if (one := self.cell(part).address) in there), None):
            there.remove(found)
            record = records.read(found)
            if record.failure is None or not retry:
                self.follow(record)
        self.held = ""


def ladders_of(made: plan.Plan) -> list[Ladder]:
    """A ladder per iteration and dtype, in the order of the plan."""
    kernels = (cell for cell in made.cells if cell.config)
    found = grouped(kernels, lambda cell: (cell.subject, cell.dtype, cell.shape))
    return [Ladder(cells, made.settings) for cells in found.values()]


def finals_of(made: plan.Plan, document: BenchResult) -> list[Ladder]:
    """A ladder of one rung per iteration and dtype, with the candidates of the finals."""
    pairs = plan.pairs_of(made.grid.pairs)
    settings = Settings(made.settings.machine, made.settings.mode, pairs.pairs, pairs.blocks, pairs.min_pairs)
    failed = {failure.address for failure in document.sweep.failures} if document.sweep else set()
    ladders = []
    for ladder in ladders_of(made):
        first = ladder.entered[0]
        forms = {config.with_dtype(first.dtype).short_form() for config in finalists(document, int(first.subject))}
        cells = [cell for cell in ladder.entered if cell.config in forms and cell.address not in failed]
        if cells:
            again = [with_code(cell, cell.code, settings) for cell in cells]
            ladders.append(Ladder(again, settings, (pairs,), FINAL_SEED))
    return ladders


def measure(made: plan.Plan, place: Place, options: argparse.Namespace, lines: Sequence[str], records: Records) -> int:
    """Measures the missing rungs, packs them, and times the finals. Raises as `flashladder.sweep.command.main`."""
    ladders, part = ladders_of(made), options.shard
    ladders = ladders[part[0] :: part[1]] if part else ladders
    climb(made, ladders, place, records, options, lines)
    if part:
        print(shard_done(part, f"{len(ladders)} ladders", records.folder), file=sys.stderr)
        return _code(ladders)
    document = pack(made, made.cells, ladders, records.packed, place.made_for)
    finals = finals_of(made, document)
    climb(made, finals, place, records, options)
    cells = [cell for ladder in finals for cell in ladder.entered]
    cells += [with_code(cell, cell.code, finals[0].settings) for cell in made.cells if cell.subject == FA2]
    again = pack(made, cells, finals, records.packed.with_name(FINALS), place.made_for)
    if not options.json:
        print("\n".join([ranking(document), "", render(judged(document, again)), relative(records.packed)]))
    return _code([*ladders, *finals])


def _code(ladders: Sequence[Ladder]) -> int:
    """Returns 0; raises `CheckFailed` if candidates failed."""
    failures = [failure for ladder in ladders for failure in ladder.failures]
    entered = [cell for ladder in ladders for cell in ladder.entered]
    return exit_code(entered, failures, f"{len(failures)} candidates failed and were removed")


def climb(
    made: plan.Plan,
    ladders: Sequence[Ladder],
    place: Place,
    records: Records,
    options: argparse.Namespace,
    lines: Sequence[str] = (),
) -> None:
    """Measures the missing rungs of some ladders, in new processes. Raises `FlashladderError`: it did not finish."""
    for ladder in ladders:
        ladder.replay(records, retry=options.retry)
    left = [ladder for ladder in ladders if not ladder.done]
    n = sum(len(ladder.plans) - ladder.rung for ladder in left)
    screen = Screen(made, n, n, estimate_s(made, left) / len(place.devices), as_json=options.json)
    owners: dict[str, Ladder] = {}

    def tasks(ladder: Ladder) -> list[Task]:
        """New tasks for the parts of a ladder's rung without one."""
        found = []
        for part in ladder.parts if not ladder.held else ():
            cell, how = ladder.cell(part), ladder.plans[ladder.rung]
            if cell.address in owners:
                continue
            owners[cell.address] = ladder
            request = plan.request_of(
                made, cell, ladder.settings, how,
                candidates=[one.model_dump(mode="json") for one in part],
                first_seed=ladder.first_seed,
                profile=ladder.plans is not PLANS,
            )  # fmt: skip
            seconds = len(part) * (CHECKED_S + how.pairs * plan.pair_s(cell.shape, made.settings.machine))
            python = code_of(part[0], place.arch)[0]
            found.append(Task(cell, python, options.timeout or 60.0 + PATIENCE * seconds, request))
        return found

    def follow(record: CellRecord) -> list[Task]:
        ladder = owners.pop(record.cell.address)
        ladder.follow(record)
        return tasks(ladder)

    first = list(chain.from_iterable(map(tasks, left)))
    with screen.measuring(lines, records.folder):
        run(first, place.devices, records, budget_s=made.grid.budget_s, follow=follow, tell=screen.tell)
    if held := [ladder.held for ladder in ladders if ladder.held]:
        what = f"{len(held)} of {len(ladders)} ladders are incomplete: the GPU was not usable"
        raise FlashladderError(what, where=relative(records.folder), found=held[0], hint=GOES_ON)


def estimate_s(made: plan.Plan, ladders: Sequence[Ladder]) -> float:
    """Estimated seconds of all rungs and the finals on one GPU."""
    total = 0.0
    for ladder in ladders:
        n, pair_s = len(ladder.candidates), plan.pair_s(ladder.candidates[0].shape, made.settings.machine)
        total += pairs_for(n, HALF) * pair_s + (n / (1 - HALF) + HANDFUL) * CHECKED_S + len(RUNGS) * RUNG_S
        total += HANDFUL * (made.grid.pairs * pair_s + CHECKED_S) + RUNG_S
    return total


def pack(
    made: plan.Plan, planned: Sequence[PlannedCell], ladders: Sequence[Ladder], out: Path, made_for: str | None
) -> BenchResult:
    """Writes and returns the document of complete ladders. Failed candidates are listed, without samples.

    Rungs and finals have separate documents: samples that chose a configuration must not judge it. Raises as `join`.
    """
    failures = [failure for ladder in ladders for failure in ladder.failures]
    failed = {failure.address for failure in failures}
    left_out = {key_of(cell) for cell in planned if cell.address in failed}
    documents = [_without(document, left_out) for ladder in ladders for document in ladder.documents]
    document = join(made, planned, [one for one in documents if one.kernels], failures, out, made_for)
    assert isinstance(document, BenchResult)
    return document


def _without(document: BenchResult, keys: set[str]) -> BenchResult:
    """A document without the samples and kernels of these candidates."""
    groups = []
    for group in document.groups:
        blocks = tuple(
            block.model_copy(update={"order": tuple(key for key in block.order if key not in keys)})
            for block in group.blocks
        )
        series = tuple(one for one in group.series if one.kernel not in keys)
        groups.append(group.model_copy(update={"blocks": blocks, "series": series}))
    kernels = {key: kernel for key, kernel in document.kernels.items() if key not in keys}
    return document.model_copy(update={"groups": tuple(groups), "kernels": kernels})


def left_out(iteration: Iteration) -> Mapping[str, int]:
    """Number of legal configurations (per dtype) by the first rule that excludes them; ``""`` counts the timed ones."""
    family = iteration.family
    legal = family.legal_configs(iteration.parts)
    return Counter(next((rule.name for rule in family.excluded_by(one)), "") for one in legal)


def planned(made: plan.Plan, records: Records, *, retry: bool = False) -> Planned:
    """The plan of a tuning run: spaces, rungs, and the rules that exclude configurations."""
    ladders = ladders_of(made)
    if not made.unbuilt:
        for ladder in ladders:
            ladder.replay(records, retry=retry)
    left = [ladder for ladder in ladders if not ladder.done]
    done, sizes = len(ladders) - len(left), [len(ladder.entered) for ladder in ladders]
    usual, most = (sum(pairs_for(n, share) for n in sizes) for share in (HALF, MOST))
    iterations = [load_iteration(n) for n in dict.fromkeys(int(cell.subject) for cell in made.cells if cell.config)]
    rules = [rule for family in dict.fromkeys(one.family for one in iterations) for rule in family.exclusions]
    rows = [["iteration", "legal", "timed", *(rule.name for rule in rules)]]
    for iteration in iterations:
        counts = left_out(iteration)
        each = (iteration.number, sum(counts.values()), counts[""], *(counts[rule.name] for rule in rules))
        rows.append(list(map(str, each)))
    lines = [
        *table(rows, WIDTH, right=range(len(rows[0]))),
        "",
        "Configurations per dtype; an excluded one counts under its first matching rule:",
        *(textwrap.fill(f"  {rule.name}: {rule.why}", WIDTH, subsequent_indent="    ") for rule in rules),
        "",
        f"{sum(sizes)} candidates in {len(ladders)} ladders, one per iteration and dtype",
        f"{done} ladders complete, in {relative(records.folder)}",
        f"{', '.join(map(str, RUNGS))} pairs per rung: {usual} if half advance, at most {most}",
        f"then {made.grid.pairs} pairs of the best and present ones, in a fresh process on other inputs",
    ]
    return lines, {"candidates": sum(sizes), "ladders": len(ladders), "climbed": done}, estimate_s(made, left)
