"""Result files: reading, validating, writing, and the host they were measured on.

Each file is one JSON document (``.json`` or ``.json.gz``) that follows `flashladder.results.schema`, with the digest of
its own content. `invoke verify PATH` checks one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
import gzip
import hashlib
import json
import os
from pathlib import Path
import platform
import re
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import dump_json, load_json, relative, sha256, unpacked, write_atomic
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.paths import RESULTS
from flashladder.results.schema import KINDS, SCHEMA_VERSION, AnyResult, Host, Origin, Result

DIGEST = "content_sha256"  # the one key that is about the document's text and in no model
VERSION = "schema_version"
OTHER_FILE = "choose another --out"
Kind = TypeVar("Kind", bound=Origin)
Answer = TypeVar("Answer")


def with_digest(document: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with the digest of its own content."""
    return {**document, DIGEST: digest_of(document)}


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of everything in a document but the digest itself, as JSON with sorted keys and without blanks."""
    content = {key: value for key, value in document.items() if key != DIGEST}
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")))


def machine_name(gpu_name: str) -> str:
    """How this GPU model's folder is called: ``h200`` for a known one, else its name made safe for a path."""
    return gpu_key(gpu_name) or re.sub(r"[^a-z0-9]+", "_", gpu_name.lower()).strip("_")


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
    return _of_file(_document, path)


def identity(path: Path) -> tuple[int | None, str | None, str]:
    """Schema version of a JSON document (None: it is no result), the digest that it notes, and that of its content.

    Raises:
        FlashladderError: as `read_json`.
    """
    document = _of_file(_last_document, path)
    version, kind = (document.get(key) if isinstance(document, dict) else None for key in (VERSION, "kind"))
    # Committed predictions and counters have versions of their own; a packed result without its kind is a damaged one.
    other = path.suffix == ".json" and RESULTS in path.resolve().parents and kind not in KINDS
    if not isinstance(version, int) or isinstance(version, bool) or other:
        return None, None, ""
    return version, document.get(DIGEST), digest_of(document)


def load_result(path: Path) -> AnyResult:
    """Reads and validates a result file of any kind.

    Raises:
        FlashladderError: unreadable, no result, of another schema version, or in a folder named after another GPU.
        CheckFailed: the document does not follow the schema; the message names the first offending key.
    """
    try:
        result = _of_file(_validated, path)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        found = first.get("input")
        whole = isinstance(found, Mapping | Sequence) and not isinstance(found, str)  # the message names what is wrong
        told = first["msg"].removeprefix("Value error, ")
        raise CheckFailed(f"{key}: {told}", where=relative(path), found=None if whole else found) from error
    if isinstance(result, Result):
        folder, gpu, known = path.absolute().parent.name, result.gpu.name, load_gpus()
        if (own := gpu_key(gpu)) and folder in known and folder != own:  # else it enters tables under a wrong name
            raise FlashladderError(
                "a result of another GPU than its folder's", where=relative(path), expected=known[folder].title,
                found=gpu, hint=f"a file of {folder} belongs there, this one into the folder {own}",
            )  # fmt: skip
    return result


def load_as(path: Path, kind: type[Kind], hint: str | None = None) -> Kind:
    """Reads a result file that must be of one kind.

    Raises:
        FlashladderError: as `load_result`, and a result of another kind.
    """
    result = load_result(path)
    if not isinstance(result, kind):
        expected = kind.model_fields["kind"].default
        raise FlashladderError(
            "a result of another kind", where=relative(path), expected=expected, found=result.kind, hint=hint
        )
    return result


def _of_file(read: Callable[[bytes, bool], Answer], path: Path) -> Answer:
    """`read(bytes, packed)` of a file; its errors name the file."""
    try:
        return read(path.read_bytes(), path.suffix == ".gz")
    except ValidationError:
        raise
    except FlashladderError as error:  # of another version
        error.where = relative(path)
        raise
    except OSError as error:  # gzip.BadGzipFile is one as well
        found = error.strerror or str(error)
        raise FlashladderError("cannot read the result", where=relative(path), found=found) from error
    except ValueError as error:
        raise FlashladderError("not a JSON result", where=relative(path), found=str(error)) from error


def _document(raw: bytes, packed: bool) -> Any:
    return load_json(unpacked(raw) if packed else raw)


_last_document = lru_cache(maxsize=1)(_document)  # whoever verifies a file asks for its result and its identity


@lru_cache(maxsize=48)  # what is committed, 180 MB
def _validated(raw: bytes, packed: bool) -> AnyResult:
    """The result in a file's bytes; the gate and the report ask for one file many times."""
    document = _last_document(raw, packed)
    version = document.get(VERSION, "none") if isinstance(document, dict) else type(document).__name__
    if version is True or version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        raise FlashladderError(
            "result of a newer schema" if newer else "result of another schema",
            expected=f"{VERSION} {SCHEMA_VERSION}",
            found=str(version)[:40],
            hint="update flashladder: git pull" if newer else None,
        )
    content = {key: value for key, value in document.items() if key != DIGEST}
    return TypeAdapter[AnyResult](AnyResult).validate_python(content)
