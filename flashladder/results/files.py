"""Reads, validates and writes result files, and describes the host.

Each file is one JSON document (``.json`` or ``.json.gz``) that follows `flashladder.results.schema`, and holds the
digest of its own content.
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

DIGEST = "content_sha256"  # the one key of a document that no model has
VERSION = "schema_version"
OTHER_FILE = "choose another --out"
RESTORE = "restore the file, or measure again"
Kind = TypeVar("Kind", bound=Origin)
Answer = TypeVar("Answer")


def with_digest(document: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with the digest of its own content."""
    return {**document, DIGEST: digest_of(document)}


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of a document without its digest, as JSON with sorted keys and without blanks."""
    return sha256(json.dumps(_without_digest(document), sort_keys=True, separators=(",", ":")))


def _without_digest(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != DIGEST}


def machine_name(gpu_name: str) -> str:
    """The name of a GPU model's folder: ``h200`` for a known one, else its name made safe for a path."""
    return gpu_key(gpu_name) or re.sub(r"[^a-z0-9]+", "_", gpu_name.lower()).strip("_")


def this_host() -> Host:
    """This machine; its name enters as a digest only."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = (line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("model name"))
        cpu = next(lines, cpu).split(":")[-1].strip()
    digest = hashlib.sha256(platform.node().encode()).hexdigest()[:16]
    system = f"{platform.system()} {platform.machine()}"
    return Host(digest=digest, cpu=cpu, n_cpus=os.cpu_count() or 1, system=system, python=platform.python_version())


def write_result(path: Path, result: Origin) -> Path:
    """Writes a result, compressed if `path` ends in ``.gz``; equal results give equal bytes."""
    text = dump_json(with_digest(result.model_dump(mode="json")))
    return write_atomic(path, gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text)


def read_json(path: Path) -> Any:
    """The JSON in a plain or gzip-compressed file; `FlashladderError` if missing, damaged, not gzip, or not JSON."""
    return _of_file(_document, path)


def identity(path: Path) -> tuple[int | None, str | None, str]:
    """Schema version (None: no result), stored digest and computed digest of a document; errors as `read_json`."""
    document = _of_file(_last_document, path)
    version, kind = (document.get(key) if isinstance(document, dict) else None for key in (VERSION, "kind"))
    # Committed predictions and counters have their own versions. A compressed file without a kind is a damaged result.
    other = path.suffix == ".json" and RESULTS in path.resolve().parents and kind not in KINDS
    if not isinstance(version, int) or isinstance(version, bool) or other:
        return None, None, ""
    return version, document.get(DIGEST), digest_of(document)


def load_result(path: Path) -> AnyResult:
    """Reads a result of any kind. `FlashladderError`: no readable result of this schema; `CheckFailed`: a wrong key."""
    try:
        result = _of_file(_validated, path)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        value, what = first.get("input"), first["msg"].removeprefix("Value error, ")
        container = isinstance(value, Mapping | Sequence) and not isinstance(value, str)  # too long to print
        raise CheckFailed(f"{key}: {what}", where=relative(path), found=None if container else value) from error
    if isinstance(result, Result):
        folder, gpu, known = path.absolute().parent.name, result.gpu.name, load_gpus()
        if (expected := gpu_key(gpu)) and folder in known and folder != expected:  # tables take the GPU of the folder
            what, hint = "a result of another GPU than its folder's", f"move it into the folder {expected}"
            raise FlashladderError(what, where=relative(path), expected=known[folder].title, found=gpu, hint=hint)
    return result


def load_as(path: Path, kind: type[Kind], hint: str | None = None) -> Kind:
    """Reads a result of one kind; errors as `load_result`, and FlashladderError for another kind."""
    result = load_result(path)
    if not isinstance(result, kind):
        what, expected = "a result of another kind", kind.model_fields["kind"].default
        raise FlashladderError(what, where=relative(path), expected=expected, found=result.kind, hint=hint)
    return result


def _of_file(read: Callable[[bytes, bool], Answer], path: Path) -> Answer:
    """`read(bytes, packed)` of a file; errors name the file."""
    try:
        return read(path.read_bytes(), path.suffix == ".gz")
    except ValidationError:  # a ValueError that `load_result` explains
        raise
    except FlashladderError as error:
        error.where = relative(path)
        raise
    except OSError as error:  # gzip.BadGzipFile is one as well
        found = error.strerror or str(error)
        raise FlashladderError("cannot read the result", where=relative(path), found=found) from error
    except ValueError as error:
        raise FlashladderError("not a JSON result", where=relative(path), found=str(error), hint=RESTORE) from error


def _document(raw: bytes, packed: bool) -> Any:
    return load_json(unpacked(raw) if packed else raw)


_last_document = lru_cache(maxsize=1)(_document)  # a verifier asks for a file's result and then for its identity


@lru_cache(maxsize=48)  # the committed files, 180 MB: gate and report read each many times
def _validated(raw: bytes, packed: bool) -> AnyResult:
    document = _last_document(raw, packed)
    if isinstance(document, dict):
        version = document.get(VERSION, "none")
    else:
        version = "a list" if isinstance(document, list) else json.dumps(document)
    if version is True or version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        what, hint = ("a newer", "update flashladder: git pull") if newer else ("another", RESTORE)
        expected, found = f"{VERSION} {SCHEMA_VERSION}", str(version)[:40]
        raise FlashladderError(f"result of {what} schema", expected=expected, found=found, hint=hint)
    return TypeAdapter[AnyResult](AnyResult).validate_python(_without_digest(document))
