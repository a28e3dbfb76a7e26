"""What a person, or a script, sees of a sweep: the plan, a bar per lane with the time left, failures, a summary.

Why apart: the sweep itself prints nothing, so that its events can as well be JSON, a line each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from pathlib import Path
import sys
import textwrap
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

from flashladder.bench.table import table
from flashladder.build.scheduler import default_jobs
from flashladder.files import relative
from flashladder.ladder.config import KernelConfig
from flashladder.names import CONFLICTS
from flashladder.results.schema import BenchResult, EmulatedSweepResult, PlannedCell
from flashladder.sweep import plan
from flashladder.sweep.cells import CPU, title
from flashladder.sweep.lanes.lane import Device
from flashladder.sweep.lanes.run import Event, plain
from flashladder.sweep.records import Records

WIDTH = 80  # columns of text


class Screen:
    """Tells events: as bars on a terminal, as lines for failures elsewhere, or as JSON."""

    def __init__(
        self,
        made: plan.Plan,
        mine: Sequence[PlannedCell],
        missing: Sequence[PlannedCell],
        lanes: Sequence[Device],
        *,
        as_json: bool,
        left_s: float | None = None,
    ) -> None:
        self.as_json = as_json
        self._plan = made
        self._mine = mine
        self._missing = missing
        self._lanes = [lane.name for lane in lanes]
        self._bars: dict[str, tqdm[Any]] = {}
        self._total: tqdm[Any] | None = None
        self._left_s = made.estimate_s(missing) if left_s is None else left_s
        self._done_s = 0.0

    def begin(self, lines: Sequence[str], folder: Path) -> None:
        """Says what will be measured."""
        told = {
            "event": "planned", "grid": self._plan.grid.name, "machine": self._plan.settings.machine,
            "cells": len(self._mine), "missing": len(self._missing), "folder": str(folder), "notes": list(lines),
        }  # fmt: skip
        self.event(told)
        if self.as_json:
            return
        for line in lines:
            print(line)
        kept = len(self._mine) - len(self._missing)
        more = f", {kept} of them measured before" if kept else ""
        about = duration(self._left_s / max(1, len(self._lanes)))
        print(f"{self._plan.grid.name} on {self._plan.settings.machine}: {len(self._mine)} cells{more}; about {about}")

    def __enter__(self) -> Screen:  # noqa: PYI034 - Self is in typing from Python 3.11 on
        """Opens the bars, on a terminal."""
        off = None if not self.as_json else True
        if not self._missing:
            return self
        self._total = tqdm(total=len(self._missing), desc="sweep", unit="cell", disable=off, leave=False)
        for position, lane in enumerate(self._lanes, start=1):
            self._bars[lane] = tqdm(
                desc=lane, position=position, bar_format="{desc}: {n_fmt} cells {postfix}", disable=off, leave=False
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the bars."""
        for bar in [*self._bars.values(), *([self._total] if self._total is not None else [])]:
            bar.close()

    def tell(self, event: Event) -> None:
        """Shows one event of `flashladder.sweep.lanes.run.run`."""
        self.event(plain(event))
        lane, cell = event.get("lane", ""), event.get("cell")
        bar = self._bars.get(lane)
        if cell is not None and bar is not None:
            bar.set_postfix_str(title(cell))
        if event["event"] in ("measured", "failed"):
            record = event["record"]
            self._done_s += plan.estimate_s(record.cell, self._plan.settings)
            if self._total is not None:
                self._total.update()
            if bar is not None:
                bar.update()
        if self.as_json:
            return
        if event["event"] == "failed":
            failure = event["record"].failure
            tqdm.write(f"failed: {title(event['record'].cell)}: {failure.kind}: {failure.message}", file=sys.stderr)
        elif event["event"] == "lane-lost":
            tqdm.write(f"{lane} is lost: {event['message']}", file=sys.stderr)
        elif event["event"] == "held-back":
            tqdm.write(f"{lane}: held back while other processes use its GPU: {event['others']}", file=sys.stderr)
        elif event["event"] == "worker-broken":
            tqdm.write(f"{lane}: its cells are left, no worker comes up: {event['message']}", file=sys.stderr)
        elif event["event"] == "worker-killed":
            tqdm.write(f"{lane}: its worker was killed; the cell is tried again", file=sys.stderr)

    def event(self, event: Mapping[str, Any]) -> None:
        """Prints an event as JSON, where that is wanted."""
        if self.as_json:
            print(json.dumps({"time": round(time.time(), 3), **event}, sort_keys=True), flush=True)


def duration(seconds: float) -> str:
    """``45 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def to_build(made: plan.Plan, cells: Sequence[PlannedCell], *, build: bool = True) -> str:
    """How many kernels of `cells` are to be built, as text, and about how long that takes here.

    Without `build`, as ``--no-build`` asks, what comes of their cells.
    """
    kernels = len(plan.kernels_of([cell for cell in cells if not cell.code]))
    if kernels and not build:
        return f"{kernels} kernel{'s are' if kernels > 1 else ' is'} not built: their cells fail with --no-build"
    about = duration(plan.build_s(cells, made.settings, default_jobs()))
    return f"{kernels} kernel{'s' if kernels > 1 else ''} to build: about {about}" if kernels else "nothing to build"


def dry_run(
    made: plan.Plan,
    cells: Sequence[PlannedCell],
    records: Records,
    lanes: int,
    notes: Sequence[str] = (),
    *,
    as_json: bool = False,
    build: bool = True,
) -> str:
    """The plan of a grid as text, or as JSON: cells by subject, what is left out and why, builds, time."""
    grid = made.grid
    without = [cell for cell in cells if not cell.code]
    timed = records.missing([cell for cell in cells if cell.code])
    missing = [*without, *timed]
    unbuilt = len(plan.kernels_of(without))
    each = made.estimate_s(missing if build else timed) / max(1, lanes)
    each += plan.build_s(cells, made.settings, default_jobs()) if build else 0.0
    if as_json:
        counts = {"cells": len(cells), "missing": len(missing), "to_build": unbuilt}
        return planned(made, records, notes=notes, seconds=each, **counts)
    lines = [*notes, *textwrap.wrap(f"{grid.name}: {grid.why}", WIDTH), ""]
    by_subject: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        toolchain = f" (CUDA {cell.toolchain})" if cell.toolchain else ""
        by_subject.setdefault(cell.subject + toolchain, []).append(cell)
    for name, own in by_subject.items():
        configs = len({cell.config for cell in own if cell.config})
        kernels = f"{configs:5d} kernel{'s' if configs > 1 else ''}" if configs else ""
        lines.append(f"{name:32s} {len(own):5d} {'cells' if len(own) > 1 or not kernels else 'cell '}{kernels}")
    for count, why in grid.excluded:
        lines += textwrap.wrap(f"left out: {count} cells: {why}", WIDTH, subsequent_indent="  ")
    unit = "CPU" if made.settings.machine == CPU else "GPU"
    budget = f"; the grid's budget is {duration(grid.budget_s)} per {unit}" if grid.budget_s else ""
    lines += [
        "",
        f"{len(cells)} cells, {len(cells) - len(missing)} of them measured before, in {relative(records.folder)}",
        to_build(made, cells, build=build),
        f"about {duration(each)} on {lanes} {unit}{'s' if lanes > 1 else ''}{budget}",
    ]
    return "\n".join(lines)


def planned(made: plan.Plan, records: Records, **more: object) -> str:
    """The plan of a grid as one line of JSON: what `more` says, and what is the same for every mode."""
    told = {
        "event": "dry-run", "grid": made.grid.name, "machine": made.settings.machine, "folder": str(records.folder),
        "budget_s": made.grid.budget_s,
        "left_out": [{"cells": count, "why": why} for count, why in made.grid.excluded], **more,
    }  # fmt: skip
    return json.dumps(told, sort_keys=True)


def summary(document: BenchResult | EmulatedSweepResult, where: str) -> str:
    """What a packed sweep holds: the table of percentages, or what the emulator counted."""
    return f"{table(document) if isinstance(document, BenchResult) else emulated_table(document)}\n{where}"


def emulated_table(document: EmulatedSweepResult) -> str:
    """Per kernel and shape: warp instructions, bank conflicts of loads, largest error in units of what is allowed."""
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
