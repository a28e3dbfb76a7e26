"""Verify: every changed byte, and every edit of a forger who also renews digests, seal and machine.json."""

from __future__ import annotations

from collections.abc import Iterator
import gzip
import json
from pathlib import Path
import random
import re
import shutil

import pytest

from flashladder.errors import FlashladderError
from flashladder.gate import checks as gate_checks
from flashladder.gate import verify, verify_sweep
from flashladder.gate.verify_sweep import grid_note
from flashladder.ladder.grid import load_grid
from flashladder.paths import RESULTS
from flashladder.results import files as results
from flashladder.results import machine
from flashladder.results.cells import Failure
from flashladder.results.derive import derive
from flashladder.results.files import SEAL, load_result, seal, write_result
from flashladder.results.schema import A_A, kernel_key
from flashladder.sweep import plan
from flashladder.sweep.pack import pack
from flashladder.sweep.plan import wanted_of
from flashladder.sweep.records import Records
from tests.null import sweep_fixture
from tests.null import verify_fixture as made
from tests.null.bench_fixture import FAST, GPU, SHAPE
from tests.null.verify_fixture import Document, Edit, edited

SAMPLE = 200  # damaged files
SWEPT = RESULTS / "h200" / "tune_07.json.gz"  # as small as a committed sweep gets
HEADER = 10  # bytes of gzip's
FAST_KEY = kernel_key(16, FAST)


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the committed folders of machines."""
    folder = tmp_path_factory.mktemp("committed") / "results"
    for one in sorted({path.parent for path in RESULTS.glob(f"*/{SEAL}")}):
        shutil.copytree(one, folder / one.name)
    shutil.copytree(RESULTS / "locks", folder / "locks")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The document of a made-up sweep in a sealed folder."""
    return made.make(tmp_path / "results")


def details(path: Path) -> list[str]:
    """All that is wrong with the folder of a document, each line led by its file's name."""
    return [f"{Path(one.path).name}: {line}" for one in verify.verify(path.parent) for line in one.details]


def changed(data: bytes, index: int, draw: random.Random) -> bytes:
    return data[:index] + bytes([data[index] ^ draw.randint(1, 255)]) + data[index + 1 :]


@pytest.mark.slow
def test_every_changed_byte_of_a_committed_folder_is_found(committed: Path) -> None:
    draw = random.Random(8)
    files = [one for one in sorted(committed.rglob("*")) if one.is_file() and one.parent.name != "locks"]
    packed = [one for one in files if one.name.endswith(".gz") and one.stat().st_size < 20_000]
    assert len(files) > 20
    assert len(packed) > 3
    places = [(one, index) for one in packed[:2] for index in range(HEADER)]
    while len(places) < SAMPLE:
        one = draw.choice(files)
        places.append((one, draw.randrange(one.stat().st_size)))
    for one, index in places:
        before = one.read_bytes()
        one.write_bytes(changed(before, index, draw))
        found = verify.verify(one)
        one.write_bytes(before)
        assert [each.status for each in found] == ["failed"], (one, index)
    assert all(one.status == "ok" for one in verify.verify(committed / "h100"))


def test_a_line_end_of_a_seal_is_a_change(path: Path) -> None:
    text = (path.parent / SEAL).read_bytes()
    (path.parent / SEAL).write_bytes(text.replace(b"\n", b"\r", 1))
    assert any(line.startswith(f"{SEAL}: not sorted sha256sum lines") for line in details(path))


def test_a_folder_as_it_was_made_holds(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main([str(path.parent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "all of 4 files hold"
    assert any(line.startswith("ok ") and "h200.json (bench, 4 cells, schema 2" in line for line in lines)
    assert not any("no seal" in line for line in lines)
    assert gate_checks.documents_whole(path.parent.parent).status == "ok"


def series(document: Document, index: int = 0) -> list[Document]:
    found: list[Document] = document["groups"][index]["series"]
    return found


def without_cell(document: Document) -> None:
    """One kernel at one length is gone, with its turn in every block."""
    group = document["groups"][0]
    group["series"] = [one for one in group["series"] if one["kernel"] != FAST_KEY]
    for block in group["blocks"]:
        block["order"].remove(FAST_KEY)


def without_block(document: Document, index: int) -> None:
    """A block of one group is gone, with its pairs; those after it move up."""
    group = document["groups"][0]
    group["blocks"].pop(index)
    for number, block in enumerate(group["blocks"]):
        block["index"] = number
    for one in group["series"]:
        kept = [pair for pair in one["pairs"] if pair[0] != index]
        one["pairs"] = [[pair[0] - (pair[0] > index), *pair[1:]] for pair in kept]


def other_code(document: Document) -> None:
    """Another kernel was timed, and everything follows from that, also the cell's address."""
    made.kernel_of(document, 16)["text_sha256"] = made.OTHER
    settings = made.settings_of(made.swept())
    for cell in document["sweep"]["planned"]:
        if cell["subject"] == "16":
            shape = made.SHORT if cell["shape"]["seq_len"] == made.SHORT.seq_len else SHAPE
            cell.update(made.planned("16", FAST, shape, settings, made.OTHER).model_dump(mode="json"))


def swapped_code(document: Document) -> None:
    """Two kernels give each other their code."""
    for number, text in ((16, "1" * 64), (1, "2" * 64)):
        made.kernel_of(document, number)["text_sha256"] = text


FORGED: list[tuple[Edit, bool, str]] = [
    (lambda d: d["summaries"][0].update(tflops=1.0), False, "summaries does not follow from the raw samples: 01 (FP16"),
    (lambda d: d["summaries"].pop(), False, ": not written"),
    (lambda d: d["means"][0].update(pct_high=d["means"][0]["pct_high"] + 1), False, "means does not follow"),
    (lambda d: d["groups"][0].update(dtype="bf16"), True, f"{FAST_KEY}: measured as bf16, a kernel for fp16"),
    (lambda d: made.kernel_of(d, 16).update(dtype="bf16"), False, "dtype bf16, of a configuration for fp16"),
    (lambda d: d["sweep"]["planned"][1].update(dtype="bf16"), False, "does not follow from it: expected "),
    (without_cell, True, f"cell 16 {FAST} S=4096 B=16 H=16: measured 0 times, expected 1"),
    (lambda d: d["groups"].pop(), True, f"cell 16 {FAST} S=512 B=16 H=16: measured 0 times, expected 1"),
    (lambda d: d["groups"].append(d["groups"][0]), True, f"cell 16 {FAST} S=4096 B=16 H=16: measured 2 times"),
    (lambda d: d["sweep"]["planned"].pop(1), False, f"{FAST_KEY} fp16 S=4096 B=16 H=16 D=128: measured, not planned"),
    (lambda d: without_block(d, 3), True, "blocks: expected at least 4, and up to 16 until 4 count, found 3, of which"),
    (lambda d: without_block(d, 1), True, "process 0 fp16 S=4096: blocks: expected at least 4"),
    (lambda d: d["groups"][0]["blocks"].pop(1), True, "blocks: expected 0 to 2, found 0, 2, 3"),
    (lambda d: series(d)[1]["pairs"].pop(), True, "expected 3 pairs in each of 4 blocks, found 2 in block 3"),
    (lambda d: series(d)[1]["pairs"].reverse(), True, "in each of 4 blocks, found them in another order"),
    (lambda d: d["groups"][0]["blocks"][0]["samples"].pop(), True, "block 0: expected 2 looks at the GPU, found 1"),
    (lambda d: d["groups"][0]["blocks"][0]["order"].pop(), True, "block 0: its order and the series with pairs"),
    (lambda d: d["groups"][0].update(process=7), True, "the result does not describe this process"),
    (other_code, False, "measured machine code cdcdcdcdcdcd..., locked abababababab"),
    (swapped_code, False, f"cell 16 {FAST} S=4096 B=16 H=16: code 111111111111, planned abababababab"),
    (lambda d: d["kernels"].pop(FAST_KEY), False, f"cell 16 {FAST} S=4096 B=16 H=16: the result does not say which"),
    (lambda d: made.kernel_of(d, 16).update(iteration=15), False, f"kernel {FAST_KEY} is called 15 (FP16"),
    (lambda d: d["settings"].update(min_pairs=8), True, "does not follow from it: expected "),
    (lambda d: d.update(protocol_version="3"), False, "does not follow from it: expected "),
    (lambda d: made.kernel_of(d, 16).pop("variant"), False, f"kernels.{FAST_KEY}.variant: is missing"),
    (lambda d: d.pop("references"), False, "references: is missing"),
]


@pytest.mark.parametrize(("change", "again", "message"), FORGED, ids=[str(index) for index in range(len(FORGED))])
def test_a_forged_document_is_found_though_all_digests_follow(
    path: Path, change: Edit, again: bool, message: str
) -> None:
    edited(path, change, again=again)
    found = details(path)
    assert any(line.startswith(f"{path.name}: ") and message in line for line in found), found
    assert not any(line.startswith((SEAL, machine.NAME)) for line in found), "the forger renewed these"
    assert verify.main([str(path.parent)]) == 1


def test_a_failed_cell_has_no_measurement(path: Path) -> None:
    failure = Failure(address=made.swept().sweep.planned[1].address, kind="timeout", message="60 s")  # type: ignore[union-attr]  # it has one
    edited(path, lambda d: d["sweep"].update(failures=[failure.model_dump()]))
    expected = f"{path.name}: cell 16 {FAST} S=4096 B=16 H=16: measured 1 times, expected 0, as it failed"
    assert expected in details(path)
    edited(path, without_cell, again=True)
    assert details(path) == []


def test_a_tuning_runs_cells_may_be_timed_again_but_not_once_they_failed() -> None:
    """Rungs time survivors again; their addresses are of the mode."""
    swept = made.swept()
    assert swept.sweep is not None
    rungs = swept.model_copy(update={"purpose": "tune"})
    settings = verify_sweep._settings(rungs)
    assert (settings.mode, verify_sweep._settings(swept).mode) == ("tune", swept.mode)
    planned = tuple(wanted_of(cell).planned(cell.code, settings) for cell in swept.sweep.planned)
    sweep = swept.sweep.model_copy(update={"planned": planned})
    whole = rungs.model_copy(update={"sweep": sweep, "groups": (*rungs.groups, rungs.groups[0])})
    assert verify_sweep.problems(whole) == []
    failures = (Failure(address=planned[1].address, kind="wrong", message="far off"),)
    failed = whole.model_copy(update={"sweep": sweep.model_copy(update={"failures": failures})})
    (line,) = verify_sweep.problems(failed)
    assert line.endswith("measured 2 times, expected 0, as it failed")


def test_an_edit_without_the_documents_own_digest_is_found(path: Path) -> None:
    edited(path, lambda d: d["host"].update(cpu="another"), digest=False)
    assert [line.partition(": written")[0] for line in details(path)] == [f"{path.name}: content_sha256"]
    outcome = gate_checks.documents_whole(path.parent.parent)
    assert outcome.status == "failed"
    assert "content_sha256" in outcome.details[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["gpu"].update(uuid="GPU-1"), "cards: written ['GPU-0'], the documents give ['GPU-1']"),
        (lambda d: d["gpu"].update(uuid="GPU-1"), "h200.json: card: written GPU-0, the documents give GPU-1"),
        (lambda d: d["gpu"].update(driver="1"), "drivers: written ['580.0'], the documents give ['1']"),
        (lambda d: d["gpu"].update(name="NVIDIA B"), "gpu: written NVIDIA Example 1, the documents give NVIDIA B"),
        (lambda d: d.update(rung="GPU without counters"), "rungs: written ['GPU']"),
        (lambda d: d["summaries"][0].update(tflops=1.0), "h200.json: content_sha256: written "),
    ],
)
def test_machine_json_tells_when_a_document_was_exchanged_and_sealed(path: Path, change: Edit, message: str) -> None:
    before = (path.parent / machine.NAME).read_bytes()
    edited(path, change)
    (path.parent / machine.NAME).write_bytes(before)
    seal(path.parent)
    assert any(line.startswith(f"{machine.NAME}: {message}") for line in details(path)), details(path)


def test_what_is_no_document_is_told_in_words(path: Path) -> None:
    (path.parent / "notes.log").write_text("", encoding="utf-8")
    seal(path.parent)
    told = {Path(one.path).name: (one.status, one.summary) for one in verify.verify(path.parent)}
    assert told[machine.NAME] == ("ok", "what the documents beside it say")
    assert told[SEAL] == ("ok", "unsigned")
    assert told["notes.log"] == ("ok", verify.PLAIN)


def test_a_document_too_many_or_too_few_is_told_by_machine_json(path: Path) -> None:
    shutil.copy(path, path.parent / "more.json")
    seal(path.parent)
    assert any("more.json: written nothing, the documents give a document" in line for line in details(path))
    (path.parent / "more.json").unlink()
    (path.parent / machine.NAME).unlink()
    seal(path.parent)
    assert [line.partition(";")[0] for line in details(path)] == [f"{machine.NAME}: is missing"]


def test_a_folder_of_two_gpus_or_under_anothers_name_is_refused(path: Path) -> None:
    result = load_result(path)
    other = result.model_copy(update={"gpu": GPU.model_copy(update={"name": "NVIDIA B"})})
    write_result(path.parent / "more.json", other)
    with pytest.raises(FlashladderError, match=r"more\.json: another GPU in this folder: expected NVIDIA Example 1"):
        machine.write(path.parent)
    (path.parent / "more.json").unlink()
    named = path.parent.rename(path.parent.parent / "h100")
    with pytest.raises(FlashladderError, match="results of NVIDIA Example 1 in a folder named h100"):
        machine.write(named)


def test_a_variant_is_in_no_lock_and_in_no_table_of_the_ladder(path: Path) -> None:
    result = made.swept()
    kernels = [made.ablated(one) for one in result.kernels.values()]
    names = {old: new.key for old, new in zip(result.kernels, kernels, strict=True)}

    text = derive(result.model_copy(update={"sweep": None})).model_dump_json()
    for old, new in names.items():
        text = text.replace(json.dumps(old), json.dumps(new))
    ablation = type(result).model_validate_json(text)
    ablation = derive(ablation.model_copy(update={"kernels": {one.key: one for one in kernels}}))
    for name, n_refused in (("ablation.json", 0), ("bench.json", 2)):
        (one,) = verify.verify(write_result(path.parent.parent / "own" / name, ablation))
        assert len([line for line in one.details if "refused: a variant" in line]) == n_refused
        assert len(one.details) == n_refused


def test_cells_of_the_emulator_are_compared_with_their_plan(tmp_path: Path) -> None:
    good = made.emulated()
    assert verify_sweep.problems(good) == []
    missing = good.model_copy(update={"cells": good.cells[:1]})
    assert [line.partition("H=1: ")[2] for line in verify_sweep.problems(missing)] == ["measured 0 times, expected 1"]
    wrong = good.cells[0].model_copy(update={"hazards": 1})
    (line,) = verify_sweep.problems(good.model_copy(update={"cells": (wrong, good.cells[1])}))
    assert line == f"cell {wrong.address}: wrong, and no failure"
    far = good.cells[0].model_copy(update={"accuracy": good.cells[0].accuracy.model_copy(update={"max_error": 1.0})})
    (line,) = verify_sweep.problems(good.model_copy(update={"cells": (far, good.cells[1])}))
    assert line == f"cell {far.address}: wrong, and no failure"
    (one,) = verify.verify(write_result(tmp_path / "cpu.json.gz", good))
    assert (one.status, one.sealed) == ("ok", False)
    assert one.summary == "emulated-sweep, 2 cells, schema 2; configs/grids/cpu.yaml was changed since"


def test_a_grid_whose_cells_are_others_today_is_named() -> None:
    sweep = made.swept().sweep
    assert sweep is not None
    told = re.fullmatch(
        r"configs/grids/h200.yaml gives (\d+) other cells today, and (\d) no more", str(grid_note(sweep))
    )
    assert told is not None
    assert int(told[1]) > 300
    assert int(told[2]) == 2, "16 in this configuration, at two lengths"
    none = sweep.model_copy(update={"grid": "none"})
    assert grid_note(none) == "configs/grids/none.yaml is no more"
    grid = load_grid("h200")
    whole = plan.make(grid, "h200", lambda cells: [made.TEXT] * len(cells))
    assert grid_note(sweep.model_copy(update={"planned": whole.cells})) is None


def test_what_a_sweep_packs_holds(tmp_path: Path) -> None:
    packed = plan.make(sweep_fixture.emulated_grid(tmp_path), "cpu", sweep_fixture.digests)
    records = Records(tmp_path / "records")
    for cell in packed.cells:
        records.write(sweep_fixture.emulated(cell, packed))
    pack(packed, records, tmp_path / "own" / "cpu.json.gz")
    (one,) = verify.verify(tmp_path / "own" / "cpu.json.gz")
    assert one.details == ()
    assert one.summary.startswith(f"emulated-sweep, {len(packed.cells)} cells")


def test_another_reference_has_to_be_described(path: Path) -> None:
    cell = made.planned("cudnn", "", SHAPE, made.settings_of(made.swept()), "cudnn 9")
    edited(path, lambda d: d["sweep"]["planned"].append(cell.model_dump(mode="json")))
    found = details(path)
    assert any("cell cudnn fp16 S=4096 B=16 H=16: measured 0 times" in line for line in found)
    assert any("the result does not say which cudnn this is" in line for line in found)
    assert verify_sweep.key_of(made.swept().sweep.planned[0]) == A_A  # type: ignore[union-attr]  # it has one


def test_a_cells_series_is_named_with_its_variant_and_toolchain() -> None:
    settings = made.settings_of(made.swept())
    cells = [made.planned(subject, FAST, SHAPE, settings) for subject in ("16", "16 - swizzle")]
    other = cells[0].model_copy(update={"toolchain": "13.1"})
    assert [verify_sweep.key_of(cell) for cell in (*cells, other)] == [
        f"16 {FAST}", f"16 - swizzle {FAST}", f"16 cuda 13.1 {FAST}"
    ]  # fmt: skip


def test_a_file_alone_is_checked_without_a_seal_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lone = write_result(tmp_path / "tune.json.gz", results.load_result(RESULTS / "h200" / "tune_07.json.gz"))
    assert verify.main([str(lone)]) == 0
    assert "no seal beside it" in capsys.readouterr().out
    assert verify.main([str(lone), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["status"], one["sealed"], one["summary"]) == ("ok", False, "bench, 47 cells, schema 2")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.json", "none.json: no such result: expected a result file or a folder of them"),
        ("empty", "empty: nothing to verify: expected result files in it, or in a folder of it, found none"),
        ("notes.txt", "notes.txt: not a result: expected a name that ends in .json or .json.gz"),
    ],
)
def test_nothing_to_verify_is_one_line_and_leaves_with_2(
    tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("", encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        verify.main([str(tmp_path / name)])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(message)


def test_what_is_no_document_any_more_is_one_line(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    found = verify.verify(path.parent)
    (one,) = [each for each in found if Path(each.path).name == path.name]
    assert one.status == "failed"
    assert "edited since it was sealed" in one.details[0]
    assert "not a JSON result" in one.details[1]
    assert {len(line.splitlines()) for line in one.details} == {1}


def test_committed_folders_hold_and_a_summary_edited_there_is_found(committed: Path) -> None:
    target = committed / "h200" / "tune_07.json.gz"
    before = {one: one.read_bytes() for one in (target, target.parent / SEAL, target.parent / machine.NAME)}
    result = load_result(target)
    first, *rest = result.summaries  # type: ignore[union-attr]  # a bench result
    write_result(target, result.model_copy(update={"summaries": (first.model_copy(update={"tflops": 1.0}), *rest)}))
    machine.write(target.parent)
    (one,) = verify.verify(target)
    assert [line.partition(":")[0] for line in one.details] == ["summaries does not follow from the raw samples"]
    for each, data in before.items():
        each.write_bytes(data)
    names = ("tune_07.json.gz", "counters.json.gz", "sanitizer.json.gz", "machine.json", "counters.csv")
    assert [verify.verify(target.parent / name)[0].details for name in names] == [()] * len(names)


def test_records_of_a_live_sweep_are_verified(tmp_path: Path) -> None:
    planned = plan.make(sweep_fixture.grid(tmp_path), "h200", sweep_fixture.digests)
    records = Records(tmp_path / "live")
    good = sweep_fixture.timed(planned.cells[0], planned)
    records.write(good)
    records.write(sweep_fixture.failed(planned.cells[1]))
    found = {one.path.rpartition("/")[2][:16]: one for one in verify.verify(tmp_path / "live")}
    assert {one.status for one in found.values()} == {"ok"}
    assert found[planned.cells[0].address].summary.startswith("record of a cell: 1 (FP16, ")
    assert found[planned.cells[1].address].summary.endswith(": failed, crash")
    document = good.document.model_copy(update={"floors_pct": {"fp16": 9.0}})  # type: ignore[union-attr]  # it has one
    records.write(good.model_copy(update={"document": document}))
    (bad,) = (one for one in verify.verify(tmp_path / "live") if one.status == "failed")
    assert "floors_pct does not follow from the raw samples" in bad.details[0]


def unsealed(sweeps: Path, *grids: str) -> None:
    """Folders as sweeps leave them: a packed document, and a folder of records beside it."""
    for grid in grids:
        (sweeps / grid / grid).mkdir(parents=True)
        shutil.copy(SWEPT, sweeps / grid / f"{grid}.json.gz")


@pytest.mark.parametrize("grids", [("cpu",), ("h200",), ("cpu", "h200")])
def test_what_a_sweep_left_is_verified_without_a_seal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], grids: tuple[str, ...]
) -> None:
    unsealed(tmp_path / "sweep", *grids)
    for folder in (tmp_path / "sweep", tmp_path / "sweep" / grids[0]):
        assert verify.main([str(folder)]) == 0
        *lines, last = capsys.readouterr().out.splitlines()
        assert last == f"all of {len(lines)} files hold"
        assert all("no seal beside it" in line for line in lines)
    assert len(verify.verify(tmp_path / "sweep")) == len(grids)


def test_a_damaged_document_of_a_sweep_is_found_without_a_seal(path: Path, tmp_path: Path) -> None:
    edited(path, lambda d: d["summaries"][0].update(tflops=1.0))
    unsealed(tmp_path / "sweep", "cpu")
    (tmp_path / "sweep" / "cpu" / "h200.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    (found,) = [one for one in verify.verify(tmp_path / "sweep") if one.status == "failed"]
    assert any("summaries does not follow" in line for line in found.details)


@pytest.mark.parametrize("also", [(), ("manifest.yaml",)])
def test_a_published_folder_without_its_seal_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also: tuple[str, ...]
) -> None:
    """One of a copy of results/; and a lone folder in results/ itself, also one without a manifest."""
    for name in ("h100", "h200"):
        (tmp_path / name).mkdir()
        for one in {"manifest.yaml", *((SEAL, machine.NAME) if name == "h200" else ())} - set(also):
            shutil.copy(RESULTS / name / one, tmp_path / name)
        shutil.copy(SWEPT, tmp_path / name)
    (tmp_path / "h200" / "manifest.yaml").touch()
    told = verify.verify(tmp_path / "h100")
    assert {SEAL, machine.NAME} <= {Path(one.path).name for one in told if one.status == "failed"}
    shutil.rmtree(tmp_path / "h200")
    monkeypatch.setattr(verify, "RESULTS", tmp_path)
    assert any(one.status == "failed" for one in verify.verify(tmp_path / "h100"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["results/h200", "--cells", "3"], "--cells and --seed are of a rerun; add --rerun"),
        (["results/h200", "--seed", "1"], "--cells and --seed are of a rerun; add --rerun"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        verify.main(words)
    assert told in capsys.readouterr().err


def test_a_folder_is_searched_one_level_deep(tmp_path: Path) -> None:
    unsealed(tmp_path / "far" / "sweep", "cpu")
    with pytest.raises(FlashladderError, match="nothing to verify"):
        verify.verify(tmp_path / "far")
    (tmp_path / "near" / "below").mkdir(parents=True)
    for folder in (tmp_path / "near", tmp_path / "near" / "below"):
        shutil.copy(SWEPT, folder)
    assert len(verify.verify(tmp_path / "near")) == 1


def test_a_manifest_that_cannot_be_read_is_said_once_and_fails_each_file_asked_for_alone(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "h100"
    shutil.copytree(RESULTS / "h100", folder)
    manifest = folder / "manifest.yaml"
    manifest.write_text(manifest.read_text(encoding="utf-8") + "  bad: [\n", encoding="utf-8")
    told = [line for line in details(manifest) if "not valid YAML" in line]
    assert len(told) == 1
    assert told[0].startswith("manifest.yaml: ")
    (alone,) = verify.verify(folder / "check.json.gz")
    assert alone.status == "failed"
    assert "not valid YAML" in alone.details[0]
