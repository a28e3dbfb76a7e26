"""Old schema versions: a kept document of each kind is read, rewritten, and says the same as before."""

from __future__ import annotations

from collections.abc import Iterator
import copy
import json
from pathlib import Path
import shutil
from typing import Any

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import sha256
from flashladder.paths import ROOT
from flashladder.results import files as migrations
from flashladder.results import files as results
from flashladder.results.__main__ import main, rewrite
from flashladder.results.derive import problems
from flashladder.results.schema import SCHEMA_VERSION, BenchResult

KEPT = ROOT / "tests" / "data"
FIRST = sorted((KEPT / "results_v1").glob("*.json"))
KERNEL = {"kernels.variant", "kernels.registers", "kernels.spill_stores", "kernels.spill_loads"}
ADDED = {
    "bench.json": {
        "references", "sweep", "reference.version", "reference.tile", "groups.blocks.late", *KERNEL,
        *(f"groups.series.{when}.{name}" for when in ("before", "after")
          for name in ("bias", "bias_allowed", "row_bias", "row_bias_allowed")),
    },
    "check.json": {"rule", "reference.version", "reference.tile", *KERNEL},
    "counters.json": KERNEL,
    "sanitizer.json": KERNEL,
}  # fmt: skip


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def added(old: object, new: object, where: str = "") -> Iterator[str]:
    """Keys of `new` that `old` lacks; values that both have must be equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        assert old.keys() <= new.keys(), where
        for key, value in new.items():
            name = where if where == "kernels" else f"{where}.{key}".lstrip(".")
            yield from added(old[key], value, name) if key in old else [f"{where}.{key}".lstrip(".")]
    elif isinstance(old, list) and isinstance(new, list):
        assert len(old) == len(new), where
        for a, b in zip(old, new, strict=True):
            yield from added(a, b, where)
    else:
        assert old == new, where


@pytest.mark.parametrize("path", FIRST, ids=lambda path: path.stem)
def test_a_step_is_pure_and_adds_what_was_left_out(path: Path) -> None:
    old = document(path)
    before = copy.deepcopy(old)
    new = migrations.migrate(old)
    assert old == before
    assert new.pop("schema_version") == SCHEMA_VERSION
    old.pop("schema_version")
    assert set(added(old, new)) == ADDED[path.name]


BIASES = {"bias": None, "bias_allowed": None, "row_bias": None, "row_bias_allowed": None}
FILLED_KERNEL = {"variant": "", "build": None, "registers": None, "spill_stores": None, "spill_loads": None}
CASE = {"reason": None, "accuracy": None, "repeats": 0}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {}),
        ({"kernels": {"a": {}, "b": 5}}, {"kernels": {"a": FILLED_KERNEL, "b": 5}}),
        ({"kernels": [{"variant": "x"}]}, {"kernels": [{**FILLED_KERNEL, "variant": "x"}]}),
        ({"reference": {}}, {"reference": {"version": None, "tile": None}}),
        ({"reference": 5, "kernels": 5}, {"reference": 5, "kernels": 5}),
        (
            {"kind": "bench"},
            {"kind": "bench", "purpose": "report", "mode": "event-free", "references": {}, "sweep": None,
             "summaries": [], "means": [], "floors_pct": {}},
        ),
        (
            {"kind": "bench", "purpose": "tune", "mode": "event-locked", "references": {"a": 1}, "sweep": 1,
             "summaries": [1], "means": [2], "floors_pct": {"fp16": 3},
             "groups": [{"series": [{}, {"before": {}, "after": {"bias": 1}}],
                         "blocks": [{}, {"dropped": "x", "late": 2}]}],
             "processes": [{}, {"foreign_after": 1}]},
            {"kind": "bench", "purpose": "tune", "mode": "event-locked", "references": {"a": 1}, "sweep": 1,
             "summaries": [1], "means": [2], "floors_pct": {"fp16": 3},
             "groups": [{"series": [{"before": None, "after": None},
                                    {"before": BIASES, "after": {**BIASES, "bias": 1}}],
                         "blocks": [{"dropped": None, "late": None}, {"dropped": "x", "late": 2}]}],
             "processes": [{"foreign_after": None}, {"foreign_after": 1}]},
        ),
        ({"kind": "check", "cases": [{}]}, {"kind": "check", "rule": None, "cases": [CASE]}),
        (
            {"kind": "check", "rule": "r", "cases": [{"accuracy": {}, "reason": "x", "repeats": 3}]},
            {"kind": "check", "rule": "r", "cases": [{"accuracy": BIASES, "reason": "x", "repeats": 3}]},
        ),
        ({"kind": "emulated-check", "cases": [{}]}, {"kind": "emulated-check", "cases": [CASE]}),
        ({"kind": "counters"}, {"kind": "counters", "mode": "ncu-base"}),
        ({"kind": "counters", "mode": "other"}, {"kind": "counters", "mode": "other"}),
        ({"kind": "sanitizer"}, {"kind": "sanitizer"}),
    ],
)  # fmt: skip
def test_the_first_step_writes_what_was_left_out_and_leaves_what_was_written(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert migrations.migrate({"schema_version": 1, **old}) == {"schema_version": SCHEMA_VERSION, **new}
    assert migrations.migrate({"schema_version": 2, migrations.DIGEST: "0", **old}) == {"schema_version": 2, **old}


def test_the_digest_is_of_sorted_json_without_blanks() -> None:
    text = '{"a":[1,2],"b":{"c":null}}'
    for document in ({"b": {"c": None}, "a": [1, 2]}, {"a": [1, 2], migrations.DIGEST: "x", "b": {"c": None}}):
        assert migrations.digest_of(document) == sha256(text)
        assert migrations.with_digest(document)[migrations.DIGEST] == sha256(text)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"schema_version": 7}, ("result of a newer schema: expected schema_version 2 or older, found 7; "
                                "update flashladder: git pull")),
        ({}, "result of another schema: expected schema_version 2, found none"),
        ({"schema_version": "x" * 50}, "result of another schema: expected schema_version 2, found " + "x" * 40),
        ([], "result of another schema: expected schema_version 2, found list"),
        (None, "result of another schema: expected schema_version 2, found NoneType"),
    ],
)  # fmt: skip
def test_what_is_no_result_or_newer_says_so(document: Any, message: str) -> None:
    with pytest.raises(FlashladderError) as caught:
        migrations.migrate(document)
    assert str(caught.value) == message


@pytest.mark.parametrize("path", FIRST, ids=lambda path: path.stem)
def test_a_migrated_document_is_what_the_model_writes(path: Path) -> None:
    """No key is left to a default: that of a later version may be another."""
    assert migrations.migrate(document(path)) == results.load_result(path).model_dump(mode="json")


def test_samples_of_an_old_document_still_give_its_tables() -> None:
    bench = results.load_as(KEPT / "results_v1" / "bench.json", BenchResult)
    assert len(bench.summaries) == 2
    assert problems(bench) == []


def test_the_command_rewrites_each_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [Path(shutil.copy(path, tmp_path / path.name)) for path in FIRST]
    before = [results.load_result(path) for path in names]
    assert main(["--migrate", *map(str, names)]) == 0
    assert capsys.readouterr().out.count(f": rewritten: as schema {SCHEMA_VERSION}") == len(FIRST)
    written = [path.read_bytes() for path in names]
    for path, result in zip(names, before, strict=True):
        assert results.load_result(path) == result
        assert document(path)[migrations.DIGEST] == migrations.digest_of(document(path))
    assert main(["--migrate", *map(str, names)]) == 0
    assert capsys.readouterr().out.count(": left, as it is so already: ") == len(FIRST)
    assert [path.read_bytes() for path in names] == written


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"schema_version": True}, "result of another schema: expected schema_version 2, found True"),
        ({"kernels": 5}, "kernels"),
        ({"cases": [{"accuracy": 1}]}, "cases.0."),
    ],
)  # fmt: skip
def test_what_cannot_be_migrated_is_one_line_and_left_alone(
    tmp_path: Path, edit: dict[str, object], message: str
) -> None:
    path = tmp_path / "check.json"
    path.write_text(json.dumps(document(KEPT / "results_v1" / "check.json") | edit), encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(FlashladderError) as caught:
        main(["--migrate", str(path)])
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value).splitlines()) == 1
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["check.json"]


def test_a_document_that_lacks_a_key_is_written_whole_but_no_edited_one(tmp_path: Path) -> None:
    path = results.write_result(tmp_path / "check.json", results.load_result(FIRST[1]))
    whole = path.read_bytes()
    found = document(path)
    found.pop("rule")
    path.write_text(json.dumps(migrations.with_digest(found)), encoding="utf-8")
    assert rewrite(path)
    assert path.read_bytes() == whole
    path.write_text(json.dumps(document(path) | {"rung": "GPU"}), encoding="utf-8")
    with pytest.raises(CheckFailed, match="edited since it was written, and not written anew"):
        rewrite(path)
