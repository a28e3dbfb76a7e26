"""The folder of a sweep: one record per cell, locks against other sweeps, and what can go wrong with a cell.

A record is whole or not there: it is written beside its name and renamed. Only the process that leads a sweep writes;
any number may read. Locks go with their process, however it ends.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
import errno
import fcntl
import gzip
from pathlib import Path
import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flashladder.errors import FlashladderError, failures
from flashladder.files import (
    checked_json,
    dump_json,
    make_folder,
    relative,
    require_file_or_nothing,
    require_folder_or_nothing,
    unpacked,
    write_atomic,
)
from flashladder.located import first_problem
from flashladder.paths import path_of
from flashladder.results.schema import (
    SCHEMA_VERSION,
    BenchResult,
    EmulatedSweepResult,
    Failure,
    FailureKind,
    PlannedCell,
    Strict,
)

SUFFIX = ".json.gz"
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # from file systems that have no locks
Document = Annotated[BenchResult | EmulatedSweepResult, Field(discriminator="kind")]

# Words in CUDA's, NVML's and torch's messages, lower case; the first kind that fits decides.
WORDS: Mapping[FailureKind, str] = {
    "illegal-address": "illegal memory access|illegal address|misaligned address",
    "crash": "device-side assert|illegal instruction|unspecified launch failure",
    "gpu-lost": "gpu is lost|fallen off the bus|no cuda-capable device|uncorrectable ecc|unknown error",
    "out-of-memory": "out of memory|outofmemory|memoryerror|can(not|'t) allocate memory",
}


class CellFailed(Exception):
    """One cell could not be measured; `kind` as in `flashladder.results.schema.Failure`."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def kind_of(error: BaseException) -> FailureKind:
    """The kind of failure that an exception of torch, CUDA or Python means."""
    if isinstance(error, CellFailed):
        return error.kind
    if isinstance(error, failures()) and error.exit_code == 1:  # one of our checks: other bits from run to run
        return "wrong"
    text = f"{type(error).__name__} {error}".lower()
    known = next((kind for kind, words in WORDS.items() if re.search(words, text)), None)
    return known or ("refused" if isinstance(error, (ValueError, *failures())) else "crash")


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class CellRecord(Strict):
    """The result of one cell: a document of that cell alone, or why there is none.

    `lane` names the GPU or CPU that measured it, `attempts` counts the workers that it took. `seconds` is wall-clock
    time, `overhead_s` the part of it without a launch on the GPU or the emulator's work.
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
        """A cell was measured or it failed, and its record is about itself."""
        if (self.document is None) == (self.failure is None):
            msg = "a record holds either a document or a failure"
            raise ValueError(msg)
        planned = self.document.sweep.planned if self.document and self.document.sweep else ()
        of = [self.failure.address] if self.failure else [cell.address for cell in planned]
        if of != [self.cell.address]:
            msg = f"a record of cell {self.cell.address} about cell {', '.join(of) or 'unknown'}"
            raise ValueError(msg)
        return self


class Records:
    """The records in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packed = folder.with_name(folder.name + SUFFIX)  # where the document of a complete sweep goes

    def path(self, address: str) -> Path:
        """Where the record of this cell is, or would be."""
        return self.folder / f"{address}{SUFFIX}"

    def addresses(self) -> frozenset[str]:
        """The address of every record in the folder, also of cells that are no longer planned; opens no file."""
        return frozenset(path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"[0-9a-f]*{SUFFIX}"))

    def read(self, address: str) -> CellRecord:
        """The record of a cell.

        Raises:
            FlashladderError: it is missing, damaged, of another schema, or of another cell than its name says.
        """
        path = self.path(address)
        try:
            record = CellRecord.model_validate_json(checked_json(unpacked(path.read_bytes())))
        except (OSError, ValueError) as error:
            found = first_problem(error)
        else:
            if record.cell.address == address:
                return record
            found = f"that of another cell, {record.cell.address}"
        hint = "delete it to measure the cell again"
        raise FlashladderError("not a record of the cell", where=relative(path), found=found, hint=hint)

    def write(self, record: CellRecord) -> Path:
        """Writes a record, whole.

        Raises:
            FlashladderError: the disk is full, or the folder cannot be written.
        """
        return write_atomic(self.path(record.cell.address), packed(record.model_dump(mode="json")))

    def missing(self, cells: Iterable[PlannedCell], *, retry: bool = False) -> list[PlannedCell]:
        """The cells without a record, in order; with `retry` also those whose record is a failure.

        Raises:
            FlashladderError: a record of these cells is damaged: a plan says so, not a sweep after its last cell.
        """
        there = self.addresses()

        def is_measured(cell: PlannedCell) -> bool:
            return cell.address in there and (self.read(cell.address).failure is None or not retry)

        return [cell for cell in cells if not is_measured(cell)]


def packed(document: object) -> bytes:
    """A JSON document, compressed; equal documents give equal bytes."""
    return gzip.compress(dump_json(document).encode(), compresslevel=6, mtime=0)


def out_folder(text: str) -> Path:
    """`text` as the path of a folder that is there or can be made, for argparse's ``type``."""
    path, why = path_of(text).resolve(), repr(text[:60])
    try:
        if text.strip() and path.name:
            require_folder_or_nothing(path)
            return path
    except FlashladderError as error:
        why = f"the file {error.where}"
    except OSError as error:  # a name that is too long
        why = f"{why} ({error.strerror})"
    raise argparse.ArgumentTypeError(f"expected a folder, found {why}")


@contextmanager
def held(folder: Path, part: tuple[int, int] | None = None) -> Iterator[None]:
    """Keeps other sweeps out of `folder` while this lasts; other parts (index, count) of the same sweep may enter.

    Raises:
        FlashladderError: another sweep, or the same part of it, is there, or the folder cannot be written.
    """
    with locked(folder / ".lock", shared=part is not None):
        if part is None:
            for left in folder.glob(f".*{SUFFIX}.*"):  # temporary files of killed sweeps
                with suppress(OSError):
                    left.unlink()
            yield
            return
        with locked(folder / f".lock-{part[0]}-of-{part[1]}"):
            yield


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Holds the lock file `path`.

    Raises:
        FlashladderError: another process holds it, or it cannot be written.
    """
    require_file_or_nothing(path)
    try:
        make_folder(path.parent)
        stream = path.open("a+b")
    except OSError as error:
        raise FlashladderError(
            f"could not write the file ({error.strerror})", where=relative(path), hint="free space or fix permissions"
        ) from error
    with stream:
        try:
            fcntl.flock(stream, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FlashladderError(
                "another sweep measures into this folder", where=relative(path.parent),
                hint="wait for it, or choose another folder with --out",
            ) from error  # fmt: skip
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
        yield
