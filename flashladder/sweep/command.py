"""``python -m flashladder.sweep``: plan, build, measure what is missing, pack. ``invoke sweep`` is the same command.

    python -m flashladder.sweep --grid cpu                     # on this CPU, by the emulator
    python -m flashladder.sweep --grid a100 --dry-run          # what would be measured, and for how long
    python -m flashladder.sweep --grid h200 --gpus 0,1 --json
Exit code: 0 every cell is good, 1 some failed, 2 it could not run, or not to its end (the same command goes on).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
import re
import signal
import sys

from flashladder.arguments import Parser, program_of, some_seconds
from flashladder.errors import FlashladderError, drop_stdout
from flashladder.gpu.doctor import n_gpus
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.grid import Grid, load_grid, runnable
from flashladder.results.schema import PlannedCell
from flashladder.sweep import pack, plan
from flashladder.sweep.place import FOLDER, Place, available, make_plan, place_of, python_of, require_built
from flashladder.sweep.plan import CPU
from flashladder.sweep.records import Records, held, out_folder
from flashladder.sweep.screen import Screen, dry_run, planned
from flashladder.sweep.workers import Device, Task, run

MOST_SHARDS = 10_000
FLAGS = {
    "dry-run": "print the plan: cells, builds, time; measure nothing",
    "no-build": "build nothing: does not start if a kernel is missing",
    "retry": "measure again what failed",
    "anyway": "on another GPU than the grid was made for",
    "json": "print events as JSON, a line each",
}


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace; `shard` is a pair (index, count)."""
    program = program_of("sweep")
    parser = Parser(prog=program, description="Measures a grid.", epilog=f"example: {program} --grid cpu")
    parser.add_argument("--grid", required=True, metavar="NAME", help="a file of configs/grids, such as smoke")
    parser.add_argument("--out", type=out_folder, help="folder of the records (default: build/sweep/MACHINE/GRID)")
    parser.add_argument("--gpus", default="all", metavar="all|0,1|UUID", help="which GPUs (default: all)")
    parser.add_argument("--shard", type=shard, metavar="I/N", help="only the I-th of N parts of the cells, from 0")
    parser.add_argument("--timeout", type=some_seconds, metavar="S", help="of one cell (default: by its size)")
    parser.add_argument("--slurm", nargs="?", const="", metavar="KEY=VALUE,...", help="submit to Slurm (docs/slurm.md)")
    for flag, what in FLAGS.items():
        parser.add_argument(f"--{flag}", action="store_true", help=what)
    return parser.parse_args(argv)


def shard(text: str) -> tuple[int, int]:
    """``I/N`` with 0 <= I < N, for argparse's ``type``."""
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text, re.ASCII)
    if not match or not int(match[1]) < int(match[2]) <= MOST_SHARDS:
        raise argparse.ArgumentTypeError(f"expected I/N with I from 0 to N - 1, found {text!r}")
    return int(match[1]), int(match[2])


def main(argv: Sequence[str] | None = None) -> int:
    """Plans, measures, packs.

    Raises:
        FlashladderError: it could not run, or not to its end.
        CheckFailed: cells failed (exit code 1).
    """
    options = parse_arguments(argv)
    grid, lines = load_grid(options.grid), list[str]()
    if options.slurm is not None:
        from flashladder.sweep import slurm

        slurm.require_possible(grid, options)
    elif grid.without_gpu and options.gpus == "all" and not n_gpus():
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
    with terminable(), _place_of(grid, options) as place:
        return measure(grid, place, options, lines)


@contextmanager
def _place_of(grid: Grid, options: argparse.Namespace) -> Iterator[Place]:
    """What the grid is measured on: GPUs or CPUs of this host, locked while this lasts, or tasks of Slurm."""
    if options.slurm is None:
        with place_of(grid, options) as place:
            yield place
    else:
        from flashladder.sweep import slurm

        yield slurm.destination(grid, slurm.parse_options(options.slurm), anyway=options.anyway)


def measure(grid: Grid, place: Place, options: argparse.Namespace, lines: Sequence[str] = ()) -> int:
    """Measures what is missing of a grid at a place, and packs it when nothing is missing; see `main`."""
    if grid.mode != "emulator":
        grid = runnable(grid, place.arch)
    folder: Path = options.out or FOLDER / place.machine / grid.name
    records = Records(folder)
    records.require_writable()
    pack.require_own_name(grid, folder)
    with held(folder, options.shard) if options.slurm is None else nullcontext():
        made = make_plan(grid, place, build=not options.no_build, quiet=options.json)
        require_built(made)
        if options.slurm is not None:
            from flashladder.sweep import slurm

            return slurm.measure(made, place, options, lines, records, main)
        if grid.mode == "tune":
            from flashladder.sweep import tune

            return tune.measure(made, place, options, lines, records)
        return _measure(made, place, options, lines, records)


def _measure(made: plan.Plan, place: Place, options: argparse.Namespace, lines: Sequence[str], records: Records) -> int:
    mine = list(made.cells)
    if options.shard:
        mine = plan.shard(mine, options.shard, made.settings)
    missing = records.missing(mine, retry=options.retry)
    screen = Screen(made, mine, missing, place.devices, as_json=options.json)
    with screen.measuring(lines, records.folder):
        tasks = tasks_of(made, missing, place.arch, options.timeout)
        outcome = run(tasks, place.devices, records, budget_s=made.grid.budget_s, tell=screen.tell)
    if outcome.left:
        raise pack.unfinished(outcome, f"{outcome.left} of {len(mine)} cells are not measured", records.folder)
    if options.shard:
        return pack.finish_shard(records, mine, options.shard)
    return pack.finish(made, records, screen, made_for=place.made_for)


def tasks_of(made: plan.Plan, cells: Sequence[PlannedCell], arch: str, timeout: float | None) -> list[Task]:
    """Each cell with its interpreter, its time and the request to its worker."""
    pairs = plan.pairs_of(made.settings.pairs)
    return [
        Task(
            cell,
            sys.executable if made.settings.machine == CPU else python_of(cell, arch),
            timeout or plan.timeout_s(cell, made.settings),
            plan.request_of(made, cell, made.settings, pairs),
        )
        for cell in cells
    ]


def _dry_run(grid: Grid, options: argparse.Namespace, lines: Sequence[str]) -> str:
    """The plan as text or as a line of JSON; on a machine without the grid's GPU as it would be on that one."""
    place, note = _would_be(grid, options)
    if grid.mode != "emulator":
        grid = runnable(grid, place.arch)
    made = make_plan(grid, place, build=False)
    records = Records(options.out or FOLDER / place.machine / grid.name)
    build, cells = not options.no_build, list(made.cells)
    if grid.mode == "tune":
        from flashladder.sweep import tune

        said = tune.planned(made, records, retry=options.retry)
    else:
        cells = plan.shard(cells, options.shard, made.settings) if options.shard else cells
        said = planned(made, cells, records, build=build, retry=options.retry)
    notes, devices = [*lines, *filter(None, [note])], len(place.devices)
    return dry_run(made, said, records.folder, devices, notes, as_json=options.json, build=build)


def _would_be(grid: Grid, options: argparse.Namespace) -> tuple[Place, str]:
    """Where a dry run's plan would run, and a line when that is not here."""
    try:
        with _place_of(grid, options) as place:
            return place, ""
    except FlashladderError as error:
        if grid.mode == "emulator" or options.slurm is not None:
            raise
        gpu = load_gpus()[key := "h200" if grid.gpu == "any" else grid.gpu]
        return Place((Device("gpu0", "gpu"),), key, gpu.arch), f"{error.what}: this is the plan for one {gpu.title}"


@contextmanager
def terminable() -> Iterator[None]:
    """While this lasts, SIGTERM, which Slurm and systemd send, raises what Ctrl-C does.

    Raises:
        FlashladderError: nobody reads stdout any more.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except BrokenPipeError as error:
        drop_stdout()
        raise FlashladderError("nobody reads what is printed any more", hint="the same command goes on") from error
    finally:
        signal.signal(signal.SIGTERM, before)
