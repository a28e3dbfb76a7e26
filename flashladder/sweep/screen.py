"""What a person, or a script, sees of a sweep: the plan, a bar with the time left, failures, a summary.

The sweep itself prints nothing, so that its events can as well be JSON, a line each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import json
from pathlib import Path
import sys
import textwrap
import time
from typing import Any

from tqdm import tqdm

from flashladder.build.store import default_jobs
from flashladder.files import relative
from flashladder.ladder.config import KernelConfig
from flashladder.names import CONFLICTS
from flashladder.results.schema import EmulatedSweepResult, PlannedCell
from flashladder.sweep import plan
from flashladder.sweep.plan import CPU, Plan, title
from flashladder.sweep.records import CellRecord, Records
from flashladder.sweep.workers import Device, Event

WIDTH = 80  # columns of text
MESSAGES = {
    "lane-lost": "{lane} is lost: {message}",
    "held-back": "{lane}: held back while other processes use its GPU: {others}",
    "worker-broken": "{lane}: its cells are left, no worker comes up: {message}",
    "worker-killed": "{lane}: its worker was killed; the cell is tried again",
}


class Screen:
    """Tells events: by a bar on a terminal, as lines for failures, or as JSON, a line each and nothing else.

    `mine` are the cells of this part of the plan, `missing` those of them that are to be measured on `devices`, which
    takes one device about `left_s` seconds (by the plan where it is None).
    """

    def __init__(
        self,
        made: Plan,
        mine: Sequence[PlannedCell],
        missing: Sequence[PlannedCell],
        devices: Sequence[Device],
        *,
        as_json: bool,
        left_s: float | None = None,
    ) -> None:
        self.as_json = as_json
        self._plan, self._n, self._n_missing = made, len(mine), len(missing)
        self._seconds = (made.estimate_s(missing) if left_s is None else left_s) / max(1, len(devices))
        self._bar: tqdm[Any] | None = None

    def begin(self, lines: Sequence[str], folder: Path) -> None:
        """Says what will be measured."""
        grid, machine = self._plan.grid.name, self._plan.settings.machine
        self.event({
            "event": "planned", "grid": grid, "machine": machine, "cells": self._n, "missing": self._n_missing,
            "folder": str(folder), "notes": list(lines),
        })  # fmt: skip
        if not self.as_json:
            more = f", {self._n - self._n_missing} of them measured before" if self._n > self._n_missing else ""
            about = f"about {duration(self._seconds)}"
            print("\n".join([*lines, f"{grid} on {machine}: {self._n} cells{more}; {about}"]))

    @contextmanager
    def measuring(self, lines: Sequence[str], folder: Path) -> Iterator[None]:
        """Says what will be measured, and shows a bar of all cells on a terminal while this lasts."""
        self.begin(lines, folder)
        off = True if self.as_json or not self._n_missing else None
        try:
            with tqdm(total=self._n_missing, desc="sweep", unit="cell", disable=off, leave=False) as self._bar:
                yield
        except KeyboardInterrupt:
            print(f"what was measured is kept in {relative(folder)}; the same command goes on", file=sys.stderr)
            raise

    def tell(self, event: Event) -> None:
        """Shows one event of `flashladder.sweep.workers.run`."""
        self.event(plain(event))
        name, record = event["event"], event.get("record")
        if self._bar is not None and "cell" in event:
            self._bar.set_postfix_str(f"{event['lane']}: {title(event['cell'])}")
        if self._bar is not None and record is not None:
            self._bar.update()
        if self.as_json:
            return
        if record is not None and record.failure:
            told = f"failed: {title(record.cell)}: {record.failure.kind}: {record.failure.message}"
            tqdm.write(told, file=sys.stderr)
        elif name in MESSAGES:
            tqdm.write(MESSAGES[name].format_map(event), file=sys.stderr)

    def event(self, event: Event) -> None:
        """Prints an event as JSON, where that is wanted."""
        if self.as_json:
            print(json.dumps({"time": round(time.time(), 3), **event}, sort_keys=True), flush=True)


def plain(event: Event) -> dict[str, Any]:
    """An event as JSON can hold it: cells and records by address, title and outcome."""
    found = {name: value for name, value in event.items() if name not in ("record", "cell")}
    record: CellRecord | None = event.get("record")
    cell: PlannedCell | None = record.cell if record else event.get("cell")
    if cell:
        found |= {"address": cell.address, "cell": title(cell)}
    if record:
        found["seconds"] = record.seconds
        if record.failure:
            found |= {"kind": record.failure.kind, "message": record.failure.message}
    return found


def duration(seconds: float) -> str:
    """``45 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def count(number: int, what: str) -> str:
    """A number with its noun: ``1 kernel``, ``2 kernels``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def to_build(made: Plan, *, build: bool = True) -> str:
    """How many kernels are to be built and about how long that takes; without `build` what follows.

    These are the whole grid's, of which a shard builds all as well: it cuts a plan whose code is known.
    """
    kernels = len(plan.kernels_of(made.unbuilt))
    if not kernels:
        return "nothing to build"
    if not build:
        are = "is" if kernels == 1 else "are"
        return f"{count(kernels, 'kernel')} {are} not built: with --no-build the sweep does not start"
    seconds = plan.build_s(made.cells, made.settings, default_jobs())
    return f"{count(kernels, 'kernel')} to build: about {duration(seconds)}"


Planned = tuple[list[str], dict[str, int], float]
"""What a plan says: lines for people, counts for JSON, and the seconds for which one device measures."""


def planned(made: Plan, cells: Sequence[PlannedCell], records: Records, *, build: bool, retry: bool = False) -> Planned:
    """The plan of a grid: cells by subject, and what is left out and why."""
    without = [cell for cell in cells if not cell.code]
    timed = records.missing([cell for cell in cells if cell.code], retry=retry)
    missing = len(without) + len(timed)
    by_subject: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        toolchain = f" (CUDA {cell.toolchain})" if cell.toolchain else ""
        by_subject.setdefault(cell.subject + toolchain, []).append(cell)
    lines = []
    for name, own in by_subject.items():
        configs = len({cell.config for cell in own if cell.config})
        kernels = count(configs, "kernel") if configs else ""
        lines.append(f"{name:32s} {count(len(own), 'cell'):>11s} {kernels:>11s}".rstrip())
    for left_out, why in made.grid.excluded:
        lines += textwrap.wrap(f"left out: {left_out} cells: {why}", WIDTH, subsequent_indent="  ")
    measured = f"{len(cells)} cells, {len(cells) - missing} of them measured before, in {relative(records.folder)}"
    counts = {"cells": len(cells), "missing": missing}
    return [*lines, "", measured], counts, made.estimate_s([*without, *timed] if build else timed)


def dry_run(
    made: Plan,
    said: Planned,
    folder: Path,
    devices: int,
    notes: Sequence[str] = (),
    *,
    as_json: bool = False,
    build: bool = True,
) -> str:
    """A plan as text, or as a line of JSON: what it `said`, the builds, and the time on so many devices."""
    lines, counts, seconds = said
    seconds /= max(1, devices)
    seconds += plan.build_s(made.cells, made.settings, default_jobs()) if build else 0.0
    to_make = len(plan.kernels_of(made.unbuilt))
    grid, unit = made.grid, "CPU" if made.settings.machine == CPU else "GPU"
    if as_json:
        event = {
            "event": "dry-run", "grid": grid.name, "machine": made.settings.machine, "folder": str(folder),
            "budget_s": grid.budget_s, "left_out": [{"cells": n, "why": why} for n, why in grid.excluded],
            "notes": notes, "seconds": seconds, "to_build": to_make, **counts,
        }  # fmt: skip
        return json.dumps(event, sort_keys=True)
    budget = f"; the grid's budget is {duration(grid.budget_s)} per {unit}" if grid.budget_s else ""
    ends = [to_build(made, build=build), f"about {duration(seconds)} on {count(devices, unit)}{budget}"]
    return "\n".join([*notes, *textwrap.wrap(f"{grid.name}: {grid.why}", WIDTH), "", *lines, *ends])


def emulated_table(document: EmulatedSweepResult) -> str:
    """Per kernel and shape: warp instructions, bank conflicts of loads, largest error as a share of the tolerance."""
    cells = {cell.address: cell for cell in document.sweep.planned}
    lines = [f"{'step':20s} {'dtype':5s} {'S':>6s} {'instructions':>13s} {'ld conflicts':>13s} {'error':>6s}  tile"]
    for one in document.cells:
        cell, look = cells[one.address], one.accuracy
        error = "NaN" if look.max_error is None else f"{100 * look.max_error / look.max_allowed:.0f} %"
        lines.append(
            f"{cell.subject:20s} {cell.dtype:5s} {cell.shape.seq_len:6d} {one.instructions:13,d} "
            f"{one.counters[CONFLICTS.format('ld')]:13,d} {error:>6s}  {KernelConfig.parse(cell.config).brief()}"
        )
    return "\n".join([*lines, "column error: the largest, as a share of what the check allows"])
