"""Result files: reading, validating, migrating, writing, and the host they were measured on.

Each file is one JSON document (``.json`` or ``.json.gz``) that follows `flashladder.results.schema`, with the digest of
its own content. A document of an earlier schema version is migrated on reading, by one step per version:

    1  the first
    2  whole: every key is written, also where it holds its default; and ``content_sha256``, the digest of the rest

Run:
    python -m flashladder.results results/h200/bench.json.gz     # validates; exit 1 when the file does not hold
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import copy
from functools import lru_cache
import gzip
import hashlib
import json
import os
from pathlib import Path
import platform
import re
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import dump_json, load_json, relative, sha256, unpacked, write_atomic
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.results.schema import SCHEMA_VERSION, AnyResult, Host, Origin, Result

Document = dict[str, Any]
DIGEST = "content_sha256"  # the one key that is about the document's text and in no model
VERSION = "schema_version"


def with_digest(document: Mapping[str, Any]) -> Document:
    """`document` with the digest of its own content."""
    return {**document, DIGEST: digest_of(document)}


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of everything in a document but the digest itself, as JSON with sorted keys and without blanks."""
    content = {key: value for key, value in document.items() if key != DIGEST}
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")))


def version_of(document: object) -> int | None:
    """The schema version that a document says it has; None for what is no result of any version."""
    found = document.get(VERSION) if isinstance(document, Mapping) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def migrate(document: Document) -> Document:
    """The document as the newest version writes it, without its digest; the argument is left as it is.

    Raises:
        FlashladderError: it is no result document, or newer than this package.
    """
    version = version_of(document)
    if version is None or version > SCHEMA_VERSION:
        newer = version is not None
        raise FlashladderError(
            "result of a newer schema" if newer else "result of another schema",
            expected=f"{VERSION} {SCHEMA_VERSION}" + (" or older" if newer else ""),
            found=_told(document),
            hint="update flashladder: git pull" if newer else None,
        )
    content = {key: value for key, value in document.items() if key != DIGEST}
    if version < SCHEMA_VERSION:
        content = copy.deepcopy(content)
    for step in range(version, SCHEMA_VERSION):
        content = {**STEPS[step](content), VERSION: step + 1}
    return content


def _told(document: object) -> str:
    """What stands in the place of the version."""
    found = document.get(VERSION, "none") if isinstance(document, Mapping) else type(document).__name__
    return str(found)[:40]


def _whole(document: Document) -> Document:
    """1 to 2: keys that had a default are written."""
    for kernel in _values(document.get("kernels")):
        _fill(kernel, variant="", build=None, registers=None, spill_stores=None, spill_loads=None)
    if isinstance(reference := document.get("reference"), dict):
        _fill(reference, version=None, tile=None)
    match document.get("kind"):
        case "bench":
            _fill(document, purpose="report", mode="event-free", references={}, sweep=None)
            _fill(document, summaries=[], means=[], floors_pct={})
            for group in _values(document.get("groups")):
                for series in _values(group.get("series")):
                    _fill(series, before=None, after=None)
                    _unbiased(series["before"], series["after"])
                for block in _values(group.get("blocks")):
                    _fill(block, dropped=None, late=None)
            for process in _values(document.get("processes")):
                _fill(process, foreign_after=None)
        case "check":
            _fill(document, rule=None)
            _cases(document)
        case "emulated-check":
            _cases(document)
        case "counters":
            _fill(document, mode="ncu-base")
    return document


def _cases(document: Document) -> None:
    for case in _values(document.get("cases")):
        _fill(case, reason=None, accuracy=None, repeats=0)
        _unbiased(case["accuracy"])


def _unbiased(*errors: object) -> None:
    """Errors from before their mean was looked at."""
    for one in errors:
        if isinstance(one, dict):
            _fill(one, bias=None, bias_allowed=None, row_bias=None, row_bias_allowed=None)


def _fill(one: Document, **defaults: object) -> None:
    for name, value in defaults.items():
        one.setdefault(name, value)


def _values(part: object) -> list[Document]:
    """The objects in a list or in a mapping; what is malformed is left to the schema, which names it."""
    found = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [one for one in found if isinstance(one, dict)]


STEPS: Mapping[int, Callable[[Document], Document]] = {1: _whole}
"""Version to the function that makes a document of the next one."""


Kind = TypeVar("Kind", bound=Origin)
Answer = TypeVar("Answer")

OTHER_FILE = "choose another --out"


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


class Identity(NamedTuple):
    """Schema version of a JSON document (None: it is no result), the digest that it notes, and that of its content."""

    version: int | None
    noted: str | None
    found: str


def identity(path: Path) -> Identity:
    """What a JSON file says that it is.

    Raises:
        FlashladderError: as `read_json`.
    """
    document = _of_file(_last_document, path)
    version = version_of(document)
    return Identity(None, None, "") if version is None else Identity(version, document.get(DIGEST), digest_of(document))


def load_result(path: Path) -> AnyResult:
    """Reads and validates a result file of any kind.

    Raises:
        FlashladderError: unreadable, no result, of a newer schema version, or in a folder named after another GPU.
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
        _require_own_folder(path, result.gpu.name)
    return result


def _require_own_folder(path: Path, gpu_name: str) -> None:
    """Refuses a result of one known GPU in the folder of another, whose tables it would enter under a wrong name."""
    folder, key = path.absolute().parent.name, gpu_key(gpu_name)
    if key and folder in load_gpus() and folder != key:
        raise FlashladderError(
            "a result of another GPU than its folder's", where=relative(path), expected=load_gpus()[folder].title,
            found=gpu_name, hint=f"a file of {folder} belongs there, this one into the folder {key}",
        )  # fmt: skip


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
    return TypeAdapter[AnyResult](AnyResult).validate_python(migrate(_last_document(raw, packed)))


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
