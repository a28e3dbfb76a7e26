"""machine.json: derived from the documents beside it, and every line in which it says otherwise than they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.results import machine
from flashladder.results.cells import PlannedCell
from flashladder.results.derive import derive
from flashladder.results.files import identity, write_result
from flashladder.results.migrations import with_digest
from flashladder.results.schema import BenchResult, EmulatedSweepResult
from tests.null.bench_fixture import FAST, GPU, SHAPE, result
from tests.null.sweep_fixture import emulated_document

CELL = PlannedCell(subject="16", config=FAST, dtype="fp16", shape=SHAPE, code="c", address="0" * 16)


def bench(name: str = "NVIDIA H200", **changed: object) -> BenchResult:
    return derive(result()).model_copy(update={"gpu": GPU.model_copy(update={"name": name, **changed})})


def emulated() -> EmulatedSweepResult:
    return emulated_document(CELL, "smoke", "0" * 64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two cards of one model, a sealed folder."""
    path = tmp_path / "h200"
    write_result(path / "bench.json.gz", bench())
    other = bench(uuid="GPU-1", driver="570.0").model_copy(
        update={"rung": "GPU with clock rights", "protocol_version": "1", "sweep": emulated().sweep}
    )
    write_result(path / "second.json", other)
    machine.write(path)
    return path


def test_it_says_what_the_documents_say(folder: Path) -> None:
    host, other = "0", "0"
    first = {"kind": "bench", "card": "GPU-0", "driver": "580.0", "host": host, "rung": "GPU", "protocol_version": "2"}
    second = {
        "kind": "bench", "card": "GPU-1", "driver": "570.0", "host": other, "rung": "GPU with clock rights",
        "protocol_version": "1",
    }  # fmt: skip
    digests = {name: identity(folder / name)[1] for name in ("bench.json.gz", "second.json")}
    assert json.loads((folder / machine.NAME).read_text(encoding="utf-8")) == {
        "schema_version": 1,
        "machine": "h200",
        "gpu": "NVIDIA H200",
        "arch": "sm_90",
        "cards": ["GPU-0", "GPU-1"],
        "drivers": ["570.0", "580.0"],
        "hosts": ["0"],
        "rungs": ["GPU", "GPU with clock rights"],
        "protocol_versions": ["1", "2"],
        "documents": {
            "bench.json.gz": {**first, "grid": None, "content_sha256": digests["bench.json.gz"]},
            "second.json": {**second, "grid": "smoke", "content_sha256": digests["second.json"]},
        },
    }
    assert machine.problems(folder) == []
    assert machine.load(folder) == machine.derive(folder)
    assert (folder / "SHA256SUMS").is_file()


def test_the_cpus_folder_has_no_card(tmp_path: Path) -> None:
    write_result(tmp_path / "cpu" / "sweep.json", emulated())
    found = machine.derive(tmp_path / "cpu")
    assert (found.gpu, found.arch, found.cards, found.drivers) == (None, None, (), ())
    assert found.hosts == ("0",)
    assert machine.wrong_folder(found) is None


def test_only_result_documents_are_looked_at(folder: Path) -> None:
    (folder / "trials.json").write_text('{"kind": "note"}', encoding="utf-8")
    (folder / "notes.txt").write_text("{", encoding="utf-8")
    assert [path.name for path in machine.result_files(folder)] == ["bench.json.gz", "second.json"]
    (folder / "broken.json").write_text("{", encoding="utf-8")
    with pytest.raises(FlashladderError, match=r"broken\.json: not a JSON result: found Expecting property name"):
        machine.result_files(folder)


def edit(folder: Path, change: Any) -> None:
    path = folder / machine.NAME
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (lambda d: d.update(gpu="NVIDIA H100"), ["gpu: written NVIDIA H100, the documents give NVIDIA H200"]),
        (lambda d: d.update(cards=["GPU-0"]), ["cards: written ['GPU-0'], the documents give ['GPU-0', 'GPU-1']"]),
        (
            lambda d: d.update(machine="h100", rungs=[]),
            [
                "machine: written h100, the documents give h200",
                "rungs: written [], the documents give ['GPU', 'GPU with clock rights']",
            ],
        ),
        (
            lambda d: d["documents"].pop("bench.json.gz"),
            ["bench.json.gz: written nothing, the documents give a document"],
        ),
        (
            lambda d: d["documents"].update({"more.json": d["documents"]["second.json"]}),
            ["more.json: written a document, the documents give nothing"],
        ),
        (
            lambda d: d["documents"]["second.json"].update(grid=None, host="1"),
            [
                "second.json: host: written 1, the documents give 0",
                "second.json: grid: written None, the documents give smoke",
            ],
        ),
    ],
)
def test_every_edit_is_one_line(folder: Path, change: Any, lines: list[str]) -> None:
    edit(folder, change)
    hint = f"if that is meant: python -m flashladder.results --seal {folder}"
    assert machine.problems(folder) == [f"{folder / machine.NAME}: {line}; {hint}" for line in lines]


def test_a_document_whose_content_was_edited_is_named(folder: Path) -> None:
    path = folder / "second.json"
    noted = identity(path)[1]
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(with_digest({**document, "rung": "GPU"})), encoding="utf-8")
    found = [line.partition("; ")[0] for line in machine.problems(folder)]
    where = f"{folder / machine.NAME}: "
    assert found == [
        f"{where}rungs: written ['GPU', 'GPU with clock rights'], the documents give ['GPU']",
        f"{where}second.json: rung: written GPU with clock rights, the documents give GPU",
        f"{where}second.json: content_sha256: written {noted}, the documents give {identity(path)[1]}",
    ]


def test_a_folder_holds_documents_of_one_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FlashladderError) as caught:
        machine.derive(tmp_path / "none")
    assert str(caught.value) == f"{tmp_path / 'none'}: no result documents: expected *.json.gz, found none"
    write_result(folder / "third.json", bench("NVIDIA H100"))
    with pytest.raises(FlashladderError) as caught:
        machine.derive(folder)
    told = f"{folder / 'third.json'}: another GPU in this folder: expected NVIDIA H200, found NVIDIA H100"
    assert str(caught.value) == told
    write_result(folder / "third.json", emulated())
    with pytest.raises(FlashladderError, match="expected NVIDIA H200, found this CPU"):
        machine.derive(folder)


@pytest.mark.parametrize(
    ("name", "made", "wrong", "home"),
    [
        ("h100", bench(), "results of NVIDIA H200 in a folder named h100", "h200"),
        ("cpu", bench(), "results of NVIDIA H200 in a folder named cpu", "h200"),
        ("h200", emulated(), "results of this CPU in a folder named h200", "None"),
        ("mine", bench(), None, ""),  # a name of one's own is as good as any
        ("nvidia_example_1", bench("NVIDIA Example 1"), None, ""),
        ("h200", bench("NVIDIA Example 1"), "results of NVIDIA Example 1 in a folder named h200", "None"),
    ],
)
def test_a_known_name_is_only_for_its_own_documents(
    tmp_path: Path, name: str, made: Any, wrong: str | None, home: str
) -> None:
    folder = tmp_path / name
    write_result(folder / "result.json", made)
    assert machine.wrong_folder(machine.derive(folder)) == wrong
    if wrong is None:
        assert machine.write(folder) == folder / "SHA256SUMS"
        return
    with pytest.raises(FlashladderError) as caught:
        machine.write(folder)
    assert str(caught.value) == f"{folder}: {wrong}; move them to results/{home}"
    assert [path.name for path in folder.iterdir()] == ["result.json"]


def test_a_folder_that_was_renamed_is_a_problem(folder: Path) -> None:
    moved = folder.rename(folder.parent / "h100")
    hint = f"if that is meant: python -m flashladder.results --seal {moved}"
    assert machine.problems(moved) == [
        f"{moved / machine.NAME}: machine: written h200, the documents give h100; {hint}",
        f"{moved / machine.NAME}: results of NVIDIA H200 in a folder named h100",
    ]


def test_no_folder_is_not_sealed(tmp_path: Path) -> None:
    with pytest.raises(FlashladderError) as caught:
        machine.write(tmp_path / "none")
    assert str(caught.value) == f"{tmp_path / 'none'}: no such folder to seal"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is missing; if all else is as meant: python -m flashladder.results --seal {folder}"),
        ("{", "not a JSON result: found Expecting property name"),
        (
            "[]",
            "the document: Input should be a valid dictionary or instance of Machine; python -m flashladder.",
        ),
        ("{}", "machine: Field required; python -m flashladder.results --seal {folder}"),
    ],
)
def test_a_machine_file_that_is_none_is_one_line(folder: Path, text: str | None, message: str) -> None:
    path = folder / machine.NAME
    path.unlink()
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(FlashladderError) as caught:
        machine.load(folder)
    assert str(caught.value).startswith(f"{path}: {message.format(folder=folder)}")


def test_a_wrong_field_in_a_document_is_named_with_its_place(folder: Path) -> None:
    edit(folder, lambda d: d["documents"]["second.json"].update(colour=1))
    with pytest.raises(FlashladderError) as caught:
        machine.load(folder)
    assert str(caught.value) == (
        f"{folder / machine.NAME}: documents.second.json.colour: Extra inputs are not permitted; "
        f"python -m flashladder.results --seal {folder}"
    )


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA Example-1 (80GB)", "nvidia_example_1_80gb"),
        ("  Ä/..", ""),
    ],
)
def test_a_models_folder_has_a_name_that_is_safe_in_a_path(gpu: str, name: str) -> None:
    assert machine.machine_name(gpu) == name


def test_known_names_are_those_of_described_gpus_and_the_cpu() -> None:
    assert [machine.is_key(name) for name in ("cpu", "h200", "a100", "mine", "")] == [True, True, True, False, False]


def test_the_digest_is_of_the_content_and_not_of_the_bytes(folder: Path) -> None:
    packed, plain = write_result(folder / "a.json.gz", bench()), write_result(folder / "b.json", bench())
    assert identity(packed) == identity(plain)
    assert identity(packed)[0] == 2
    assert identity(packed)[1] != sha256(plain.read_bytes())
