"""The end of a sweep: its records become one document, which verify, gate and report read; its table is printed.

A sweep writes a file per cell so that nothing is lost; a result that is committed and compared is one file. Timings
become one `BenchResult` whose tables follow from all samples; emulated cells one `EmulatedSweepResult`. Failures come
along. The same records give the same document.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
import sys

from flashladder.bench.command import table as bench_table
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import relative
from flashladder.ladder.grid import Grid
from flashladder.results.derive import derive
from flashladder.results.files import load_result, write_result
from flashladder.results.schema import (
    BenchResult,
    EmulatedSweepResult,
    Failure,
    Group,
    PlannedCell,
    Process,
    Reference,
    Sweep,
)
from flashladder.sweep.plan import CPU, Plan, title
from flashladder.sweep.records import SUFFIX, Records
from flashladder.sweep.screen import Screen, emulated_table
from flashladder.sweep.workers import Outcome

Document = BenchResult | EmulatedSweepResult


def pack(made: Plan, records: Records, out: Path, *, made_for: str | None = None) -> Document:
    """Writes the document of a complete sweep to `out` and returns it.

    Raises:
        FlashladderError: a record is missing or damaged, no cell was measured, or the cells come from different GPU
            models, drivers, modes, settings or torch versions.
    """
    found = [records.read(cell.address) for cell in made.cells]
    failures = tuple(record.failure for record in found if record.failure)
    sweep = sweep_of(made, made.cells, failures, made_for)
    documents = [record.document for record in found if record.document]
    if not documents:
        first = f"{failures[0].kind}: {failures[0].message}"
        message = f"none of {len(failures)} cells was measured, the first: {first}"
        raise FlashladderError(message, where=records.folder, exit_code=1)
    document: Document
    if made.settings.machine == CPU:
        emulated = [one for one in documents if isinstance(one, EmulatedSweepResult)]
        kernels = {key: kernel for one in emulated for key, kernel in one.kernels.items()}
        cells = tuple(cell for one in emulated for cell in one.cells)
        document = emulated[0].model_copy(update={"kernels": kernels, "sweep": sweep, "cells": cells})
    else:
        document = timed([one for one in documents if isinstance(one, BenchResult)], sweep)
    write_result(out, document)
    return document


def sweep_of(made: Plan, planned: Sequence[PlannedCell], failures: Sequence[Failure], made_for: str | None) -> Sweep:
    """What a document says about its sweep."""
    return Sweep(
        grid=made.grid.name,
        grid_sha256=made.grid.sha256,
        made_for=made_for,
        planned=tuple(planned),
        failures=tuple(failures),
    )


def timed(documents: Sequence[BenchResult], sweep: Sweep) -> BenchResult:
    """One bench result of all timed cells; processes are numbered anew, each worker once.

    Raises:
        FlashladderError: they come from different GPU models, drivers, modes, settings or versions of torch.
    """
    for name, of in (
        ("GPU models", lambda one: one.gpu.name),
        ("drivers", lambda one: one.gpu.driver),
        ("modes", lambda one: one.mode),
        ("torch versions", lambda one: one.reference.torch),
        ("settings", lambda one: one.settings),
    ):
        if len(found := dict.fromkeys(map(of, documents))) > 1:
            raise FlashladderError(
                f"the cells come from different {name}, which one table must not mix",
                found=", ".join(map(str, found)),
                hint="measure them with another --out, on one kind of machine",
            )
    processes: list[Process] = []
    numbers: dict[tuple[str, str, int], int] = {}  # card and start of a worker
    groups: list[Group] = []
    for one in documents:
        worker = one.processes[0]
        key = (one.gpu.uuid, worker.started_utc, worker.index)
        if key not in numbers:
            numbers[key] = len(processes)
            processes.append(worker.model_copy(update={"index": len(processes)}))
        groups += [group.model_copy(update={"process": numbers[key]}) for group in one.groups]
    names = dict.fromkeys(name for one in documents for name in one.references)
    update = {
        "kernels": {key: kernel for one in documents for key, kernel in one.kernels.items()},
        "reference": _joined([one.reference for one in documents]),
        "references": {
            name: _joined([one.references[name] for one in documents if name in one.references]) for name in names
        },
        "sweep": sweep,
        "processes": tuple(processes),
        "groups": tuple(groups),
    }
    return derive(documents[0].model_copy(update=update))


def _joined(references: Sequence[Reference]) -> Reference:
    """One identity from several of the same reference, which know the kernel of one dtype each, or none."""
    kernels = {dtype: name for one in references for dtype, name in one.kernels.items()}
    tile = next((one.tile for one in references if one.tile), None)
    return references[0].model_copy(update={"kernels": kernels, "tile": tile})


def require_own_name(grid: Grid, folder: Path) -> None:
    """Raises `FlashladderError` where the document that this sweep would replace is another grid's."""
    out = out_of(folder)
    try:
        document = load_result(out) if out.is_file() else None
    except FlashladderError:  # a damaged one, or an older release's, is replaced
        return
    sweep = document.sweep if isinstance(document, BenchResult | EmulatedSweepResult) else None
    if sweep and sweep.grid != grid.name:
        raise FlashladderError(
            "another grid's document has this place", where=relative(out), expected=grid.name,
            found=sweep.grid, hint="another folder as --out",
        )  # fmt: skip


def out_of(folder: Path) -> Path:
    """Where the document of a folder of records goes."""
    return folder.with_name(folder.name + SUFFIX)


def finish(made: Plan, records: Records, screen: Screen, *, made_for: str | None = None) -> int:
    """Packs a complete sweep and prints its table; 0.

    Raises:
        CheckFailed: cells failed.
        FlashladderError: a record is damaged, or the records do not belong into one table.
    """
    out = out_of(records.folder)
    document = pack(made, records, out, made_for=made_for)
    screen.event({"event": "packed", "path": str(out)})
    if not screen.as_json:
        table = bench_table(document) if isinstance(document, BenchResult) else emulated_table(document)
        print(f"{table}\n{relative(out)}")
    failures = document.sweep.failures if document.sweep else ()
    return exit_code(made.cells, failures, f"{len(failures)} of {len(made.cells)} cells failed")


def finish_shard(records: Records, cells: Sequence[PlannedCell], part: tuple[int, int]) -> int:
    """Says that one part (index, count) of a sweep is done; 0.

    Raises:
        CheckFailed: cells of it failed.
    """
    print(f"shard {part[0]} of {part[1]}: {len(cells)} cells are done", file=sys.stderr)
    failures = [failure for cell in cells if (failure := records.read(cell.address).failure)]
    return exit_code(cells, failures, f"{len(failures)} of {len(cells)} cells failed")


def exit_code(cells: Sequence[PlannedCell], failures: Sequence[Failure], told: str) -> int:
    """0; `CheckFailed`, with what is `told` and the first failure, where some of the cells failed."""
    if not failures:
        return 0
    first = failures[0]
    name = next(title(cell) for cell in cells if cell.address == first.address)
    line = f"{told}, the first: {name}: {first.kind}: {first.message}"
    raise CheckFailed(line, hint="--retry measures them again")


def unfinished(outcome: Outcome, left: str, folder: Path, *, held: str = "") -> FlashladderError:
    """The error for what a run has `left`, such as ``3 of 8 cells are not measured``."""
    if outcome.out_of_time:
        why = "the grid's budget is spent"
    else:
        why = "the GPU could not be measured on" if held else "no worker comes up for them"
    return FlashladderError(
        f"{why}: {left}",
        where=relative(folder),
        found=held or "; ".join(f"{name}: {message}" for name, message in outcome.lost.items()) or None,
        hint="the same command goes on with them",
    )
