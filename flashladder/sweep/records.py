"""One file per measured cell in a folder, named by the cell's address: what a resumed sweep does not do again.

A record is whole or not there: it is written beside its name and renamed. Only the process that leads a sweep writes;
any number may read. Nothing to run here; ``python -m flashladder.sweep`` makes them.
"""

from __future__ import annotations

from collections.abc import Iterable
import gzip
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flashladder.errors import FlashladderError
from flashladder.files import checked_json, dump_json, relative, unpacked, write_atomic
from flashladder.located import first_problem
from flashladder.results.schema import SCHEMA_VERSION, BenchResult, EmulatedSweepResult, Failure, PlannedCell, Strict

SUFFIX = ".json.gz"
Document = Annotated[BenchResult | EmulatedSweepResult, Field(discriminator="kind")]


class CellRecord(Strict):
    """What became of one cell: a document of that cell alone, or why there is none.

    `seconds` is the wall-clock time of the cell, `overhead_s` the part of it that was neither a launch on the GPU nor
    the emulator's work; `attempts` counts the workers that it took.
    """

    schema_version: int = SCHEMA_VERSION
    kind: Literal["cell"] = "cell"
    cell: PlannedCell
    document: Document | None = None
    failure: Failure | None = None
    lane: str
    attempts: int = Field(ge=1)
    seconds: float = Field(ge=0)
    overhead_s: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one_of_both(self) -> CellRecord:
        """A cell was measured or it failed, and what it holds is about itself."""
        if (self.document is None) == (self.failure is None):
            msg = "a record holds either a document or a failure"
            raise ValueError(msg)
        of = self.failure.address if self.failure else self._documented()
        if of != self.cell.address:
            msg = f"a record of cell {self.cell.address} about cell {of}"
            raise ValueError(msg)
        return self

    def _documented(self) -> str:
        sweep = self.document.sweep if self.document else None
        planned = sweep.planned if sweep else ()
        return planned[0].address if len(planned) == 1 else "unknown"


class Records:
    """The records in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, address: str) -> Path:
        """Where the record of this cell is, or would be."""
        return self.folder / f"{address}{SUFFIX}"

    def addresses(self) -> frozenset[str]:
        """Of every record in the folder, also of cells that are planned no more; looks into none."""
        if not self.folder.is_dir():
            return frozenset()
        return frozenset(path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"[0-9a-f]*{SUFFIX}"))

    def read(self, address: str) -> CellRecord:
        """The record of a cell.

        Raises:
            FlashladderError: it is missing, damaged, of another schema, or of another cell than its name says.
        """
        path = self.path(address)
        hint = "delete it to measure the cell again"
        try:
            text = unpacked(path.read_bytes())
            record = CellRecord.model_validate_json(checked_json(text))
        except (OSError, ValueError) as error:
            found = first_problem(error)
            raise FlashladderError("not a record of a cell", where=relative(path), found=found, hint=hint) from error
        if record.cell.address != address:
            raise FlashladderError(
                "the record of another cell", where=relative(path), found=record.cell.address, hint=hint
            )
        return record

    def write(self, record: CellRecord) -> Path:
        """Writes a record, whole.

        Raises:
            FlashladderError: the disk is full, or the folder cannot be written.
        """
        return write_atomic(self.path(record.cell.address), packed(record.model_dump(mode="json")))

    def missing(self, cells: Iterable[PlannedCell], *, retry: bool = False) -> list[PlannedCell]:
        """The cells without a record, in order; with `retry` also those whose record is a failure."""
        there = self.addresses()
        return [
            cell
            for cell in cells
            if cell.address not in there or (retry and self.read(cell.address).failure is not None)
        ]

    def require_writable(self) -> None:
        """Makes the folder and proves that a file can be written to it, before anything is measured.

        Raises:
            FlashladderError: it cannot.
        """
        probe = self.folder / ".probe"
        write_atomic(probe, "")
        probe.unlink(missing_ok=True)  # a shard beside this one proves the same


def packed(document: object) -> bytes:
    """A JSON document, compressed; equal documents give equal bytes."""
    return gzip.compress(dump_json(document).encode(), compresslevel=6, mtime=0)


def canonical(record: CellRecord) -> str:
    """What of a record must be equal in an undisturbed run of an emulated cell: all but times, lane and attempts."""
    data = record.model_dump(mode="json")
    for name in ("lane", "attempts", "seconds", "overhead_s"):
        del data[name]
    return json.dumps(data, sort_keys=True)
