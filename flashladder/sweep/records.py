"""The folder of a sweep: one record per cell, locks against other sweeps, and the kinds of failures.

A record is complete or absent: it is written to a temporary file, then renamed. Only the main process of a sweep writes
records; any process may read them. Locks are released when their process ends, even by SIGKILL.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
import errno
import fcntl
import gzip
from pathlib import Path
import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flashladder import files
from flashladder.errors import FlashladderError, failures
from flashladder.located import first_problem
from flashladder.paths import path_of
from flashladder.results import schema

SUFFIX = ".json.gz"
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of file systems without locks
Document = Annotated[schema.BenchResult | schema.EmulatedSweepResult, Field(discriminator="kind")]

# Lower-case patterns of CUDA's, NVML's and torch's messages. The first kind that matches applies.
WORDS: Mapping[schema.FailureKind, str] = {
    "illegal-address": "illegal memory access|illegal address|misaligned address",
    "crash": "device-side assert|illegal instruction|unspecified launch failure",
    "gpu-lost": "gpu is lost|fallen off the bus|no cuda-capable device|uncorrectable ecc|unknown error",
    "out-of-memory": "out of memory|outofmemory|memoryerror|can(not|'t) allocate memory",
}


class CellFailed(Exception):
    """A cell could not be measured; `kind` is that of `flashladder.results.schema.Failure`."""

    def __init__(self, kind: schema.FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def kind_of(error: BaseException) -> schema.FailureKind:
    """The failure kind of an exception from torch, CUDA or Python."""
    if isinstance(error, CellFailed):
        return error.kind
    if isinstance(error, failures()) and error.exit_code == 1:  # our own check failed: runs gave different bits
        return "wrong"
    text = f"{type(error).__name__} {error}".lower()
    known = next((kind for kind, words in WORDS.items() if re.search(words, text)), None)
    return known or ("refused" if isinstance(error, (ValueError, *failures())) else "crash")


class CellRecord(schema.Strict):
    """The result of one cell: a document with that cell only, or a failure."""

    schema_version: int = schema.SCHEMA_VERSION
    kind: Literal["cell"] = "cell"
    cell: schema.PlannedCell
    document: Document | None = None
    failure: schema.Failure | None = None
    lane: str  # the GPU or CPU that measured the cell
    attempts: int = Field(ge=1)  # workers that tried
    seconds: float = Field(ge=0)  # wall-clock time
    overhead_s: float | None = Field(default=None, ge=0)  # the part of it without GPU launches or emulation

    @model_validator(mode="after")
    def _one_of_both(self) -> CellRecord:
        if (self.document is None) == (self.failure is None):
            raise ValueError("a record contains either a document or a failure")
        planned = self.document.sweep.planned if self.document and self.document.sweep else ()
        found = [self.failure.address] if self.failure else [cell.address for cell in planned]
        if found != [self.cell.address]:
            raise ValueError(f"the record of cell {self.cell.address} contains cell {', '.join(found) or 'unknown'}")
        return self


class Records:
    """The records in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packed = folder.with_name(folder.name + SUFFIX)  # path of a complete sweep's document

    def path(self, address: str) -> Path:
        """The path of this cell's record, which may not exist yet."""
        return self.folder / f"{address}{SUFFIX}"

    def addresses(self) -> frozenset[str]:
        """The addresses of all records in the folder, including those of cells no longer planned. Opens no file."""
        return frozenset(path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"[0-9a-f]*{SUFFIX}"))

    def read(self, address: str) -> CellRecord:
        """A cell's record. Raises `FlashladderError`: missing, damaged, of another schema version or another cell."""
        path = self.path(address)
        try:
            record = CellRecord.model_validate_json(files.checked_json(files.unpacked(path.read_bytes())))
            if record.cell.address == address:
                return record
            found = f"the record of another cell, {record.cell.address}"
        except (OSError, ValueError) as error:
            found = first_problem(error)
        hint = "delete it to measure the cell again"
        raise FlashladderError("not a record of the cell", where=files.relative(path), found=found, hint=hint)

    def write(self, record: CellRecord) -> Path:
        """Writes a record atomically. Raises `FlashladderError`: the disk is full, or the folder is not writable."""
        return files.write_atomic(self.path(record.cell.address), packed(record.model_dump(mode="json")))

    def missing(self, cells: Sequence[schema.PlannedCell], *, retry: bool = False) -> list[schema.PlannedCell]:
        """The cells without a record, in order; with `retry` also the failed ones. Raises as `read`."""
        there = self.addresses()
        failed = {cell.address: bool(self.read(cell.address).failure) for cell in cells if cell.address in there}
        return [cell for cell in cells if cell.address not in failed or (retry and failed[cell.address])]


def packed(document: object) -> bytes:
    """A compressed JSON document; equal documents give equal bytes."""
    return gzip.compress(files.dump_json(document).encode(), compresslevel=6, mtime=0)


def out_folder(text: str) -> Path:
    """`text` as the path of a folder that exists or can be created, for argparse's ``type``."""
    path, why = path_of(text).resolve(), repr(text[:60])
    try:
        if text.strip() and path.name:
            files.require_writable(path)
            return path
    except FlashladderError as error:
        why = f"the file {error.where}" if error.found else f"{error.where}: {error.what}"
    except OSError as error:  # a name that is too long
        why = f"{why} ({error.strerror})"
    raise argparse.ArgumentTypeError(f"expected a folder, found {why}")


@contextmanager
def held(folder: Path, part: tuple[int, int] | None = None) -> Iterator[None]:
    """Locks `folder` against other sweeps, but not other parts of this one; `FlashladderError`: in use, read-only."""
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
    """Holds a lock on a file inside the context. Raises `FlashladderError`: another process holds it."""
    files.require_file_or_nothing(path)
    try:
        files.make_folder(path.parent)
        stream = path.open("a+b")
    except OSError as error:
        what, hint = f"could not write the file ({error.strerror})", "free space, fix permissions, or change --out"
        raise FlashladderError(what, where=files.relative(path), hint=hint) from error
    with stream:
        try:
            fcntl.flock(stream, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what, hint = "another sweep measures into this folder", "wait for it, or choose another folder with --out"
            raise FlashladderError(what, where=files.relative(path.parent), hint=hint) from error
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
        yield
