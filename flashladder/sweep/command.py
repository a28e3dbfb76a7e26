"""``python -m flashladder.sweep``: plan, build, measure what is missing, pack. ``invoke sweep`` is the same command.

    python -m flashladder.sweep --grid cpu                     # on this CPU, by the emulator
    python -m flashladder.sweep --grid a100 --dry-run          # what would be measured, and for how long
    python -m flashladder.sweep --grid h200 --gpus 0,1 --json
Exit code: 0 every cell is good, 1 some failed, 2 it could not run, or not to its end (the same command goes on).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
import re
import sys

from flashladder.arguments import parser_of, some_seconds
from flashladder.commands import COMMANDS
from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.gpu.doctor import n_gpus
from flashladder.ladder.grid import Grid, load_grid, runnable
from flashladder.results.cells import PlannedCell
from flashladder.sweep import finish, plan
from flashladder.sweep.cells import CPU, wanted_of
from flashladder.sweep.folder import held, out_folder
from flashladder.sweep.lanes.lane import Device, Task
from flashladder.sweep.lanes.run import Outcome, run
from flashladder.sweep.lanes.signals import terminable
from flashladder.sweep.measure import environments
from flashladder.sweep.place import FOLDER, Place, available, make_plan, place_of, require_built
from flashladder.sweep.records import Records
from flashladder.sweep.screen import Screen, dry_run

MOST_SHARDS = 10_000


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace; `shard` is a pair (index, count)."""
    parser = parser_of(
        COMMANDS["sweep"], "sweep", "--grid cpu",
        grid={"metavar": "NAME"}, gpus={"metavar": "all|0,1|UUID"}, out={"type": out_folder},
        shard={"type": shard, "metavar": "I/N"}, timeout={"type": some_seconds, "metavar": "S"},
        slurm={"nargs": "?", "const": "", "metavar": "KEY=VALUE,..."},
    )  # fmt: skip
    return parser.parse_args(argv)


def shard(text: str) -> tuple[int, int]:
    """``I/N`` with 0 <= I < N, for argparse's ``type``."""
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text, re.ASCII)
    if not match or not int(match[1]) < int(match[2]) <= MOST_SHARDS:
        raise argparse.ArgumentTypeError(f"expected I/N with I from 0 to N - 1, found {text!r}")
    return int(match[1]), int(match[2])


def tasks_of(made: plan.Plan, cells: Sequence[PlannedCell], arch: str, timeout: float | None) -> list[Task]:
    """What the lanes are given: each cell with its interpreter, its time and the request to its worker."""
    common = {
        "grid": made.grid.name,
        "grid_sha256": made.grid.sha256,
        "mode": made.settings.mode,
        "pairs": made.settings.pairs,
    }
    return [
        Task(
            cell,
            sys.executable if made.settings.machine == CPU else environments.python_of(wanted_of(cell), arch),
            timeout or plan.timeout_s(cell, made.settings),
            {**common, "cell": cell.model_dump(mode="json")},
        )
        for cell in cells
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Plans, measures, packs.

    Raises:
        FlashladderError: it could not run, or not to its end.
        CheckFailed: cells failed (exit code 1).
    """
    options = parse_arguments(argv)
    if options.slurm is not None:
        from flashladder.sweep.slurm.submit import submit

        with terminable():
            return submit(options)
    grid, lines = load_grid(options.grid), list[str]()
    if grid.without_gpu and options.gpus == "all" and not n_gpus():
        lines = [f"no GPU here: the grid {grid.without_gpu} on this CPU, instead of {grid.name}"]
        grid = load_grid(grid.without_gpu)
    if grid.mode != "emulator":
        grid, lines = available(grid)
    if options.dry_run:
        print(_dry_run(grid, options, lines))
        return 0
    if lines and not options.json:  # before the build, which takes a while
        print("\n".join(lines), flush=True)
        lines = []
    with terminable(), place_of(grid, options) as place:
        return measure(grid, place, options, lines)


def measure(grid: Grid, place: Place, options: argparse.Namespace, lines: Sequence[str] = ()) -> int:
    """Measures what is missing of a grid at a place, and packs it when nothing is; see `main`."""
    if grid.mode != "emulator":
        grid = runnable(grid, place.arch)
    folder: Path = options.out or FOLDER / place.machine / grid.name
    records = Records(folder)
    records.require_writable()
    finish.require_own_name(grid, folder)
    with held(folder, options.shard):
        if grid.mode == "tune":
            from flashladder.sweep.tune import command as tune

            return tune.measure(grid, place, options, lines, records)
        return _measure(grid, place, options, lines, records)


def _measure(grid: Grid, place: Place, options: argparse.Namespace, lines: Sequence[str], records: Records) -> int:
    folder = records.folder
    made = make_plan(grid, place, build=not options.no_build, quiet=options.json)
    require_built(made)
    mine = list(made.cells)
    if options.shard:
        mine = plan.shard(mine, options.shard, made.settings)
    missing = records.missing(mine, retry=options.retry)
    screen = Screen(made, mine, missing, place.lanes, as_json=options.json)
    screen.begin(lines, folder)
    try:
        with screen:
            outcome = run(
                tasks_of(made, missing, place.arch, options.timeout), place.lanes, records,
                tell=screen.tell, budget_s=grid.budget_s,
            )  # fmt: skip
    except KeyboardInterrupt:
        left = len(records.missing(mine))
        print(
            f"{len(mine) - left} of {len(mine)} cells are kept in {relative(folder)}; the same command goes on",
            file=sys.stderr,
        )
        raise
    _require_whole(outcome, len(mine), folder)
    if options.shard:
        return finish.shard(records, mine, options.shard)
    return finish.whole(made, records, screen, made_for=place.made_for)


def _require_whole(outcome: Outcome, planned: int, folder: Path) -> None:
    """Raises `FlashladderError` when cells are left."""
    if not outcome.left:
        return
    why = "the grid's budget is spent" if outcome.out_of_time else "no worker comes up for them"
    lost = "; ".join(f"{lane}: {message}" for lane, message in outcome.lost.items()) or None
    raise FlashladderError(
        f"{why}: {outcome.left} of {planned} cells are not measured",
        where=relative(folder),
        found=lost,
        hint="the same command goes on with them",
    )


def _dry_run(grid: Grid, options: argparse.Namespace, lines: Sequence[str]) -> str:
    """The plan as text or as a line of JSON; on a machine without the grid's GPU as it would be on that one."""
    place, note = _would_be(grid, options)
    notes = [*lines, *([note] if note else [])]
    if grid.mode != "emulator":
        grid = runnable(grid, place.arch)
    made = make_plan(grid, place, build=False, compiled=False)
    folder: Path = options.out or FOLDER / place.machine / grid.name
    if grid.mode == "tune":
        from flashladder.sweep.tune import command as tune

        return tune.dry_run(
            made, Records(folder), len(place.lanes), notes, as_json=options.json, build=not options.no_build
        )
    cells = list(made.cells)
    if options.shard:
        cells = plan.shard(cells, options.shard, made.settings)
    return dry_run(
        made, cells, Records(folder), len(place.lanes), notes, as_json=options.json, build=not options.no_build
    )


def _would_be(grid: Grid, options: argparse.Namespace) -> tuple[Place, str]:
    """Where a dry run's plan would run, and a line when that is not here."""
    from flashladder.ladder.gpus import load_gpus

    try:
        with place_of(grid, options) as place:
            return place, ""
    except FlashladderError as error:
        if grid.mode == "emulator":
            raise
        key = "h200" if grid.gpu == "any" else grid.gpu
        lane = Device("gpu0", "gpu")
        return Place(
            (lane,), key, load_gpus()[key].arch
        ), f"not here ({error.what}); as on one {load_gpus()[key].title}:"
