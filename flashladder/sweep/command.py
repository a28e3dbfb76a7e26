"""``python -m flashladder.sweep``: plans, builds, measures missing cells, packs. ``invoke sweep`` is the same command.

    python -m flashladder.sweep --grid cpu                     # on this CPU, in the emulator
    python -m flashladder.sweep --grid a100 --dry-run          # prints the plan and its estimated time
    python -m flashladder.sweep --grid h200 --gpus 0,1 --json
Exit code: 0 every cell is good, 1 some failed, 2 it could not start or did not finish (run the same command again to
continue).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
import re
import signal
import sys

from flashladder.arguments import module_parser, some_seconds
from flashladder.errors import FlashladderError, drop_stdout
from flashladder.gpu.doctor import n_gpus
from flashladder.ladder.grid import Grid, load_grid, runnable
from flashladder.sweep import plan, screen, slurm, tune
from flashladder.sweep.place import FOLDER, Place, available, code_of, make_plan, place_of
from flashladder.sweep.plan import CPU
from flashladder.sweep.records import Records, held, out_folder
from flashladder.sweep.workers import Task, run

MOST_SHARDS = 10_000
FLAGS = {
    "dry-run": "print the plan: cells, builds, time; measure nothing",
    "no-build": "build nothing; stop if a kernel is not built",
    "retry": "measure failed cells again",
    "anyway": "measure on a GPU that the grid was not made for",
    "json": "print events as JSON, one per line",
}


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace; `shard` is a pair (index, count)."""
    parser = module_parser("sweep", "Measures a grid, cell by cell.", "--grid cpu", is_task=True)
    parser.add_argument("--grid", required=True, metavar="NAME", help="name of a file in configs/grids, such as smoke")
    parser.add_argument("--out", type=out_folder, help="folder of the records (default: build/sweep/MACHINE/GRID)")
    parser.add_argument("--gpus", default="all", metavar="all|0,1|UUID", help="which GPUs (default: all)")
    parser.add_argument("--shard", type=shard, metavar="I/N", help="measure only part I of N; I starts at 0")
    parser.add_argument("--timeout", type=some_seconds, metavar="S", help="seconds per cell (default: by its size)")
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
    """Plans, measures and packs a grid; returns 0. `FlashladderError`: not finished. `CheckFailed`: cells failed."""
    options = parse_arguments(argv)
    grid, lines = load_grid(options.grid), list[str]()
    if options.slurm is not None:
        slurm.require_possible(grid, options)
    elif grid.without_gpu and options.gpus == "all" and not n_gpus():
        lines = [f"no GPU found: measuring grid {grid.without_gpu} on this CPU instead of {grid.name}"]
        grid = load_grid(grid.without_gpu)
    if grid.mode != "emulator":
        grid, lines = available(grid)
    if lines and not options.json and not options.dry_run:  # before the build, which takes minutes
        print("\n".join(lines), flush=True)
        lines = []
    if options.slurm is None:
        where: AbstractContextManager[Place] = place_of(grid, options, lines)
    else:
        where = nullcontext(slurm.destination(grid, slurm.parse_options(options.slurm), anyway=options.anyway))
    with terminable(), where as place:
        return measure(grid, place, options, lines)


def measure(grid: Grid, place: Place, options: argparse.Namespace, lines: Sequence[str] = ()) -> int:
    """Measures the missing cells of a grid at a place, then packs the complete grid; see `main`."""
    if grid.mode != "emulator":
        grid = runnable(grid, place.arch)
    records = Records(options.out or FOLDER / place.machine / grid.name)
    if options.dry_run:
        made, build = make_plan(grid, place), not options.no_build
        if grid.mode == "tune":
            summary = tune.planned(made, records, retry=options.retry)
        else:
            cells = plan.shard(made.cells, options.shard, made.settings)
            summary = screen.planned(made, cells, records, build=build, retry=options.retry)
        n_devices = len(place.devices)
        print(screen.dry_run(made, summary, records.folder, n_devices, lines, as_json=options.json, build=build))
        return 0
    screen.require_own_name(grid, records.packed)
    with held(records.folder, options.shard) if options.slurm is None else nullcontext():
        made = make_plan(grid, place, build=not options.no_build, quiet=options.json)
        if options.slurm is not None:
            return slurm.measure(made, place, options, lines, records, main)
        if grid.mode == "tune":
            return tune.measure(made, place, options, lines, records)
        return _measure(made, place, options, lines, records)


def _measure(made: plan.Plan, place: Place, options: argparse.Namespace, lines: Sequence[str], records: Records) -> int:
    mine = plan.shard(made.cells, options.shard, made.settings)
    missing = records.missing(mine, retry=options.retry)
    seconds = made.estimate_s(missing) / len(place.devices)
    if options.shard:
        lines = [*lines, f"shard {options.shard[0]} of {options.shard[1]}: {len(mine)} of {len(made.cells)} cells"]
    shown = screen.Screen(made, len(mine), len(missing), seconds, as_json=options.json)
    pairs = plan.pairs_of(made.settings.pairs)
    with shown.measuring(lines, records.folder):
        tasks = [
            Task(
                cell,
                sys.executable if made.settings.machine == CPU else code_of(cell, place.arch)[0],
                options.timeout or 60.0 + plan.PATIENCE * plan.estimate_s(cell, made.settings),
                plan.request_of(made, cell, made.settings, pairs),
            )
            for cell in missing
        ]
        run(tasks, place.devices, records, budget_s=made.grid.budget_s, tell=shown.tell)
    if not options.shard:
        return screen.finish(made, records, shown, place.made_for)
    failures = [failure for cell in mine if (failure := records.read(cell.address).failure)]
    print(screen.shard_done(options.shard, screen.count(len(mine), "cell"), records.folder), file=sys.stderr)
    return screen.exit_code(mine, failures)


@contextmanager
def terminable() -> Iterator[None]:
    """Makes SIGTERM, as Slurm and systemd send, like Ctrl-C inside; `FlashladderError`: stdout was closed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except BrokenPipeError as error:
        drop_stdout()
        raise FlashladderError("stdout was closed", hint="run the same command again to continue") from error
    finally:
        signal.signal(signal.SIGTERM, before)
