"""Result files that cannot be read, or break their schema: each a line that says what, where and why."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
import platform
import re
from typing import Any

from pydantic import ValidationError
import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.paths import ROOT
from flashladder.problem import Shape
from flashladder.results import files
from flashladder.results.__main__ import main
from flashladder.results.derive import derive
from flashladder.results.files import (
    DIGEST,
    digest_of,
    identity,
    load_result,
    read_json,
    write_result,
)
from flashladder.results.schema import Failure, Opinion, PlannedCell, Sweep, Timings
from tests.null.bench_fixture import FAST, SHAPE, result
from tests.null.sweep_fixture import emulated_document

FIRST = ROOT / "tests" / "data" / "results_v1"


def told(path: Path, read: Any) -> str:
    with pytest.raises(FlashladderError) as caught:
        read(path)
    return str(caught.value)


UNREADABLE = [
    ("none.json", None, "cannot read the result: found No such file or directory"),
    ("plain.json.gz", b"{}", "cannot read the result: found Not a gzipped file (b'{}')"),
    ("broken.json", b"{", ("not a JSON result: found Expecting property name enclosed in double quotes: "
                          "line 1 column 2 (char 1)")),
    ("cut.json.gz", gzip.compress(b"{}", mtime=0)[:-6],
     "not a JSON result: found Compressed file ended before the end-of-stream marker was reached"),
    ("long.json", b'{"a": ' + b"9" * 5000 + b"}", "not a JSON result: found an integer of more than 4300 digits"),
    ("latin.json", b'"\xe4"', "not a JSON result: found not UTF-8 (byte 0xe4 at offset 1)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "message"), UNREADABLE)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    for read in (read_json, identity, load_result):
        assert told(path, read) == f"{path}: {message}"


@pytest.mark.parametrize("old", [False, True], ids=["of this version", "of an old one"])
def test_what_a_reader_does_to_a_document_is_not_in_what_the_next_one_reads(old: bool, tmp_path: Path) -> None:
    path = write_result(tmp_path / "bench.json", result())
    if old:
        path.write_bytes((FIRST / "bench.json").read_bytes())
    text = json.loads(path.read_text(encoding="utf-8"))
    for read in (load_result, identity, read_json):
        read(path)
        mine = read_json(path)
        assert mine == text
        mine["kernels"].clear()
        del mine["schema_version"]
    version = text["schema_version"]
    assert identity(path)[::2] == (version, digest_of(text))
    files._validated.cache_clear()
    assert load_result(path).model_dump()["kernels"]
    assert identity(path)[::2] == (version, digest_of(text))


def test_a_documents_identity_is_its_version_and_the_digest_of_its_content(tmp_path: Path) -> None:
    for name in ("a.json", "a.json.gz"):
        path = write_result(tmp_path / name, result())
        assert identity(path) == (2, read_json(path)[DIGEST], read_json(path)[DIGEST])
    (tmp_path / "note.json").write_text('{"schema_version": "2"}', encoding="utf-8")
    assert identity(tmp_path / "note.json") == (None, None, "")
    old = FIRST / "check.json"
    assert identity(old) == (1, None, digest_of(json.loads(old.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("d['mode'] = 'fast'", "bench.mode: Input should be 'event-free', 'event-locked' or 'ncu-base': found fast"),
        ("d['groups'] = 5", "bench.groups: Input should be a valid tuple: found 5"),
        ("d['groups'][0]['shape']['batch'] = 0", "bench.groups.0.shape.batch: Input should be greater than 0: found 0"),
        ("d['gpu'] = ['x']", "bench.gpu: Input should be a valid dictionary or instance of Gpu"),
        ("d.pop('gpu')", "bench.gpu: Field required"),
        ("d['summaries'][0]['pct'] = 1.0", ("bench.summaries.0: 01 (FP16, 128, 64, 64, 4): async+load_0_0_0_tiles fp16 "
         "S=4096: 1 % is not within its interval, ")),
    ],
)  # fmt: skip
def test_the_first_offending_key_is_named_with_what_stands_there(tmp_path: Path, edit: str, message: str) -> None:
    document = json.loads(derive(result()).model_dump_json())
    exec(edit, {"d": document})
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(CheckFailed) as caught:
        load_result(path)
    found = str(caught.value)
    if message.endswith(", "):
        assert found.startswith(f"{path}: {message}")
        assert ": found" not in found
    else:
        assert found == f"{path}: {message}"


def test_a_compressed_file_tells_no_time(tmp_path: Path) -> None:
    raw = write_result(tmp_path / "a.json.gz", result()).read_bytes()
    assert raw[4:8] == bytes(4)


def test_what_is_written_holds_json_values_alone(tmp_path: Path) -> None:
    path = write_result(tmp_path / "a.json", result())
    assert read_json(path) == {**result().model_dump(mode="json"), DIGEST: read_json(path)[DIGEST]}


class FakeInfo:
    """What /proc/cpuinfo might hold."""

    text: str | None = None

    def __init__(self, name: str) -> None:
        assert name == "/proc/cpuinfo"

    def is_file(self) -> bool:
        return self.text is not None

    def read_text(self, encoding: str) -> str:
        assert encoding == "utf-8"
        return str(self.text)


@pytest.mark.parametrize(
    ("text", "processor", "cpu"),
    [
        ("processor: 0\nmodel name\t: Core: 7\nmodel name\t: other\n", "x86", "7"),
        ("model name\t: AMD EPYC\n", "", "AMD EPYC"),
        ("processor: 0\n", "x86", "x86"),
        (None, "x86", "x86"),
        (None, "", "m68k"),
    ],
)
def test_the_host_is_its_processor(monkeypatch: pytest.MonkeyPatch, text: str | None, processor: str, cpu: str) -> None:
    monkeypatch.setattr(files, "Path", type("Info", (FakeInfo,), {"text": text}))
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(platform, "machine", lambda: "m68k")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "node", lambda: "somewhere")
    monkeypatch.setattr(os, "cpu_count", lambda: None if text is None else 48)
    host = files.this_host()
    assert (host.cpu, host.n_cpus, host.system) == (cpu, 1 if text is None else 48, "Linux m68k")
    assert host.digest == "92b6359c721fcf6f"  # of the name, cut short
    assert host.python == platform.python_version()


def test_the_validator_tells_what_it_read_and_refuses_what_was_edited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_result(tmp_path / "bench.json", result())
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: bench, 2 kernels on NVIDIA Example 1\n"
    cpu = write_result(tmp_path / "sweep.json", emulated_document(cell("0" * 16), "smoke", "0" * 64))
    assert main([str(cpu)]) == 0
    assert capsys.readouterr().out == f"{cpu}: emulated-sweep, 1 kernels on c\n"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rung": "other"}), encoding="utf-8")
    with pytest.raises(CheckFailed) as caught:
        main(["--migrate", str(path)])
    assert str(caught.value) == f"{path}: edited since it was written, and not written anew"


def cell(address: str) -> PlannedCell:
    return PlannedCell(subject="16", config=FAST, dtype="fp16", shape=SHAPE, code="c", address=address)


@pytest.mark.parametrize(
    ("planned", "failed", "message"),
    [
        (("a", "b"), (), None),
        (("a", "b"), ("b",), None),
        (("a", "b", "a"), (), "cell aaaaaaaaaaaaaaaa is planned twice"),
        (("a", "b"), ("b", "b"), "cell bbbbbbbbbbbbbbbb is failed twice"),
        (("a",), ("c", "b"), "cell bbbbbbbbbbbbbbbb failed, but was not planned"),
    ],
)
def test_a_sweeps_cells_are_planned_once_and_fail_once(
    planned: tuple[str, ...], failed: tuple[str, ...], message: str | None
) -> None:
    failures = tuple(Failure(address=one * 16, kind="crash", message="died") for one in failed)
    given: dict[str, Any] = {"planned": tuple(cell(one * 16) for one in planned), "failures": failures}
    if message is None:
        assert Sweep(grid="g", grid_sha256="0" * 64, **given).failures == failures
        return
    with pytest.raises(ValidationError) as caught:
        Sweep(grid="g", grid_sha256="0" * 64, **given)
    assert caught.value.errors()[0]["msg"] == f"Value error, {message}"


def test_an_opinion_is_found_by_its_subject() -> None:
    one, two = (Timings(subject=name, rounds=(0,), us=(1.0,)) for name in ("fa2", "16"))
    shape = Shape(batch=1, seq_len=512, n_heads=16, d_head=128)
    found = Opinion(method="ncu", mode="ncu-base", version="1", dtype="fp16", shape=shape, timings=(one, two))
    assert [found.of(name) for name in ("16", "fa2", "07")] == [two, one, None]


def test_a_result_of_another_gpu_than_its_folders_is_refused(tmp_path: Path) -> None:
    """The tables of a folder are made under its GPU's name."""
    own = result()
    path = tmp_path / "h100" / "persistent.json.gz"
    for name, refused in (("NVIDIA H200", True), ("NVIDIA H100 80GB HBM3", False), ("a card without a file", False)):
        write_result(path, own.model_copy(update={"gpu": own.gpu.model_copy(update={"name": name})}))
        if refused:
            assert re.search(
                r"h100/persistent\.json\.gz: .*expected H100.*found NVIDIA H200.*h200", told(path, load_result)
            )
        else:
            assert load_result(path).kind == "bench"
