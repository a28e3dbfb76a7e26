"""Result files: reading, validating, writing, and the host they were measured on.

Each file is one JSON document (``.json`` or ``.json.gz``) that follows `flashladder.results.schema`, with the digest of
its own content; one of an earlier version is migrated on reading (`flashladder.results.migrations`).

Run:
    python -m flashladder.results results/h200/bench.json.gz     # validates; exit 1 when the file does not hold
    python -m flashladder.results --seal results/h200            # writes machine.json and SHA256SUMS of the folder
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
import gzip
import hashlib
import os
from pathlib import Path
import platform
import re
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import dump_json, files_in, load_json, relative, sha256, unpacked, utf8, write_atomic
from flashladder.results.migrations import digest_of, migrate, version_of, with_digest
from flashladder.results.schema import AnyResult, Host, Origin

Kind = TypeVar("Kind", bound=Origin)

OTHER_FILE = "choose another --out"
SIGNATURE = "SHA256SUMS.sig"  # a person's, over the seal (`flashladder.results.signature`)
SEAL = "SHA256SUMS"  # of a machine's folder: raw samples cannot be derived again, so that their bytes are noted
_SEAL_LINE = re.compile(r"[0-9a-f]{64}  .+")


def this_host() -> Host:
    """The machine we run on; its name enters as a digest only."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = (line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("model name"))
        cpu = next(lines, cpu).split(":")[-1].strip()
    digest = hashlib.sha256(platform.node().encode()).hexdigest()[:16]
    system = f"{platform.system()} {platform.machine()}"
    return Host(digest=digest, cpu=cpu, n_cpus=os.cpu_count() or 1, system=system, python=platform.python_version())


def write_result(path: Path, result: Origin) -> Path:
    """Writes a result, compressed when `path` ends in ``.gz``; the same result always gives the same bytes."""
    text = dump_json(with_digest(result.model_dump(mode="json")))
    return write_atomic(path, gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text)


def read_json(path: Path) -> Any:
    """The JSON document in a plain or gzip-compressed file.

    Raises:
        FlashladderError: no such file, not gzip, damaged, or not JSON.
    """
    try:
        return _document(path.read_bytes(), packed=path.suffix == ".gz")
    except OSError as error:  # gzip.BadGzipFile is one as well
        found = error.strerror or str(error)
        raise FlashladderError("cannot read the result", where=relative(path), found=found) from error
    except ValueError as error:
        raise FlashladderError("not a JSON result", where=relative(path), found=str(error)) from error


def _document(raw: bytes, *, packed: bool) -> Any:
    return load_json(unpacked(raw) if packed else raw)


@lru_cache(maxsize=1)
def _unchanged(raw: bytes, *, packed: bool) -> Any:
    """The document for readers that leave it as it is: who describes a file asks for its result and its identity."""
    return _document(raw, packed=packed)


@lru_cache(maxsize=48)  # what is committed, 180 MB
def _validated(raw: bytes, *, packed: bool) -> AnyResult:
    """The result in a file's bytes; the gate and the report ask for one file many times."""
    return TypeAdapter[AnyResult](AnyResult).validate_python(migrate(_unchanged(raw, packed=packed)))


@lru_cache(maxsize=256)
def _identity(raw: bytes, *, packed: bool) -> tuple[int | None, str]:
    document = _unchanged(raw, packed=packed)
    version = version_of(document)
    return version, "" if version is None else digest_of(document)


def identity(path: Path) -> tuple[int | None, str]:
    """Schema version of a JSON file and the digest of its content; (None, "") for what is no result.

    Raises:
        FlashladderError: as `read_json`.
    """
    try:
        return _identity(path.read_bytes(), packed=path.suffix == ".gz")
    except (OSError, ValueError):
        read_json(path)  # which says why
        raise


def load_result(path: Path) -> AnyResult:
    """Reads and validates a result file of any kind.

    Raises:
        FlashladderError: unreadable, no result, or of a newer schema version.
        CheckFailed: the document does not follow the schema; the message names the first offending key.
    """
    try:
        return _validated(path.read_bytes(), packed=path.suffix == ".gz")
    except FlashladderError as error:  # of another version
        raise FlashladderError(
            error.what, where=relative(path), expected=error.expected, found=error.found, hint=error.hint
        ) from error
    except (OSError, ValueError) as error:
        if not isinstance(error, ValidationError):
            read_json(path)  # which says why it cannot be read
            raise
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        found = first.get("input")
        whole = isinstance(found, Mapping | Sequence) and not isinstance(found, str)  # the message names what is wrong
        told = first["msg"].removeprefix("Value error, ")
        raise CheckFailed(f"{key}: {told}", where=relative(path), found=None if whole else found) from error


def load_as(path: Path, kind: type[Kind], hint: str | None = None) -> Kind:
    """Reads a result file that must be of one kind.

    Raises:
        FlashladderError: as `load_result`, and a result of another kind.
    """
    result = load_result(path)
    if not isinstance(result, kind):
        raise FlashladderError(
            "a result of another kind",
            where=relative(path),
            expected=kind.model_fields["kind"].default,
            found=result.kind,
            hint=hint,
        )
    return result


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file under `folder` by its path from there, but for the seal itself and its signature."""
    files = {path.relative_to(folder).as_posix(): path for path in files_in(folder) if path.is_file()}
    return {name: sha256(files[name].read_bytes()) for name in sorted(files) if name not in (SEAL, SIGNATURE)}


def _seal_text(digests: Mapping[str, str]) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def seal(folder: Path) -> Path:
    """Writes the digests of all files in `folder`, as ``sha256sum -c`` reads them.

    Raises:
        FlashladderError: no such folder.
    """
    if not folder.is_dir():
        raise FlashladderError("no such folder to seal", where=relative(folder))
    return write_atomic(folder / SEAL, _seal_text(_digests(folder)))


def seal_problems(folder: Path) -> list[str]:
    """One line per file of `folder` that its seal does not hold, or holds otherwise; empty when all is as sealed."""
    path, hint = folder / SEAL, f"if that is meant: python -m flashladder.results --seal {relative(folder)}"
    if not path.is_file():
        return [f"{relative(path)}: is missing; {hint}"]
    try:
        text = utf8(path.read_bytes(), path)  # as it is: a changed line end is an edit
    except FlashladderError as error:
        return [f"{relative(path)}: {error.what}; {hint}"]
    for number, line in enumerate(text.splitlines(), 1):
        if not _SEAL_LINE.fullmatch(line):
            return [f"{relative(path)}: line {number}: not a line of sha256sum; {hint}"]
    noted = {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
    found = _digests(folder)
    edited = {name for name in noted.keys() & found.keys() if noted[name] != found[name]}
    problems = [
        f"{relative(folder / name)}: {what}; {hint}"
        for names, what in (
            (noted.keys() - found.keys(), "is sealed, but missing"),
            (found.keys() - noted.keys(), "is not sealed"),
            (edited, "edited since it was sealed"),
        )
        for name in sorted(names)
    ]
    return problems or ([] if text == _seal_text(found) else [f"{relative(path)}: not sorted sha256sum lines; {hint}"])
