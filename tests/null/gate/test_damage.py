"""`verify` finds damage in copies of committed results: samples, summaries, cells, dtypes, hashes and tables."""

from __future__ import annotations

from collections.abc import Callable
import gzip
import json
from pathlib import Path
import shutil
from typing import Any

import pytest

from flashladder.gate import verify
from flashladder.paths import RESULTS
from flashladder.report import command as report
from flashladder.report.data import collect
from flashladder.results.derive import derive
from flashladder.results.files import load_result, read_json, with_digest, write_result
from flashladder.results.schema import BenchResult

Document = dict[str, Any]
Edit = Callable[[Document], object]

BENCH, SWEEP, CHECK = "h200/bench_split.json.gz", "h100/fewtiles.json.gz", "h200/check_persistent.json.gz"
COUNTERS, SANITIZER, ENERGY = "h200/counters.json.gz", "h200/sanitizer.json.gz", "h200/energy_sustained.json.gz"
OPINIONS, SOAK, ACCURACY = "h200/opinions.json.gz", "h200/soak.json.gz", "h200/accuracy.json.gz"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """An empty results folder with the committed locks."""
    shutil.copytree(RESULTS / "locks", tmp_path / "results" / "locks")
    return tmp_path / "results"


def damaged(results: Path, name: str, edit: Edit, *, digest: bool, again: bool = False) -> list[str]:
    """What `verify` finds in an edited copy; `digest` and `again`: whether digest and summaries are made anew."""
    path = results / name
    path.parent.mkdir(exist_ok=True)
    document = read_json(RESULTS / name)
    edit(document)
    if digest:
        document = with_digest(document)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    if again:
        made = load_result(path)
        assert isinstance(made, BenchResult)
        write_result(path, derive(made))
    if name == COUNTERS:
        shutil.copy(RESULTS / "h200" / "counters.csv", path.parent)
    return list(verify.verify_file(path).details)


def series(document: Document, index: int = 1) -> Document:
    found: Document = [one for one in document["groups"][0]["series"] if one["kernel"] != "reference"][index - 1]
    return found


def kernel(document: Document) -> Document:
    found: Document = next(iter(document["kernels"].values()))
    return found


def scaled(pair: list[Any], factor: float) -> None:
    pair[3] *= factor


def slower(document: Document) -> None:
    for pair in series(document)["pairs"]:
        scaled(pair, 1.01)


def without_series(document: Document) -> None:
    """One kernel at one length is gone, with its turn in every block."""
    group = document["groups"][0]
    key = series(document)["kernel"]
    group["series"] = [one for one in group["series"] if one["kernel"] != key]
    for block in group["blocks"]:
        block["order"] = [one for one in block["order"] if one != key]


def without_block(document: Document) -> None:
    """A block is gone, with its pairs."""
    group = document["groups"][0]
    group["blocks"] = group["blocks"][:-1]
    last = len(group["blocks"])
    for one in group["series"]:
        one["pairs"] = [pair for pair in one["pairs"] if pair[0] < last]


def unplanned(document: Document) -> None:
    """A kernel's cell is gone from the plan as well as from the samples."""
    cell = next(one for one in document["sweep"]["planned"] if one["config"])
    document["sweep"]["planned"].remove(cell)
    for group in document["groups"]:
        if (group["dtype"], group["shape"]) == (cell["dtype"], cell["shape"]):
            for one in [one for one in group["series"] if one["kernel"].startswith(cell["subject"])]:
                group["series"].remove(one)
                for block in group["blocks"]:
                    block["order"] = [name for name in block["order"] if name != one["kernel"]]


def other_hash(document: Document) -> None:
    kernel(document)["text_sha256"] = "ab" * 32


def swapped_hashes(document: Document) -> None:
    a, b, *_ = document["kernels"].values()
    a["text_sha256"], b["text_sha256"] = b["text_sha256"], a["text_sha256"]


SAMPLES: list[tuple[str, Edit]] = [
    (BENCH, lambda d: scaled(series(d)["pairs"][0], 1.001)),
    (BENCH, lambda d: d["summaries"][0].update(pct=d["summaries"][0]["pct"] + 0.01)),
    (SWEEP, lambda d: scaled(series(d)["pairs"][3], 1.01)),
    (CHECK, lambda d: d["cases"][0]["accuracy"].update(max_error=1e-9)),
    (ENERGY, lambda d: d["runs"][0].update(joules=1.0)),
    (OPINIONS, lambda d: d["opinions"][0]["timings"][0]["us"].reverse()),
    (SOAK, lambda d: d["hammered"][0].update(digest="0" * 64)),
    (BENCH, lambda d: d["gpu"].update(name="NVIDIA H200 NVL")),
]

KNOWING: list[tuple[str, Edit, bool, str]] = [
    (BENCH, slower, False, "does not follow from the raw samples"),
    (BENCH, lambda d: d["summaries"][2].update(tflops=1.0), False, "summaries does not follow"),
    (BENCH, lambda d: d["summaries"].pop(), False, "not written"),
    (BENCH, lambda d: d["means"][0].update(pct_high=d["means"][0]["pct_high"] + 1), False, "means does not follow"),
    (BENCH, lambda d: d["floors_pct"].update(fp16=0.01), False, "floors_pct does not follow"),
    (BENCH, lambda d: d["groups"][0]["blocks"][0].update(dropped="because"), False, "groups does not follow"),
    (BENCH, lambda d: scaled(series(d)["pairs"][0], 0.001), True, "GPU's peaks allow"),
    (BENCH, lambda d: series(d)["pairs"].pop(), True, "pairs in each of"),
    (BENCH, lambda d: series(d)["before"].update(max_error=1.0), True, "not correct before timing"),
    (BENCH, lambda d: d["settings"].update(flush_bytes=1), True, "flush_bytes"),
    (BENCH, without_block, True, "blocks: expected at least"),
    (BENCH, lambda d: [one.update(blocks=[]) for one in d["groups"]], False, "ZeroDivisionError: "),  # and no traceback
    (BENCH, without_series, True, "is missing"),
    (BENCH, other_hash, False, "measured machine code abab"),
    (BENCH, swapped_hashes, False, "measured machine code"),
    (BENCH, lambda d: kernel(d).update(text_sha256=None), False, "machine code is not known"),
    (BENCH, lambda d: kernel(d).update(dtype="bf16" if kernel(d)["dtype"] == "fp16" else "fp16"), False, "dtype"),
    (BENCH, lambda d: d["groups"][0].update(dtype="bf16"), False, "measured as bf16, but the kernel is for fp16"),
    (BENCH, lambda d: kernel(d).update(iteration=27), False, "its own fields give the key 27"),
    (BENCH, lambda d: kernel(d).update(registers=1), False, "registers: expected"),
    (BENCH, lambda d: kernel(d).update(arch="sm_90"), False, "not in results/locks"),
    (SWEEP, without_series, True, "measured 0 times, expected 1"),
    (SWEEP, lambda d: d["groups"].pop(0), True, "measured 0 times, expected 1"),
    (SWEEP, lambda d: d["groups"].append(d["groups"][0]), True, "measured 2 times"),
    (SWEEP, lambda d: d["sweep"]["planned"].pop(1), False, "measured, not planned"),
    (SWEEP, unplanned, True, "in grid fewtiles, but missing here"),
    (SWEEP, lambda d: d["sweep"]["planned"][1].update(dtype="bf16"), False, ", recomputed "),
    (SWEEP, lambda d: d["sweep"]["planned"][1].update(code="0" * 64), False, ", recomputed "),
    (SWEEP, other_hash, False, "planned"),
    (SWEEP, lambda d: d["settings"].update(min_pairs=8), True, ", recomputed "),
    (SWEEP, lambda d: d.update(protocol_version="3"), False, ", recomputed "),
    (SWEEP, lambda d: d["kernels"].pop(next(iter(d["kernels"]))), False, "no entry in `kernels`"),
    (SWEEP, lambda d: d["references"].pop("cudnn"), False, "no version recorded"),
    (SWEEP, lambda d: d["references"]["cudnn"]["kernels"].update(fp16="flash_fwd_kernel"), False, "match this library"),
    (CHECK, lambda d: d["cases"].pop(5), False, "is missing"),
    (CHECK, lambda d: d["cases"].append(d["cases"][0]), False, "unknown or repeated"),
    (CHECK, lambda d: d["cases"][0].update(status="fail", reason="NaN"), False, "failed: NaN"),
    (CHECK, lambda d: d["cases"][0]["accuracy"].update(max_error=9.0), False, "not within what is allowed"),
    (CHECK, other_hash, False, "measured machine code"),
    (COUNTERS, lambda d: next(iter(d["counters"].values())).update({next(iter(kernel_counters(d))): 7}), False, "csv"),
    (COUNTERS, other_hash, False, "measured machine code"),
    (SANITIZER, lambda d: d["findings"].pop(), False, "tools: expected"),
    (SANITIZER, lambda d: d["findings"][0].update(clean=False, errors=3), False, "not clean, errors 3"),
    (ENERGY, lambda d: d["runs"][0].update(launches=10**9), False, "GPU's peaks allow"),
    (OPINIONS, lambda d: d["agreements"].pop(), False, "do not follow"),
    (OPINIONS, lambda d: d["opinions"][0]["timings"].pop(), False, "not timed"),
    (SOAK, lambda d: d["hammered"][0].update(differing=1), False, "differ from the first output"),
    (SOAK, lambda d: d.update(hung="launch 7"), False, "hung"),
    (BENCH, lambda d: d.pop("settings"), False, "settings"),
    (BENCH, lambda d: d.update(surprise=1), False, "surprise"),
    (BENCH, lambda d: d.update(schema_version=99), False, "newer schema"),
]  # fmt: skip


def kernel_counters(document: Document) -> Document:
    found: Document = next(iter(document["counters"].values()))
    return found


@pytest.mark.parametrize("name", [BENCH, SWEEP, CHECK, COUNTERS, SANITIZER, ENERGY, OPINIONS, SOAK])
def test_a_document_as_it_was_committed_holds(results: Path, name: str) -> None:
    assert damaged(results, name, lambda _: None, digest=True) == []


@pytest.mark.parametrize(("name", "edit"), SAMPLES)
def test_an_edit_breaks_the_digest_that_the_document_notes(results: Path, name: str, edit: Edit) -> None:
    found = damaged(results, name, edit, digest=False)
    assert any("content_sha256" in line or "not within what is allowed" in line for line in found), found


@pytest.mark.parametrize(("name", "edit", "again", "words"), KNOWING)
def test_an_edit_is_caught_though_the_digest_was_renewed(
    results: Path, name: str, edit: Edit, again: bool, words: str
) -> None:
    found = damaged(results, name, edit, digest=True, again=again)
    assert any(words in line for line in found), found


@pytest.mark.parametrize("byte", [0, 12, 1000, -5])
def test_a_changed_byte_of_a_packed_file_is_caught(results: Path, byte: int) -> None:
    data = bytearray((RESULTS / BENCH).read_bytes())
    data[byte] ^= 0x5A
    (results / "h200").mkdir()
    path = results / BENCH
    path.write_bytes(bytes(data))
    assert verify.verify_file(path).status == "failed"


def test_errors_by_iteration_are_of_locked_kernels_and_within_bounds(results: Path) -> None:
    assert damaged(results, ACCURACY, lambda _: None, digest=False) == []
    assert any("not the locked" in line for line in damaged(results, ACCURACY, other_hash, digest=False))


@pytest.mark.parametrize("name", ["bench_split.json.gz", "counters.csv"])
def test_a_deleted_document_is_missed(results: Path, name: str) -> None:
    shutil.copytree(RESULTS / "h200", results / "h200")
    assert verify.verify_folder(results / "h200") == []
    (results / "h200" / name).unlink()
    missing, *_ = verify.verify_folder(results / "h200")
    assert (Path(missing.name).name, missing.summary) == (name, "missing")


def test_a_kernel_that_was_timed_and_not_checked_is_named(results: Path) -> None:
    (results / "h200").mkdir()
    for name in (BENCH, CHECK):
        shutil.copy(RESULTS / name, results / name)
    assert verify.verify_folder(results / "h200") == []
    (results / CHECK).unlink()
    (unchecked,) = verify.verify_folder(results / "h200")
    assert all("but not checked" in line for line in unchecked.details)


@pytest.fixture(scope="module")
def tables() -> dict[str, bytes]:
    """Tables of the ladder as the committed results give them."""
    found = report.render(collect())
    return {name: found[name] for name in ("progression.md", "progression.csv", "cells.csv", "counters.md")}


@pytest.mark.parametrize("name", ["progression.md", "progression.csv", "cells.csv", "counters.md"])
def test_an_edited_table_is_not_what_the_results_give(tmp_path: Path, tables: dict[str, bytes], name: str) -> None:
    path = tmp_path / name
    data = (RESULTS / "report" / name).read_bytes()
    path.write_bytes(data)
    assert report.stale({path: tables[name]}) == []
    digit = next(i for i in range(len(data) // 2, len(data)) if data[i : i + 1].isdigit())
    other = b"%d" % ((int(data[digit : digit + 1]) + 1) % 10)
    for changed in (data[:digit] + other + data[digit + 1 :], data[:-1]):
        path.write_bytes(changed)
        assert report.stale({path: tables[name]}) != []
