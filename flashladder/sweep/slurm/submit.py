"""``--slurm partition=...,account=...``: the cells of a grid as a job array, one exclusive GPU per task.

Why: a sweep of hours belongs to the scheduler, which may stop a task at any time. Kernels are built here, on the host
that submits; tasks write their records to the shared file system, and are put back into the queue when they are killed,
preempted or out of time. This process only watches: Ctrl-C leaves the tasks running, and the same command finds them
again. When all have ended it packs the result, without a GPU.

    python -m flashladder.sweep --grid h100 --slurm partition=gpu,account=me,time=2:00:00,array=8
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
import time
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.grid import Grid, load_grid
from flashladder.results.schema import PlannedCell
from flashladder.sweep import finish, plan
from flashladder.sweep.cells import CPU
from flashladder.sweep.lanes.lane import Device
from flashladder.sweep.place import FOLDER, Place, available, make_plan, require_built
from flashladder.sweep.records import Records
from flashladder.sweep.screen import Screen, dry_run
from flashladder.sweep.slurm.array import (
    Request,
    alone,
    default_tasks,
    last_error,
    require_slurm,
    running_job,
    submit_array,
    watch,
)
from flashladder.sweep.slurm.options import SlurmOptions, parse_options


def submit(options: argparse.Namespace) -> int:
    """Builds, submits or finds the array, watches it, packs.

    Raises:
        FlashladderError: it could not, or cells are missing when all tasks have ended.
        CheckFailed: cells failed.
    """
    wanted = parse_options(options.slurm)
    _require_alone(options)
    if not options.dry_run:
        require_slurm()
    grid, lines = load_grid(options.grid), list[str]()
    if grid.mode != "emulator":
        grid, lines = available(grid)
    place = destination(grid, wanted, anyway=options.anyway)
    folder: Path = (options.out or FOLDER / place.machine / grid.name).resolve()
    records = Records(folder)
    if options.dry_run:
        made = make_plan(grid, place, build=False, compiled=False)
        build = not options.no_build
        print(dry_run(made, made.cells, records, wanted.array or 1, lines, as_json=options.json, build=build))
        return 0
    records.require_writable()
    request = Request(grid.name, folder, _arguments(options, folder), wanted, place.machine)
    made = make_plan(grid, place, build=not options.no_build, quiet=options.json)
    require_built(made)
    tasks = [Device(f"task{number}", place.machine) for number in range(wanted.array or 1)]
    screen = Screen(made, made.cells, records.missing(made.cells, retry=options.retry), tasks, as_json=options.json)
    screen.begin(lines, folder)
    ended = _through_slurm(request, made, records, screen, retry=options.retry)
    _require_whole(records.missing(made.cells), len(made.cells), request, ended)
    return finish.whole(made, records, screen, made_for=place.made_for)


def destination(grid: Grid, wanted: SlurmOptions, *, anyway: bool) -> Place:
    """What the tasks will find: GPUs of the grid's model, or of the one that is named.

    Raises:
        FlashladderError: a grid made for any GPU without ``gpu=``, or for another than that without ``--anyway``.
    """
    if grid.mode == "emulator":
        return Place((), CPU, "")
    key = wanted.gpu or grid.gpu
    if key == "any":
        expected = ", ".join(f"gpu={name}" for name in load_gpus())
        raise FlashladderError("which GPU will the tasks have", where="--slurm", expected=f"one of {expected}")
    other = grid.gpu if grid.gpu not in ("any", key) else None
    if other and not anyway:
        raise FlashladderError(
            f"the grid was made for another GPU: {load_gpus()[other].title}", expected=other, found=f"gpu={key}",
            hint="--anyway measures it there, and marks the results as that GPU's",
        )  # fmt: skip
    return Place((), key, load_gpus()[key].arch, other)


def _require_alone(options: argparse.Namespace) -> None:
    """Refuses options that contradict ``--slurm``."""
    if options.shard or options.gpus != "all":
        flag = "--shard" if options.shard else "--gpus"
        raise FlashladderError(f"--slurm and {flag} exclude each other", hint="Slurm gives each task its GPU and cells")


def _arguments(options: argparse.Namespace, folder: Path) -> tuple[str, ...]:
    """Of the sweep's command in a task."""
    words = ["--grid", options.grid, "--out", str(folder), "--no-build"]
    words += ["--anyway"] if options.anyway else []
    words += ["--timeout", f"{options.timeout:g}"] if options.timeout else []
    return tuple(words)


def _through_slurm(
    request: Request, made: plan.Plan, records: Records, screen: Screen, *, retry: bool
) -> tuple[str, Counter[str]] | None:
    """The array's job id and its tasks' last states; None when nothing was left to measure."""
    with alone(request):
        job, found = running_job(request), True
        missing = records.missing(made.cells, retry=retry and job is None)
        if job is None and not missing:
            return None
        if job is None:
            for cell in missing:  # a failure that is to be measured again: forgotten, or a task put back would see it
                records.path(cell.address).unlink(missing_ok=True)
            tasks = min(request.options.array or default_tasks(request, len(missing)), len(missing))
            job, found = submit_array(request, tasks), False
    watcher = _Watcher(request, job, screen, len(made.cells))
    watcher.begin(found=found)
    try:
        return job, watch(request, job, lambda: len(made.cells) - len(records.missing(made.cells)), watcher.tell)
    except KeyboardInterrupt:
        watcher.say(f"job {job} goes on without this; the same command watches it again, `scancel {job}` ends it")
        raise


class _Watcher:
    """Tells about an array: as lines, or as JSON."""

    def __init__(self, request: Request, job: str, screen: Screen, cells: int) -> None:
        self._request = request
        self._job = job
        self._screen = screen
        self._cells = cells

    def say(self, line: str) -> None:
        """A line for people."""
        if not self._screen.as_json:
            print(line, flush=True)

    def begin(self, *, found: bool) -> None:
        """Which job, where its logs are, how to cancel it."""
        logs = str(self._request.logs)
        self._screen.event({"event": "slurm-found" if found else "slurm-submitted", "job": self._job, "logs": logs})
        how = "runs already; options of --slurm are those of its submission" if found else "submitted"
        self.say(f"Slurm job {self._job} {how}; logs: {relative(self._request.logs)}; `scancel {self._job}` ends it")

    def tell(self, event: Mapping[str, Any]) -> None:
        """One change."""
        self._screen.event({**event, "job": self._job})
        if "message" in event:
            self.say(f"Slurm does not answer, asking again: {event['message']}")
            return
        states = ", ".join(f"{count} {name.lower()}" for name, count in event["states"].items()) or "no task left"
        waiting = f" (waiting: {', '.join(event['waiting'])})" if event["waiting"] else ""
        self.say(f"{time.strftime('%H:%M:%S')}  {event['done']} of {self._cells} cells; tasks: {states}{waiting}")


def _require_whole(
    missing: Sequence[PlannedCell], cells: int, request: Request, ended: tuple[str, Counter[str]] | None
) -> None:
    """Raises `FlashladderError` when the tasks left cells."""
    if not missing:
        return
    job, states = ended or ("", Counter())
    told = ", ".join(f"{count} {name.lower()}" for name, count in sorted(states.items())) or "forgotten by Slurm"
    error = last_error(request, job)
    raise FlashladderError(
        f"job {job} has ended, and {len(missing)} of {cells} cells are not measured",
        where=relative(request.folder),
        found=f"tasks: {told}" + (f" ({error})" if error else ""),
        hint=f"logs: {relative(request.logs)}; the same command submits the rest",
    )
