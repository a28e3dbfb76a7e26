"""Many records to one document: what a finished sweep leaves, in the form that verify, gate and report read.

Why: a sweep writes a file per cell so that nothing is lost; a result that is committed, compared and derived again is
one file. Timings become one `BenchResult` whose tables are derived from all samples; emulated cells one
`EmulatedSweepResult`. Failures come along, each named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashladder.errors import FlashladderError
from flashladder.results.derive import derive
from flashladder.results.files import write_result
from flashladder.results.schema import (
    BenchResult,
    EmulatedSweepResult,
    Failure,
    Group,
    Origin,
    Process,
    Reference,
    Sweep,
)
from flashladder.sweep.cells import CPU
from flashladder.sweep.plan import Plan
from flashladder.sweep.records import CellRecord, Records


def pack(plan: Plan, records: Records, out: Path, *, made_for: str | None = None) -> BenchResult | EmulatedSweepResult:
    """Writes the document of a complete sweep to `out` and returns it.

    Raises:
        FlashladderError: a record is missing or damaged, no cell was measured, or the cells come from different GPU
            models or torch versions, which one table must not mix.
    """
    found = [records.read(cell.address) for cell in plan.cells]
    sweep = Sweep(
        grid=plan.grid.name,
        grid_sha256=plan.grid.sha256,
        made_for=made_for,
        planned=plan.cells,
        failures=tuple(record.failure for record in found if record.failure),
    )
    measured = [record for record in found if record.document]
    if not measured:
        raise FlashladderError(_all_failed(sweep.failures), where=records.folder, exit_code=1)
    timings = [record.document for record in measured if isinstance(record.document, BenchResult)]
    document = _emulated(measured, sweep) if plan.settings.machine == CPU else timed(timings, sweep)
    write_result(out, document)
    return document


def _all_failed(failures: Sequence[Failure]) -> str:
    return f"none of {len(failures)} cells was measured, the first: {failures[0].kind}: {failures[0].message}"


def _emulated(records: Sequence[CellRecord], sweep: Sweep) -> EmulatedSweepResult:
    """One document of emulated cells, in the order of the plan."""
    documents = [record.document for record in records if isinstance(record.document, EmulatedSweepResult)]
    first = documents[0]
    return first.model_copy(
        update={
            "kernels": {key: kernel for one in documents for key, kernel in one.kernels.items()},
            "sweep": sweep,
            "cells": tuple(cell for one in documents for cell in one.cells),
        }
    )


def timed(documents: Sequence[BenchResult], sweep: Sweep) -> BenchResult:
    """One bench result of all timed cells; processes are numbered anew, each worker once.

    Raises:
        FlashladderError: they come from different GPU models, drivers, modes, settings or versions of torch.
    """
    _require_one_table(documents)
    first = documents[0]
    processes: list[Process] = []
    numbers: dict[tuple[str, str], int] = {}  # card and start of a worker
    groups: list[Group] = []
    for one in documents:
        worker = one.processes[0]
        key = (one.gpu.uuid, worker.started_utc + str(worker.index))
        if key not in numbers:
            numbers[key] = len(processes)
            processes.append(worker.model_copy(update={"index": len(processes)}))
        groups += [group.model_copy(update={"process": numbers[key]}) for group in one.groups]
    kernels = {key: kernel for one in documents for key, kernel in one.kernels.items()}
    return derive(
        first.model_copy(
            update={
                "kernels": kernels,
                "reference": _joined([one.reference for one in documents]),
                "references": _references(documents),
                "sweep": sweep,
                "processes": tuple(processes),
                "groups": tuple(groups),
            }
        )
    )


def _references(documents: Sequence[BenchResult]) -> dict[str, Reference]:
    """Each reference with its kernel in every dtype."""
    names = dict.fromkeys(name for one in documents for name in one.references)
    return {name: _joined([one.references[name] for one in documents if name in one.references]) for name in names}


def _joined(references: Sequence[Reference]) -> Reference:
    """One identity from several of the same reference, which know the kernel of one dtype each, or none."""
    kernels = {dtype: name for one in references for dtype, name in one.kernels.items()}
    tile = next((one.tile for one in references if one.tile), None)
    return references[0].model_copy(update={"kernels": kernels, "tile": tile})


def _require_one_table(documents: Sequence[BenchResult]) -> None:
    """Refuses to mix GPU models, drivers, modes or versions of torch."""
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


def identity(document: Origin) -> str:
    """The machine of a document, for people."""
    return document.gpu.name if isinstance(document, BenchResult) else document.host.cpu
