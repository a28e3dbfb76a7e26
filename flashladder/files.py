"""Paths of the checkout, digests, and writes that are whole or not there at all."""

from __future__ import annotations

from collections.abc import Iterable
import hashlib
import json
import os
from pathlib import Path
import tempfile

from flashladder.errors import FlashladderError
from flashladder.paths import ITERATIONS, ROOT


def last_iteration(folder: Path = ITERATIONS) -> int:
    """The highest number that a file of the ladder in `folder` bears, 0 when there is none; reads no file."""
    return max((int(path.name[:2]) for path in folder.glob("[0-9][0-9]_*.yaml")), default=0)


def relative(path: Path) -> str:
    """`path` as a person would type it from the checkout's root."""
    try:
        return path.resolve().relative_to(ROOT).as_posix()
    except ValueError:
        return str(path)


def sha256(data: bytes | str) -> str:
    """SHA-256 of bytes or of UTF-8 text, in lower-case hex."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def write_atomic(path: Path, data: bytes | str) -> Path:
    """Writes `data` beside `path` and renames it into place, so that a reader never sees half a file.

    Raises:
        FlashladderError: the disk is full, the folder cannot be written, or `path` is something else than a file.
    """
    if path.exists() and not path.is_file():
        raise FlashladderError("not a regular file, so that it is not replaced", where=relative(path))
    raw = data.encode() if isinstance(data, str) else data
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(raw)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FlashladderError(
            f"could not write the file ({error.strerror})", where=relative(path), hint="free space or fix permissions"
        ) from error
    return path


def dump_json(value: object) -> str:
    """JSON as this project commits it: sorted keys, two spaces, one final newline."""
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def digest_files(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of each file's bytes, keyed by its path from the checkout's root."""
    return {relative(path): sha256(path.read_bytes()) for path in sorted(paths)}
