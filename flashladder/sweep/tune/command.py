"""A grid of mode ``tune``: every configuration of a tuning space ranked on this machine's GPUs, in minutes.

Per iteration and dtype a ladder of rungs (`flashladder.sweep.tune.ladders`, `flashladder.sweep.halving`): all
candidates with few pairs, the better half with more, until a handful have 24. Then the finals: the winner, those next
to it and the configuration that the iteration has now, timed again in a fresh process on other inputs.

Run, on a machine with a GPU:
    python -m flashladder.sweep --grid tune
    python -m flashladder.sweep.tune.winner build/sweep/h200/tune.json.gz
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
import sys
import textwrap

from flashladder.bench.references import FA2
from flashladder.bench.table import ranking
from flashladder.bench.timing import FIRST_SEED
from flashladder.build.scheduler import default_jobs
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import relative
from flashladder.ladder.grid import FEWEST_PAIRS, Grid
from flashladder.ladder.iteration import load_iteration
from flashladder.results.blocks import Plan as Pairs
from flashladder.results.cells import PlannedCell
from flashladder.results.schema import BenchResult
from flashladder.sweep import plan
from flashladder.sweep.cells import Settings, title, wanted_of
from flashladder.sweep.halving import HALF, HANDFUL, RUNGS, most_pairs, usual_pairs
from flashladder.sweep.lanes.lane import Task
from flashladder.sweep.lanes.run import Event, Outcome, run
from flashladder.sweep.measure.environments import python_of
from flashladder.sweep.place import Place, make_plan, require_built
from flashladder.sweep.records import SUFFIX, Records
from flashladder.sweep.screen import WIDTH, Screen, duration, planned, to_build
from flashladder.sweep.tune.ladders import Ladder, Rungs, replay
from flashladder.sweep.tune.pack import FINALS, pack
from flashladder.sweep.tune.space import explained
from flashladder.sweep.tune.winner import finalists, judged, render

FINAL_SEED = FIRST_SEED + 500_000  # inputs that no rung has seen
CHECKED_S = 0.03  # one candidate, before and after
RUNG_S = 0.6  # inputs and warm-up
PATIENCE = 10.0
PLANS = tuple(
    Pairs(pairs=pairs, blocks=pairs, extra_blocks=0, min_pairs=FEWEST_PAIRS, input_sets=2, seed=index)
    for index, pairs in enumerate(RUNGS)
)


def ladders_of(made: plan.Plan) -> list[Ladder]:
    """A ladder per iteration and dtype, in the order of the plan."""
    found: dict[tuple[str, str, object], list[PlannedCell]] = {}
    for cell in made.cells:
        if cell.config:
            found.setdefault((cell.subject, cell.dtype, wanted_of(cell).shape), []).append(cell)
    return [Ladder(cells, made.settings, PLANS) for cells in found.values()]


def finals_of(made: plan.Plan, document: BenchResult) -> list[Ladder]:
    """Per iteration and dtype the candidates that are timed again, each a ladder of one rung."""
    pairs = plan.pairs_of(made.grid.pairs)
    settings = Settings(made.settings.machine, made.settings.mode, pairs.pairs, pairs.blocks, pairs.min_pairs)
    failed = {failure.address for failure in document.sweep.failures} if document.sweep else set()
    ladders = []
    for subject in dict.fromkeys(cell.subject for cell in made.cells if cell.config):
        wanted = finalists(document, int(subject))
        for dtype in made.grid.dtypes:
            forms = {config.with_dtype(dtype).short_form() for config in wanted}
            cells = [cell for cell in made.cells if cell.subject == subject and cell.config in forms]
            again = [wanted_of(cell).planned(cell.code, settings) for cell in cells if cell.address not in failed]
            if again:
                ladders.append(Ladder(again, settings, (pairs,), FINAL_SEED))
    return ladders


def task_of(made: plan.Plan, arch: str, timeout: float | None) -> Callable[[Ladder, tuple[PlannedCell, ...]], Task]:
    """How a part of a ladder's rung becomes a task."""

    def make(ladder: Ladder, part: tuple[PlannedCell, ...]) -> Task:
        how = ladder.plans[ladder.rung]
        request = {
            "grid": made.grid.name,
            "grid_sha256": made.grid.sha256,
            "mode": made.settings.mode,
            "cell": ladder.cell(part).model_dump(mode="json"),
            "candidates": [cell.model_dump(mode="json") for cell in part],
            "plan": asdict(how),
            "settings": {name: getattr(ladder.settings, name) for name in ("pairs", "blocks", "min_pairs")},
            "first_seed": ladder.first_seed,
            "profile": ladder.is_final,
        }
        seconds = len(part) * (CHECKED_S + how.pairs * _pair_s(part[0], ladder.settings.machine))
        python = python_of(wanted_of(part[0]), arch)
        return Task(ladder.cell(part), python, timeout or 60.0 + PATIENCE * seconds, request)

    return make


def _pair_s(cell: PlannedCell, machine: str) -> float:
    """About how many seconds two launches take."""
    return 2.2 * cell.shape.flops / (plan.TFLOPS.get(machine, plan.ROUGH_TFLOPS) * 1e12)


def estimate_s(ladders: Sequence[Ladder], grid: Grid, machine: str) -> float:
    """About how many seconds one GPU takes for all rungs and the finals."""
    total = 0.0
    for ladder in ladders:
        n, pair_s = len(ladder.candidates), _pair_s(ladder.candidates[0], machine)
        visits = n / (1 - HALF) + HANDFUL
        total += usual_pairs(n) * pair_s + visits * CHECKED_S + len(RUNGS) * RUNG_S
        total += HANDFUL * (grid.pairs * pair_s + CHECKED_S) + RUNG_S
    return total


def measure(grid: Grid, place: Place, options: argparse.Namespace, lines: Sequence[str], records: Records) -> int:
    """Climbs what is missing of all ladders, packs them, and times the finals; called with the folder held.

    Raises:
        FlashladderError: it could not run, or not to its end.
        CheckFailed: candidates failed (exit code 1).
    """
    made = make_plan(grid, place, build=not options.no_build, quiet=options.json)
    require_built(made)
    ladders = ladders_of(made)
    if options.shard:
        ladders = ladders[options.shard[0] :: options.shard[1]]
    climb(made, ladders, (place, records), options, lines)
    if options.shard:
        print(f"shard {options.shard[0]} of {options.shard[1]}: {len(ladders)} ladders are done", file=sys.stderr)
        return _told([ladder for ladder in ladders if ladder.failures])
    out = records.folder.with_name(records.folder.name + SUFFIX)
    document = pack(made, made.cells, ladders, out, place.made_for)
    finals = finals_of(made, document)
    climb(made, finals, (place, records), options)
    again = pack(made, _planned(made, finals), finals, out.with_name(FINALS), place.made_for)
    if not options.json:
        print("\n".join([ranking(document), "", render(judged(document, again)), relative(out)]))
    return _told([ladder for ladder in (*ladders, *finals) if ladder.failures])


def _planned(made: plan.Plan, finals: Sequence[Ladder]) -> list[PlannedCell]:
    """All cells of the finals: every candidate that entered, and FA2 beside itself."""
    cells = [cell for ladder in finals for cell in ladder.entered]
    floors = [cell for cell in made.cells if cell.subject == FA2]
    return [*cells, *(wanted_of(cell).planned(cell.code, finals[0].settings) for cell in floors)]


def climb(
    made: plan.Plan,
    ladders: Sequence[Ladder],
    at: tuple[Place, Records],
    options: argparse.Namespace,
    lines: Sequence[str] = (),
) -> None:
    """Measures what is missing of some ladders, in processes that are new.

    Raises:
        FlashladderError: not to its end; what was measured is kept.
    """
    place, records = at
    for ladder in ladders:
        replay(ladder, records, retry=options.retry)
    left = [ladder for ladder in ladders if not ladder.done]
    seconds = estimate_s(left, made.grid, place.machine)
    slots = [ladder.cell(ladder.parts[0]) for ladder in left for _ in ladder.plans[ladder.rung :]]
    screen = Screen(made, slots, slots, place.lanes, as_json=options.json, left_s=seconds)
    screen.begin(lines, records.folder)
    work = Rungs(left, task_of(made, place.arch, options.timeout), made.grid.budget_s)

    def tell(event: Event) -> None:
        screen.tell(event)
        if event.get("record"):
            work.follow(event["record"])

    try:
        with screen:
            outcome = run(work, place.lanes, records, tell=tell)
    except KeyboardInterrupt:
        print(f"rungs are kept in {relative(records.folder)}; the same command goes on", file=sys.stderr)
        raise
    _require_whole(ladders, outcome, records)


def _require_whole(ladders: Sequence[Ladder], outcome: Outcome, records: Records) -> None:
    """Raises `FlashladderError` when a ladder is not climbed to its end."""
    left = [ladder for ladder in ladders if not ladder.done]
    if not left:
        return
    held = next((ladder.held for ladder in left if ladder.held), None)
    lost = "; ".join(f"{lane}: {message}" for lane, message in outcome.lost.items()) or None
    why = "the grid's budget is spent" if outcome.out_of_time else "the GPU could not be measured on"
    raise FlashladderError(
        f"{why}: {len(left)} of {len(ladders)} ladders are not at their end",
        where=relative(records.folder),
        found=held or lost,
        hint="the same command goes on with them",
    )


def _told(ladders: Sequence[Ladder]) -> int:
    """0; `CheckFailed` where candidates failed."""
    failures = [failure for ladder in ladders for failure in ladder.failures]
    if failures:
        names = {cell.address: title(cell) for ladder in ladders for cell in ladder.entered}
        first = failures[0]
        raise CheckFailed(
            f"{len(failures)} candidates failed and were left out, the first: {names[first.address]}: "
            f"{first.kind}: {first.message}"
        )
    return 0


def dry_run(
    made: plan.Plan,
    records: Records,
    lanes: int,
    notes: Sequence[str] = (),
    *,
    as_json: bool = False,
    build: bool = True,
) -> str:
    """The plan of a tuning run as text, or as JSON: spaces, what was left out of them and why, builds, time."""
    ladders = ladders_of(made)
    numbers = dict.fromkeys(int(cell.subject) for cell in made.cells if cell.config)
    unbuilt = plan.kernels_of([cell for cell in made.cells if not cell.code])
    if not unbuilt:
        for ladder in ladders:
            replay(ladder, records)
    done = sum(ladder.done for ladder in ladders)
    left = [ladder for ladder in ladders if not ladder.done]
    sizes = [len(ladder.entered) for ladder in ladders]
    usual, most, every = sum(map(usual_pairs, sizes)), sum(map(most_pairs, sizes)), sum(sizes) * sum(RUNGS)
    seconds = estimate_s(left, made.grid, made.settings.machine) / max(1, lanes)
    seconds += plan.build_s(made.cells, made.settings, default_jobs()) if build else 0.0
    if as_json:
        counts = {"candidates": sum(sizes), "ladders": len(ladders), "climbed": done, "to_build": len(unbuilt)}
        return planned(made, records, notes=notes, seconds=seconds, **counts)
    lines = [
        *notes,
        *textwrap.wrap(f"{made.grid.name}: {made.grid.why}", WIDTH),
        "",
        *explained([load_iteration(number) for number in numbers], WIDTH),
        "",
        f"{sum(sizes)} candidates in {len(ladders)} ladders, one per iteration and dtype",
        f"{done} ladders are climbed, in {relative(records.folder)}",
        f"{', '.join(map(str, RUNGS))} pairs per rung: {usual} if half go on, at most {most}, not {every}",
        f"then {made.grid.pairs} pairs of the best and present ones in a fresh process, on other inputs",
        to_build(made, made.cells, build=build),
        f"about {duration(seconds)} on {lanes} GPU{'s' if lanes > 1 else ''}",
    ]
    return "\n".join(part for line in lines for part in (textwrap.wrap(line, WIDTH) if len(line) > WIDTH else [line]))
