"""Result files that cannot be read, or break their schema: each a line that says what, where and why."""

from __future__ import annotations

from contextlib import nullcontext
import gzip
import json
from pathlib import Path
import re
from typing import Any

from pydantic import ValidationError
import pytest

from flashladder.emulate.reading import READING
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.paths import ROOT
from flashladder.results.derive import derive
from flashladder.results.files import DIGEST, identity, load_result, read_json, write_result
from flashladder.results.schema import Failure, PlannedCell, Sweep
from tests.data_files import table_of
from tests.null.bench_fixture import FAST, SHAPE, result


def told(path: Path, read: Any, kind: type[FlashladderError] = FlashladderError) -> str:
    with pytest.raises(kind) as caught:
        read(path)
    return str(caught.value)


UNREADABLE = [
    ("none.json", None, "cannot read the result: found No such file or directory"),
    ("broken.json", b"{", ("not a JSON result: found Expecting property name enclosed in double quotes: "
                          "line 1 column 2 (char 1); restore the file, or measure again")),
    ("empty.json.gz", gzip.compress(b"", mtime=0),
     "not a JSON result: found an empty file; restore the file, or measure again"),
    ("cut.json.gz", gzip.compress(b"{}", mtime=0)[:-6],
     ("not a JSON result: found Compressed file ended before the end-of-stream marker was reached; restore the file, "
      "or measure again")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "message"), UNREADABLE)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    for read in (read_json, identity, load_result):
        assert told(path, read) == f"{path}: {message}"


def test_a_documents_identity_is_its_version_and_the_digest_of_its_content(tmp_path: Path) -> None:
    for name in ("a.json", "a.json.gz"):
        path = write_result(tmp_path / name, result())
        assert identity(path) == (2, read_json(path)[DIGEST], read_json(path)[DIGEST])
    (tmp_path / "note.json").write_text('{"schema_version": "2"}', encoding="utf-8")
    assert identity(tmp_path / "note.json") == (None, None, "")


def test_committed_counters_are_no_result_however_their_path_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for path in (READING, READING.relative_to(ROOT)):
        assert identity(path) == (None, None, "")


@pytest.mark.parametrize(("edit", "message"), table_of("null/results/result_files", "keys"))
def test_the_first_offending_key_is_named_with_what_stands_there(tmp_path: Path, edit: str, message: str) -> None:
    document = json.loads(derive(result()).model_dump_json())
    exec(edit, {"d": document})
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert told(path, load_result, CheckFailed) == f"{path}: {message}"


@pytest.mark.parametrize(("planned", "failed", "message"), table_of("null/results/result_files", "cells"))
def test_a_sweeps_cells_are_planned_once_and_fail_once(planned: str, failed: str, message: str | None) -> None:
    cell = PlannedCell(subject="16", config=FAST, dtype="fp16", shape=SHAPE, code="c", address="a" * 16)
    cells = tuple(cell.model_copy(update={"address": one * 16}) for one in planned)
    failures = tuple(Failure(address=one * 16, kind="crash", message="died") for one in failed)
    with pytest.raises(ValidationError, match=f"Value error, {message}") if message else nullcontext():
        assert Sweep(grid="g", grid_sha256="0" * 64, planned=cells, failures=failures).failures == failures


@pytest.mark.parametrize(
    ("document", "words"),
    [({"schema_version": 7}, "newer schema: expected schema_version 2, found 7; update flashladder"),
     ({"schema_version": 1}, "another schema: expected schema_version 2, found 1"), ({}, "found none"),
     ({"schema_version": True}, "found True"), ([], "found a list"), (None, "found null")],
)  # fmt: skip
def test_what_is_no_result_or_of_another_version_says_so(tmp_path: Path, document: object, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert words in told(path, load_result)


def test_a_result_of_another_gpu_than_its_folders_is_refused(tmp_path: Path) -> None:
    """The tables of a folder are made under its GPU's name."""
    own, path = result(), tmp_path / "h100" / "persistent.json.gz"
    for name in ("NVIDIA H100 80GB HBM3", "a card without a file", "NVIDIA H200"):
        write_result(path, own.model_copy(update={"gpu": own.gpu.model_copy(update={"name": name})}))
        if name != "NVIDIA H200":
            assert load_result(path).kind == "bench"
    line = told(path, load_result)
    assert re.search(r"h100/persistent\.json\.gz: .*expected H100.*found NVIDIA H200.*h200", line)
