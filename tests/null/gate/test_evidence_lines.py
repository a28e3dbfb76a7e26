"""What each kind of evidence is held to, a line for each thing that is otherwise: small documents made for one line."""

from __future__ import annotations

from dataclasses import replace
import json
import math
from pathlib import Path
from typing import Any

import pytest

from flashladder.gate.evidence import cross, manifest, proofs, repeats, timings
from flashladder.gate.evidence.rule12 import Known, known_of
from flashladder.ladder.grid import load_grid
from flashladder.ladder.iteration import load_all
from flashladder.ladder.manifest import (
    Accuracy,
    Log,
    Manifest,
    Opinions,
    Rates,
    Timings,
    Trials,
    load_manifest,
)
from flashladder.paths import RESULTS
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult

H200 = RESULTS / "h200"
RESULT = load_as(H200 / "bench.json.gz", BenchResult)


def held(name: str) -> Any:
    """What the H200's manifest says of a file."""
    return load_manifest(H200).files[name]


LISTED = "tests/a.py::one PASSED\ntests/a.py::two[x] PASSED\n"
FINE = f"{LISTED}==== 2 passed, 1 skipped in 1.50s ====\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FINE, None),
        (FINE.replace("1.50s", "90.10s (0:01:30)"), None),
        (FINE.replace("skipped", "skipped, 1 warning"), None),
        ("", "0 passed, 0 skipped, 0 failed, 0 listed"),
        (LISTED, "0 passed, 0 skipped, 0 failed, 2 listed"),
        (FINE.replace("2 passed", "1 failed, 2 passed"), "2 passed, 1 skipped, 1 failed, 2 listed"),
        (FINE.replace(", 1 skipped", ""), "2 passed, 0 skipped, 0 failed, 2 listed"),
        (FINE.replace("two[x] PASSED", "two[x] FAILED"), "2 passed, 1 skipped, 0 failed, 1 listed"),
        (FINE.replace("2 passed", "3 passed"), "3 passed, 1 skipped, 0 failed, 2 listed"),
    ],
)
def test_a_log_is_pytests_last_line_and_the_tests_above_it(tmp_path: Path, text: str, found: str | None) -> None:
    (tmp_path / "a.log").write_text(text, encoding="utf-8")
    lines = list(proofs.log(tmp_path / "a.log", Log(holds="tests", passed=2, skipped=1)))
    assert lines == ([f"tests: expected 2 passed, 1 skipped, found {found}"] if found else [])


@pytest.mark.parametrize(
    ("pairs", "lines"),
    [
        ([2, 3], []),
        ([5], ["trials: expected 2, found 1"]),
        ([2, 2], ["pairs: expected 5 in all, found 4"]),
        ([], ["trials: expected 2, found 0", "pairs: expected 5 in all, found 0"]),
    ],
)
def test_trials_are_as_many_with_as_many_pairs(tmp_path: Path, pairs: list[int], lines: list[str]) -> None:
    document = {"trials": [{"pairs_ms": [[1.0, 1.0]] * n} for n in pairs]}
    (tmp_path / "a.json").write_text(json.dumps(document), encoding="utf-8")
    assert list(proofs.trials(tmp_path / "a.json", Trials(holds="trials", trials=2, pairs=5))) == lines


@pytest.mark.parametrize(
    ("spans", "alone", "told"),
    [
        ([[5, 6], [5, 1]], False, None),
        ([[5], [1]], True, None),
        ([[5, 6]], False, "expected [2, 2] spans, found [2]"),
        ([[5, 6], [5]], False, "expected [2, 2] spans, found [2, 1]"),
        ([[5, 6], [5, 6]], True, "expected [1, 1] spans, found [2, 2]"),
        ([[5, 6], [5, 0]], False, "a span that is not positive"),
    ],
)
def test_rates_have_a_span_of_every_sm_each_time(
    tmp_path: Path, spans: list[list[int]], alone: bool, told: str | None
) -> None:
    run = {"round": "hmma", "chains": 4, "warps": 8, "alone": alone, "spans": spans}
    (tmp_path / "a.json").write_text(json.dumps({"gpu": {"n_sm": 2}, "runs": [run]}), encoding="utf-8")
    lines = list(proofs.rates(tmp_path / "a.json", Rates(holds="rates", runs=1, repeats=2)))
    assert lines == ([f"hmma, 4 chains, 8 warps: {told}"] if told else [])
    lines = list(proofs.rates(tmp_path / "a.json", Rates(holds="rates", runs=3, repeats=2)))
    assert lines[0] == "runs: expected 3, found 1"


def test_a_tool_without_samples_has_none() -> None:
    spec: Opinions = held("opinions.json.gz")
    path = H200 / "opinions.json.gz"
    assert list(proofs.opinions(path, spec)) == []
    found = list(proofs.opinions(path, spec.model_copy(update={"samples": {"stopwatch": 1}})))
    subjects = len(timings.keys(spec.of)) + len(spec.of.dtypes)
    assert len(found) == subjects * len(spec.seq_lens)
    assert found[0].startswith("stopwatch 0")
    assert all(line.endswith(f" S={spec.seq_lens[0]}: expected 1 samples, found 0") for line in found[:subjects])


@pytest.mark.parametrize(
    ("field", "value", "line"),
    [
        ("purpose", "tune", "purpose: expected tune, found report"),
        ("mode", "ncu-base", "mode: expected ncu-base, found event-free"),
        ("protocol", "9", "protocol_version: expected 9, found 1"),
        ("pairs", 25, "settings.pairs: expected 25, found 24"),
        ("blocks", 9, "settings.blocks: expected 9, found 8"),
        ("min_pairs", 21, "settings.min_pairs: expected 21, found 20"),
        ("grid", "h200", "grid: expected h200, found None"),
        ("references", ["cudnn"], "references: expected ['cudnn'], found []"),
        ("processes", 2, "processes: expected 2, found 1"),
        ("day", "2026-11-21", "process 0: expected a start on 2026-11-21, found 2026-11-20T"),
    ],
)
def test_a_timing_that_was_made_otherwise_is_named(field: str, value: object, line: str) -> None:
    spec: Timings = held("bench.json.gz").model_copy(update={field: value})
    assert next(iter(timings.problems(RESULT, spec))).startswith(line)


FEWTILES = load_as(H200 / "fewtiles.json.gz", BenchResult)


def test_cells_of_a_sweep_are_asked_at_the_shapes_of_its_grid() -> None:
    """Two heads of one sample, where the ladder's own shape at that length has other batches and heads."""
    spec = held("fewtiles.json.gz")
    assert list(timings.problems(FEWTILES, spec)) == []
    elsewhere = spec.model_copy(update={"grid": None})
    lines = list(timings.cells(FEWTILES, elsewhere))
    assert "fp16 S=1024: all of 5 cells are missing" in lines
    assert "cell cudnn fp16 S=1024 B=1 H=2: measured, and not in the manifest" in lines


def test_each_shape_of_a_length_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid may have several batches or numbers of heads at one length."""
    grid = load_grid("fewtiles")
    more = replace(
        grid, shapes=(*grid.shapes, grid.shapes[0].model_copy(update={"n_heads": grid.shapes[0].n_heads + 1}))
    )
    monkeypatch.setattr(timings, "load_grid", lambda _: more)
    spec = held("fewtiles.json.gz")
    (first, *_), length = timings.asked(spec), grid.shapes[0].seq_len
    assert first == length
    assert len(timings.asked(spec)[length]) == 2
    lines = list(timings.cells(FEWTILES, spec))
    assert lines
    assert all(f"S={length}" in line for line in lines)


def test_a_length_that_the_grid_lacks_is_a_problem_of_its_own() -> None:
    spec = held("fewtiles.json.gz")
    more = spec.model_copy(update={"seq_lens": [512, *spec.seq_lens]})
    assert list(timings.cells(FEWTILES, more)) == [
        "S=512: the grid fewtiles has no such length: expected one of 1024, 2048, 4096, 8192, 16384"
    ]


def test_a_length_of_the_grid_that_the_manifest_leaves_out_is_told_of() -> None:
    owed = load_manifest(H200)
    fewer = owed.files["fewtiles.json.gz"].model_copy(update={"seq_lens": [1024, 2048, 4096, 8192]})
    changed = owed.model_copy(update={"files": {**owed.files, "fewtiles.json.gz": fewer}})
    assert list(manifest.too_little(owed, "h200")) == []
    assert list(manifest.too_little(changed, "h200")) == ["timings: S=16384: is not asked for"]


def test_lengths_without_a_grid_are_the_ladders() -> None:
    assert timings.lengths(None) == (512, 1024, 2048, 4096, 8192, 16384)
    assert timings.lengths("fewtiles") == (1024, 2048, 4096, 8192, 16384)


@pytest.mark.parametrize(
    ("machine", "folder", "lines"),
    [
        ("h200", "h200", ["expected timings of the ladder in the configurations a100, h200, found none"]),
        ("a100", "a100", ["expected timings of the ladder in the configurations a100, found none"]),
        ("abacus", "abacus", ["machine: expected one of configs/gpus, found abacus"]),
        ("abacus", "h200", ["machine: expected h200, as the folder, found abacus",
                            "machine: expected one of configs/gpus, found abacus"]),
    ],
)  # fmt: skip
def test_a_manifest_of_texts_alone_asks_too_little(machine: str, folder: str, lines: list[str]) -> None:
    found = list(manifest.too_little(Manifest(machine=machine, files={"README.md": held("README.md")}), folder))
    cases = "expected cases of all configurations of the ladder (prog), found none"
    kinds = {**manifest.LEAST, **manifest.MORE.get(machine, {})} if machine != "abacus" else {}
    few = [f"{kind}: expected at least {least} files that hold them, found 0" for kind, least in kinds.items()]
    assert found == [*few, *lines, *([] if machine == "abacus" else [cases])]


def test_a_cell_is_known_by_all_that_was_recorded_of_its_run() -> None:
    cell = RESULT.summaries[0]
    kernel = RESULT.kernels[cell.kernel]
    known = known_of(RESULT, cell)
    assert known == Known(
        config=kernel.config,
        code=kernel.text_sha256,
        compiler="nvidia-cuda-nvcc 13.0.88, nvidia-nvvm 13.0.88",
        clock_mhz=cell.sm_clock_mhz,
        fa2_tflops=cell.reference_tflops,
        driver="580.159.04",
        torch="2.11.0+cu130",
        card="GPU-f91cafd0-a85e-0404-ed3c-c291b2f2e415",
    )
    assert None not in vars(known).values()
    mean = known_of(RESULT, RESULT.means[0])
    assert (mean.config, mean.clock_mhz, mean.fa2_tflops, mean.card) == (kernel.config, None, None, known.card)
    unknown = known_of(RESULT.model_copy(update={"kernels": {}}), cell)
    assert (unknown.config, unknown.code, unknown.compiler) == (None, None, None)


def test_a_cell_of_another_shape_than_the_ladders_is_named_with_it() -> None:
    """Else a reason for the one would excuse the other."""
    cell = RESULT.summaries[0]
    name = f"{cell.kernel} {cell.dtype} S={cell.shape.seq_len}"
    assert repeats.cell_of(cell) == name
    for change in ({"batch": 1}, {"n_heads": 2}):
        other = cell.model_copy(update={"shape": cell.shape.model_copy(update=change)})
        assert repeats.cell_of(other) == f"{name} B={other.shape.batch} H={other.shape.n_heads}"
    odd = cell.model_copy(update={"shape": cell.shape.model_copy(update={"seq_len": 640})})
    assert repeats.cell_of(odd).endswith(f" S=640 B={cell.shape.batch} H=16")


@pytest.mark.parametrize("sign", [1, -1], ids=["above", "below"])
@pytest.mark.parametrize(
    ("beside", "floors", "differs"),
    [
        ({"b": "a"}, 0.9, False),
        ({"b": "a"}, 1.1, True),
        ({"a": "b"}, 0.9, False),
        ({"a": "b"}, 1.1, True),
        ({}, 1.9, False),
        ({}, 2.1, True),
        ({"b": "other"}, 1.9, False),
    ],
)
def test_the_other_half_of_a_file_agrees_within_both_floors_any_other_within_twice_that(
    beside: dict[str, str], floors: float, differs: bool, sign: int
) -> None:
    cell = RESULT.summaries[0]
    floor = math.log1p(RESULT.floors_pct[cell.dtype] / 100)
    factor = math.exp(sign * (math.log(cell.pct_high / cell.pct_low) + floors * 2 * floor))
    moved = {name: getattr(cell, name) * factor for name in ("pct", "pct_low", "pct_high")}
    pair = {"a": cell, "b": cell.model_copy(update=moved)}
    files = {name: RESULT.model_copy(update={"summaries": (one,)}) for name, one in pair.items()}
    lines = list(repeats.disagreements(files, beside))
    assert len(lines) == differs
    if differs:
        allowed = 100 * 2 * floor * (1 if beside else repeats.OTHERWISE)
        assert (
            f"as in a, within both intervals and {allowed:.2f} % for the floors, found {moved['pct']:.2f}" in lines[0]
        )


@pytest.mark.parametrize("field", ["torch", "cuda", "op"])
def test_another_build_of_fa2_is_named_by_its_field(field: str) -> None:
    other = RESULT.model_copy(update={"reference": RESULT.reference.model_copy(update={field: "0.1"})})
    expected = f"expected {getattr(RESULT.reference, field)}, as in a, found 0.1"
    assert list(cross._references({"a": RESULT, "b": other})) == [f"b: reference.{field}: {expected}"]


def test_errors_of_a_family_are_owed_for_all_its_later_steps() -> None:
    owed = load_manifest(H200)
    steps = [step.number for step in load_all() if step.family.name == "hopper" and not step.unmeasured]

    def lines(iterations: list[int], inputs: int) -> list[str]:
        asked = Accuracy(holds="accuracy", iterations=iterations, inputs=inputs)
        files = {**owed.files, "accuracy_hopper.json.gz": asked}
        return list(manifest.too_little(owed.model_copy(update={"files": files}), "h200"))

    assert lines(steps, 63) == []
    assert lines(steps[:-1], 63) == [f"accuracy: iteration {steps[-1]} is not asked for"]
    assert lines(steps, 57) == ["accuracy: expected at least 63 inputs, found 57"]
    assert lines([16, 17, 18, 19], 57) == ["accuracy: expected at least 63 inputs, found 57"]
    assert lines([16, 17, 18, 19], 63) == []


def test_a_file_of_another_card_is_of_another_card(tmp_path: Path) -> None:
    """The first file once more under the second one's name agrees with itself in every sample."""
    names = ("persistent.json.gz", "persistent_second.json.gz", "manifest.yaml")
    for name in names:
        (tmp_path / name).write_bytes((RESULTS / "h100" / name).read_bytes())
    told = "persistent_second.json.gz: gpu.uuid: expected another card than that of persistent.json.gz"
    assert not any(told in line for line in cross.folder_problems(tmp_path).problems)
    (tmp_path / names[1]).write_bytes((tmp_path / names[0]).read_bytes())
    assert sum(told in line for line in cross.folder_problems(tmp_path).problems) == 1


def test_a_length_is_named_once() -> None:
    facts = held("fewtiles.json.gz").model_dump(exclude_none=True)
    with pytest.raises(ValueError, match=r"expected each length once, found \[1024, 1024\]"):
        Timings.model_validate({**facts, "seq_lens": [1024, 1024]})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"other_card_than": "elsewhere.json.gz"},
            "other_card_than: expected a file of this folder with timings, found elsewhere.json.gz",
        ),
        ({"beside": "bensh.json.gz"}, "beside: expected a file of this folder with timings, found bensh.json.gz"),
        ({"other_card_than": None}, "expected other_card_than, as its name says that it is of a second card"),
        ({}, None),
    ],
)
def test_a_file_of_which_another_is_said_is_there(change: dict[str, object], line: str | None) -> None:
    known = cross.timings(RESULTS / "h100")
    name = "persistent_second.json.gz"
    documents = {one: load_as(RESULTS / "h100" / one, BenchResult) for one in (name, "persistent.json.gz")}
    told = list(cross._unnamed(documents, {name: known[name].model_copy(update=change)}))
    assert told == ([f"manifest.yaml: {name}: {line}"] if line else [])
