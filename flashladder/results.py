"""Result files: reading, validating, writing, and the host they were measured on.

Each file is one JSON document (``.json`` or ``.json.gz``) that follows `flashladder.result_schema`.

Run:
    python -m flashladder.results results/h200/bench.json.gz     # validates; exit 1 when the file does not hold
"""

from __future__ import annotations

from collections.abc import Mapping
import gzip
import hashlib
import json
import os
from pathlib import Path
import platform
import sys
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import dump_json, relative, write_atomic
from flashladder.result_schema import SCHEMA_VERSION, AnyResult, Host, Result


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


def write_result(path: Path, result: Result) -> Path:
    """Writes a result, compressed when `path` ends in ``.gz``; the same result always gives the same bytes."""
    text = dump_json(result.model_dump(mode="json"))
    return write_atomic(path, gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text)


def read_json(path: Path) -> Any:
    """The JSON document in a plain or gzip-compressed file.

    Raises:
        FlashladderError: no such file, not gzip, or not JSON.
    """
    try:
        raw = path.read_bytes()
        return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except OSError as error:  # gzip.BadGzipFile is one as well
        raise FlashladderError("cannot read the result", where=relative(path), found=str(error)) from error
    except (EOFError, ValueError) as error:
        raise FlashladderError("not a JSON result", where=relative(path), found=str(error)) from error


def load_result(path: Path) -> AnyResult:
    """Reads and validates a result file of any kind.

    Raises:
        FlashladderError: unreadable, or another schema version.
        CheckFailed: the document does not follow the schema; the message names the first offending key.
    """
    document = read_json(path)
    version = document.get("schema_version") if isinstance(document, Mapping) else None
    if version != SCHEMA_VERSION:
        raise FlashladderError("result of another schema", where=relative(path), expected=SCHEMA_VERSION, found=version)
    try:
        return TypeAdapter[AnyResult](AnyResult).validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise CheckFailed(f"{key}: {first['msg']}", where=relative(path), found=first.get("input")) from error


def main(paths: list[str]) -> int:
    """Validates result files; exit code 1 when one does not hold."""
    if not paths or "--help" in paths:
        print("usage: python -m flashladder.results FILE...   example: ... results/h200/bench.json.gz")
        return 0 if paths else 2
    for name in paths:
        result = load_result(Path(name))
        print(f"{name}: {result.kind}, {len(result.kernels)} kernels on {result.gpu.name}")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main(sys.argv[1:]))
