"""The output of a sweep, for people or scripts: plan, progress bar, failures, result document and table.

`Screen` prints all events, as text or as one line of JSON each; the sweep itself prints nothing. A sweep writes one
file per cell, and `pack` joins them into one result file. Timings become a `BenchResult`, whose tables are derived from
all samples. Emulated cells become an `EmulatedSweepResult`. The same records give the same document.
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

from flashladder.bench.command import table as bench_table
from flashladder.build.store import default_jobs
from flashladder.columns import grouped, table
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.grid import Grid
from flashladder.names import CONFLICTS
from flashladder.results import schema
from flashladder.results.derive import derive
from flashladder.results.files import load_result, write_result
from flashladder.sweep import plan
from flashladder.sweep.plan import CPU, Plan, title
from flashladder.sweep.records import Document, Records
from flashladder.sweep.workers import GOES_ON, Event

WIDTH = 80  # columns of text
MESSAGES = {
    "failed": "failed: {cell}: {kind}: {message}",
    "lane-lost": "{lane} is lost: {message}",
    "held-back": "{lane}: waiting for its GPU, used by other processes: {others}",
    "worker-broken": "{lane}: its worker did not start, cells remain: {message}",
    "worker-killed": "{lane}: its worker was killed; the cell is measured again",
}


class Screen:
    """Shows events: a bar and a line per failure, or one line of JSON each; `n_missing` of `n_cells` take `seconds`."""

    def __init__(self, made: Plan, n_cells: int, n_missing: int, seconds: float, *, as_json: bool) -> None:
        self.as_json = as_json
        self._plan, self._n, self._n_missing, self._seconds = made, n_cells, n_missing, seconds
        self._bar: tqdm[Any] | None = None

    def begin(self, lines: Sequence[str], folder: Path) -> None:
        """Prints how many cells the sweep will measure, and the estimated time."""
        grid, machine = self._plan.grid.name, self._plan.settings.machine
        self.event({
            "event": "planned", "grid": grid, "machine": machine, "cells": self._n, "missing": self._n_missing,
            "folder": str(folder), "notes": list(lines),
        })  # fmt: skip
        time = duration(self._seconds)
        more = f", {self._n - self._n_missing} of them measured before" if self._n > self._n_missing else ""
        self.line("\n".join([*lines, f"{grid} on {machine}: {self._n} cells{more}; about {time} to measure"]))

    @contextmanager
    def measuring(self, lines: Sequence[str], folder: Path) -> Iterator[None]:
        """Calls `begin`, then shows a progress bar on a terminal inside the context."""
        self.begin(lines, folder)
        off = True if self.as_json or not self._n_missing else None
        try:
            with tqdm(total=self._n_missing, desc="sweep", unit="cell", disable=off, leave=False) as self._bar:
                yield
        except KeyboardInterrupt:
            print(f"measured cells are kept in {relative(folder)}; {GOES_ON}", file=sys.stderr)
            raise

    def tell(self, event: Event) -> None:
        """Shows one event of `flashladder.sweep.workers.run`. JSON contains the cell's address, title and outcome."""
        record = event.get("record")
        cell: schema.PlannedCell | None = record.cell if record else event.get("cell")
        facts = {key: value for key, value in event.items() if key not in ("record", "cell")}
        if cell:
            facts |= {"address": cell.address, "cell": title(cell)}
        if record:
            facts["seconds"] = record.seconds
            if record.failure:
                facts |= {"kind": record.failure.kind, "message": record.failure.message}
        self.event(facts)
        if self._bar is not None and cell:
            self._bar.set_postfix_str(f"{event['lane']}: {title(cell)}")
            self._bar.update(bool(record))
        if event["event"] in MESSAGES and not self.as_json:
            tqdm.write(MESSAGES[event["event"]].format_map(facts), file=sys.stderr)

    def event(self, event: Event) -> None:
        """Prints an event as one line of JSON if `as_json`, else nothing."""
        if self.as_json:
            print(json.dumps({"time": round(time.time(), 3), **event}, sort_keys=True), flush=True)

    def line(self, text: str) -> None:
        """Prints a text for people, unless `as_json`."""
        if not self.as_json:
            print(text, flush=True)


def duration(seconds: float) -> str:
    """``45 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def count(number: int, what: str) -> str:
    """A number with its noun: ``1 kernel``, ``2 kernels``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def to_build(made: Plan) -> tuple[int, float, str]:
    """The number of kernels to build, the estimated seconds, and both as text.

    They are those of the whole grid. A shard builds all of them too, because it needs the code digest of every cell.
    """
    kernels, seconds = len(made.unbuilt), plan.build_s(made, default_jobs())
    text = f"{count(kernels, 'kernel')} to build for the whole grid: about {duration(seconds)}"
    return kernels, seconds, text if kernels else "nothing to build"


def shard_done(part: tuple[int, int], done: str, folder: Path) -> str:
    """The last line of a shard: what is complete, the folder of the records, and the next step."""
    rest = "run the other shards, then the same command without --shard, which writes the result"
    return f"shard {part[0]} of {part[1]}: {done} complete, recorded in {relative(folder)}; {rest}"


Planned = tuple[list[str], dict[str, int], float]
"""A plan: lines of text, counts for JSON, and the estimated seconds on one device."""


def planned(
    made: Plan, cells: Sequence[schema.PlannedCell], records: Records, *, build: bool, retry: bool = False
) -> Planned:
    """The plan of a grid: cells by subject, and the excluded cells with the reason."""
    missing = records.missing(cells, retry=retry)
    by_subject = grouped(cells, lambda cell: cell.subject + f" (CUDA {cell.toolchain})" * bool(cell.toolchain))
    lines = []
    for name, of_subject in by_subject.items():
        configs = {cell.config for cell in of_subject if cell.config}
        kernels = count(len(configs), "kernel") if configs else ""
        lines.append(f"{name:32s} {count(len(of_subject), 'cell'):>11s} {kernels:>11s}".rstrip())
    for n_cells, why in made.grid.excluded:
        lines += textwrap.wrap(f"excluded: {n_cells} cells: {why}", WIDTH, subsequent_indent="  ")
    counts = {"cells": len(cells), "missing": len(missing)}
    before = f"{len(cells) - len(missing)} of them measured before, in {relative(records.folder)}"
    seconds = made.estimate_s([cell for cell in missing if cell.code or build])
    return [*lines, "", f"{len(cells)} cells, {before}"], counts, seconds


def dry_run(
    made: Plan, summary: Planned, folder: Path, devices: int, notes: Sequence[str] = (), *, as_json: bool, build: bool
) -> str:
    """A plan as text or one line of JSON: its `summary`, kernels to build, and the time on all devices."""
    lines, counts, seconds = summary
    kernels, build_s, building = to_build(made)
    seconds = seconds / max(1, devices) + (build_s if build else 0.0)
    grid, unit = made.grid, "CPU" if made.settings.machine == CPU else "GPU"
    if as_json:
        event = {
            "event": "dry-run", "grid": grid.name, "machine": made.settings.machine, "folder": str(folder),
            "budget_s": grid.budget_s, "left_out": [{"cells": n, "why": why} for n, why in grid.excluded],
            "notes": notes, "seconds": seconds, "to_build": kernels, **counts,
        }  # fmt: skip
        return json.dumps(event, sort_keys=True)
    if kernels and not build:
        building = f"{count(kernels, 'kernel')} not built: with --no-build the sweep does not start"
    budget = f"; the grid's budget is {duration(grid.budget_s)} per {unit}" if grid.budget_s else ""
    ends = [building, f"about {duration(seconds)} on {count(devices, unit)}{budget}"]
    return "\n".join([*notes, *textwrap.wrap(f"{grid.name}: {grid.why}", WIDTH), "", *lines, *ends])


def emulated_table(document: schema.EmulatedSweepResult) -> str:
    """Per kernel and shape: warp instructions, bank conflicts of loads, largest error in percent of the tolerance."""
    cells = {cell.address: cell for cell in document.sweep.planned}
    rows = [["step", "dtype", "S", "instructions", "ld conflicts", "error", "tile"]]
    for measured in document.cells:
        cell, found = cells[measured.address], measured.accuracy
        conflicts = measured.counters[CONFLICTS.format("ld")]
        error = "NaN" if found.max_error is None else f"{100 * found.max_error / found.max_allowed:.0f} %"
        numbers = [str(cell.shape.seq_len), f"{measured.instructions:,d}", f"{conflicts:,d}", error]
        rows.append([cell.subject, cell.dtype, *numbers, KernelConfig.parse(cell.config).brief()])
    lines = table(rows, None, right=range(2, 6))
    return "\n".join([*lines, "column error: the largest error, in percent of what the check allows"])


def pack(made: Plan, records: Records, made_for: str | None = None) -> Document:
    """Writes a complete sweep's document next to its folder, and returns it. Raises like `Records.read` and `join`."""
    found = [records.read(cell.address) for cell in made.cells]
    documents = [record.document for record in found if record.document]
    failures = [record.failure for record in found if record.failure]
    return join(made, made.cells, documents, failures, records.packed, made_for)


def join(
    made: Plan,
    planned: Sequence[schema.PlannedCell],
    documents: Sequence[Document],
    failures: Sequence[schema.Failure],
    out: Path,
    made_for: str | None,
) -> Document:
    """Writes and returns the document of all measurements; `FlashladderError`: none, or they must not be mixed."""
    if not documents:
        first = f", the first: {failures[0].kind}: {failures[0].message}" if failures else ""
        raise FlashladderError(f"none of {len(planned)} cells was measured{first}", where=out, exit_code=1)
    of = {"grid": made.grid.name, "grid_sha256": made.grid.sha256, "made_for": made_for}
    sweep = schema.Sweep.model_validate({**of, "planned": tuple(planned), "failures": tuple(failures)})
    kernels = {key: kernel for document in documents for key, kernel in document.kernels.items()}
    update: dict[str, Any] = {"sweep": sweep, "kernels": kernels}
    if timed := [document for document in documents if isinstance(document, schema.BenchResult)]:
        joined: Document = derive(timed[0].model_copy(update={**update, **_joined(timed)}))
    else:
        cells = [cell for one in documents if isinstance(one, schema.EmulatedSweepResult) for cell in one.cells]
        joined = documents[0].model_copy(update={**update, "cells": tuple(cells)})
    write_result(out, joined)
    return joined


def _joined(documents: Sequence[schema.BenchResult]) -> dict[str, Any]:
    """References, processes and groups of all timed cells. Each worker is one process with a new number."""
    for name, of in (
        ("GPU models", lambda one: one.gpu.name),
        ("drivers", lambda one: one.gpu.driver),
        ("torch versions", lambda one: one.reference.torch),
        ("modes or settings", lambda one: (one.mode, one.settings)),
    ):
        if len(found := dict.fromkeys(map(of, documents))) > 1:
            what = f"the cells come from different {name}, which one table must not mix"
            hint = "choose another folder with --out, and measure on one kind of machine"
            raise FlashladderError(what, found=", ".join(map(str, found)), hint=hint)
    processes: dict[tuple[str, str, int], schema.Process] = {}  # by GPU, start and index of a worker
    groups: list[schema.Group] = []
    references: dict[str, list[schema.Reference]] = {}
    for one in documents:
        worker = one.processes[0]
        key = (one.gpu.uuid, worker.started_utc, worker.index)
        process = processes.setdefault(key, worker.model_copy(update={"index": len(processes)}))
        groups += [group.model_copy(update={"process": process.index}) for group in one.groups]
        for name, reference in one.references.items():
            references.setdefault(name, []).append(reference)
    return {
        "reference": _merged([one.reference for one in documents]),
        "references": {name: _merged(identities) for name, identities in references.items()},
        "processes": tuple(processes.values()),
        "groups": tuple(groups),
    }


def _merged(identities: Sequence[schema.Reference]) -> schema.Reference:
    """One identity of a reference from those of several cells. Each contains the kernel of at most one dtype."""
    kernels = {dtype: name for one in identities for dtype, name in one.kernels.items()}
    tile = next((one.tile for one in identities if one.tile), None)
    return identities[0].model_copy(update={"kernels": kernels, "tile": tile})


def require_own_name(grid: Grid, out: Path) -> None:
    """Raises `FlashladderError` if this sweep would replace the document of another grid."""
    try:
        document = load_result(out) if out.is_file() else None
    except FlashladderError:  # replaces a document that is damaged or from an older release
        return
    sweep = document.sweep if isinstance(document, schema.BenchResult | schema.EmulatedSweepResult) else None
    if sweep and sweep.grid != grid.name:
        what, hint = "this path already holds another grid's document", "choose another folder with --out"
        raise FlashladderError(what, where=relative(out), expected=grid.name, found=sweep.grid, hint=hint)


def finish(made: Plan, records: Records, screen: Screen, made_for: str | None = None) -> int:
    """Packs a complete sweep, prints its table and returns 0. Raises as `pack`; `CheckFailed`: cells failed."""
    document = pack(made, records, made_for)
    screen.event({"event": "packed", "path": str(records.packed)})
    if not screen.as_json:
        text = bench_table(document) if isinstance(document, schema.BenchResult) else emulated_table(document)
        print(f"{text}\n{relative(records.packed)}")
    return exit_code(made.cells, document.sweep.failures if document.sweep else ())


def exit_code(cells: Sequence[schema.PlannedCell], failures: Sequence[schema.Failure], summary: str = "") -> int:
    """Returns 0. If cells failed, raises `CheckFailed` with `summary` (default: a count) and the first failure."""
    if not failures:
        return 0
    first, summary = failures[0], summary or f"{len(failures)} of {len(cells)} cells failed"
    name = next(title(cell) for cell in cells if cell.address == first.address)
    raise CheckFailed(
        f"{summary}, the first: {name}: {first.kind}: {first.message}", hint="--retry measures them again"
    )
