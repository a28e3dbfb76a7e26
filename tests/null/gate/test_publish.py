"""Publish: a verified sweep becomes a file of its machine's sealed folder, or nothing is written at all."""

from __future__ import annotations

from pathlib import Path
import shutil

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gate import publish, verify
from flashladder.paths import RESULTS
from flashladder.results import machine
from flashladder.results.cells import Failure
from flashladder.results.derive import derive
from flashladder.results.files import load_result, write_result
from flashladder.results.schema import BenchResult
from tests.null import verify_fixture as made
from tests.null.bench_fixture import GPU


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of results that holds locks and nothing else."""
    made.locked(tmp_path)
    return tmp_path


def packed(root: Path, result: BenchResult) -> Path:
    """A document as a sweep leaves it, outside of every sealed folder but beside the locks."""
    return write_result(root / "live" / "h200.json.gz", result)


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def with_gpu(result: BenchResult, name: str) -> BenchResult:
    """The same of another GPU model, whose cells have other addresses: without the sweep."""
    return result.model_copy(update={"gpu": GPU.model_copy(update={"name": name}), "sweep": None})


def failed(result: BenchResult) -> BenchResult:
    """Its last cell failed."""
    assert result.sweep is not None
    last = result.sweep.planned[-1]
    failures = (Failure(address=last.address, kind="timeout", message="no answer in 60 s"),)
    group = result.groups[-1]
    series = group.series[:2]
    order = tuple(one.kernel for one in series)
    blocks = tuple(block.model_copy(update={"order": order}) for block in group.blocks)
    groups = (*result.groups[:-1], group.model_copy(update={"series": series, "blocks": blocks}))
    sweep = result.sweep.model_copy(update={"failures": failures})
    return derive(result.model_copy(update={"sweep": sweep, "groups": groups}))


def test_a_sweep_is_copied_described_and_sealed(root: Path) -> None:
    source = packed(root, made.swept())
    out = publish.publish(source, results=root)
    assert out == root / made.NAME / "h200.json.gz"
    assert out.read_bytes() == source.read_bytes()
    assert all(one.status == "ok" and one.sealed for one in verify.verify(out.parent))
    told = machine.load(out.parent)
    assert (told.machine, told.gpu, told.cards) == (made.NAME, GPU.name, (GPU.uuid,))
    assert told.documents["h200.json.gz"].grid == "h200"
    before = files(root)
    assert publish.publish(source, results=root) == out
    assert files(root) == before


def test_another_run_takes_the_place_of_a_file_only_where_that_is_said(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = publish.publish(packed(root, made.swept()), results=root)
    before = files(root)
    other = made.swept()
    moved = [one.model_copy(update={"started_utc": "2026-01-02T00:00:00+00:00"}) for one in other.processes]
    source = write_result(root / "other" / "h200.json.gz", other.model_copy(update={"processes": tuple(moved)}))
    with pytest.raises(FlashladderError, match="a file of this name holds another document") as caught:
        publish.publish(source, results=root)
    assert "publish with --replace" in str(caught.value)
    assert {name: data for name, data in files(root).items() if not name.startswith("other/")} == before
    assert publish.publish(source, results=root, replace=True) == out
    assert out.read_bytes() == source.read_bytes()
    assert capsys.readouterr().out == ""


def test_a_grid_of_the_cpu_gets_a_folder_of_its_own(root: Path) -> None:
    source = write_result(root / "live" / "cpu.json.gz", made.emulated())
    out = publish.publish(source, results=root)
    assert out == root / "cpu" / "cpu.json.gz"
    told = machine.load(out.parent)
    assert (told.gpu, told.cards, told.drivers) == (None, (), ())
    assert all(one.status == "ok" for one in verify.verify(out.parent))


def test_failures_are_published_by_those_who_know(root: Path) -> None:
    source = packed(root, failed(made.swept()))
    before = files(root)
    with pytest.raises(FlashladderError, match=r"1 of 6 cells failed: timeout \(no answer in 60 s\)") as caught:
        publish.publish(source, results=root)
    assert caught.value.exit_code == 1
    assert files(root) == before
    out = publish.publish(source, results=root, with_failures=True)
    assert all(one.status == "ok" for one in verify.verify(out.parent))


def test_a_document_that_does_not_hold_is_not_published(root: Path) -> None:
    result = made.swept()
    summary = result.summaries[0].model_copy(update={"tflops": 1.0})
    source = packed(root, result.model_copy(update={"summaries": (summary, *result.summaries[1:])}))
    before = files(root)
    with pytest.raises(CheckFailed, match="not published: summaries does not follow from the raw samples"):
        publish.publish(source, results=root)
    assert files(root) == before


@pytest.mark.parametrize(
    ("gpu", "name", "message"),
    [
        ("NVIDIA H100 80GB HBM3", "h200", "h200: another machine's folder: expected the folder h100, found"),
        ("NVIDIA B", made.NAME, "expected results of NVIDIA Example 1, found .* of NVIDIA B"),
        ("NVIDIA B", "cpu", "expected the folder nvidia_b"),
    ],
)  # fmt: skip
def test_another_machines_folder_is_refused(root: Path, gpu: str, name: str, message: str) -> None:
    publish.publish(packed(root, made.swept()), results=root)
    source = packed(root, with_gpu(made.swept(), gpu))
    before = files(root)
    with pytest.raises(FlashladderError, match=message):
        publish.publish(source, name, results=root)
    assert files(root) == before


def test_a_second_host_may_have_a_folder_of_its_own(root: Path) -> None:
    out = publish.publish(packed(root, made.swept()), "second_host", results=root)
    assert out.parent.name == "second_host"
    assert all(one.status == "ok" for one in verify.verify(out.parent))


def test_other_kinds_are_refused(root: Path) -> None:
    source = root / "check.json.gz"
    shutil.copy(RESULTS / "h100" / "check.json.gz", source)
    with pytest.raises(FlashladderError, match="not a sweep: expected bench or emulated-sweep, found check"):
        publish.publish(source, results=root)


def test_a_seal_that_cannot_be_written_leaves_what_was_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path) -> Path:
        raise FlashladderError("could not write the file (No space left on device)")

    source = packed(root, made.swept())
    first = publish.publish(source, results=root).read_bytes()
    before = files(root)
    changed = load_result(source).model_copy(update={"rung": "GPU without counters"})
    write_result(source, changed)
    before[source.relative_to(root).as_posix()] = source.read_bytes()
    monkeypatch.setattr(machine, "write", full)
    for name in (made.NAME, "fresh"):
        with pytest.raises(FlashladderError, match="No space left"):
            publish.publish(source, name, results=root, replace=True)
    assert files(root) == before
    assert (root / made.NAME / "h200.json.gz").read_bytes() == first


def test_the_command_prints_what_it_wrote(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def publish_it(path: Path, name: str, *, with_failures: bool, replace: bool) -> Path:
        asked.append((path, name, with_failures, replace))
        return root / "h200" / path.name

    monkeypatch.setattr(publish, "publish", publish_it)
    assert publish.main(["h200.json.gz", "--machine", "h200", "--with-failures"]) == 0
    assert asked == [(Path("h200.json.gz"), "h200", True, False)]
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("published: ")
    assert told[1].startswith("next: say in ")
    assert publish.main(["h200.json.gz", "--replace"]) == 0
    assert asked[1:] == [(Path("h200.json.gz"), "", False, True)]
    capsys.readouterr()
    for words in (["h200.csv"], ["h200.json", "--machine", "../h200"], []):
        with pytest.raises(SystemExit) as caught:
            publish.main(words)
        assert caught.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
