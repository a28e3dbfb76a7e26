"""`verify` on simulated sweeps, live sweeps and folders, and its usage errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
import shutil

import pytest

from flashladder.files import sha256
from flashladder.gate import verify
from flashladder.ladder.grid import load_grid
from flashladder.lock.schema import LockFile, write_lock
from flashladder.paths import RESULTS
from flashladder.problem import Problem
from flashladder.results import schema
from flashladder.results.derive import derive
from flashladder.results.files import load_result, machine_name, write_result
from flashladder.results.schema import BenchResult, EmulatedCell, EmulatedSweepResult, Failure, PlannedCell, Sweep
from flashladder.sweep import plan
from flashladder.sweep.plan import CPU, Settings, cell_of, with_code
from flashladder.sweep.records import Records
from tests.null import sweep_fixture
from tests.null.bench_fixture import FAST, GOOD, GPU, SHAPE, SLOW, group, result
from tests.null.ladder_fixture import lock
from tests.typed import command, error_line, printed

TEXT = "ab" * 32  # digest of the fixture's machine code
OTHER = "cd" * 32
NAME = machine_name(GPU.name)
SHORT = Problem(batch=16, seq_len=512, n_heads=16, d_head=128)
GRID = "h200"


def of_grid(made: BenchResult | EmulatedSweepResult) -> list[str]:
    return list(verify._sweep(made))


def settings_of(made: BenchResult) -> Settings:
    own = made.settings
    return Settings(NAME, made.mode, own.pairs, own.blocks, own.min_pairs)


def planned(subject: str, config: str, shape: Problem, settings: Settings, code: str = TEXT) -> PlannedCell:
    return with_code(cell_of(subject, config, "fp16", shape), code, settings)


def swept() -> BenchResult:
    """Two kernels and the floor at two lengths."""
    made = result(group(), group(shape=SHORT))
    subjects = (("fa2", "", "fa2 2.11"), ("16", FAST, TEXT), ("1", SLOW, TEXT))
    cells = tuple(
        planned(subject, config, shape, settings_of(made), code)
        for shape in (SHAPE, SHORT)
        for subject, config, code in subjects
    )
    sweep = Sweep(grid=GRID, grid_sha256="0" * 64, planned=cells)
    return derive(made.model_copy(update={"sweep": sweep}))


def emulated() -> EmulatedSweepResult:
    """Two cells of the emulator."""
    made = result()
    ptx = {"text_sha256": None, "build": TEXT, "arch": "compute_80"}
    kernels = [one.model_copy(update=ptx) for one in made.kernels.values()]
    shape = Problem(batch=1, seq_len=64, n_heads=1, d_head=128)
    cells = tuple(planned(str(one.iteration), one.config, shape, Settings(CPU, "emulator")) for one in kernels)
    return EmulatedSweepResult(
        rung="CPU only", host=made.host, kernels={one.key: one for one in kernels},
        sweep=Sweep(grid="cpu", grid_sha256="0" * 64, planned=cells),
        cells=tuple(
            EmulatedCell(address=cell.address, accuracy=GOOD, counters={"a": 1}, instructions=9, hazards=0)
            for cell in cells
        ),
    )  # fmt: skip


SWEPT = RESULTS / "h200" / "tune_07.json.gz"  # as small as a committed sweep gets
FAST_KEY = schema.kernel_key(16, FAST)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A machine's folder beside the locks of the made-up kernels."""
    locks = {number: lock({config: TEXT}) for number, config in ((16, FAST), (1, SLOW))}
    write_lock(LockFile(arch="sm_90", iterations=locks), tmp_path / "locks")
    return tmp_path / NAME


def test_a_failed_cell_has_no_measurement(folder: Path) -> None:
    made = swept()
    assert made.sweep is not None
    failure = Failure(address=made.sweep.planned[1].address, kind="timeout", message="60 s")
    failed = made.model_copy(update={"sweep": made.sweep.model_copy(update={"failures": (failure,)})})
    path = write_result(folder / f"{GRID}.json", failed)
    (found,) = verify.verify(path)
    assert found.details == (f"cell 16 {FAST} S=4096 B=16 H=16: recorded as failed, but measured 1 times",)
    assert command("verify", str(path)) == 1
    first, *others = failed.groups
    blocks = [
        one.model_copy(update={"order": tuple(key for key in one.order if key != FAST_KEY)}) for one in first.blocks
    ]
    update = {"series": tuple(one for one in first.series if one.kernel != FAST_KEY), "blocks": tuple(blocks)}
    groups = (first.model_copy(update=update), *others)
    (found,) = verify.verify(write_result(path, derive(failed.model_copy(update={"groups": groups}))))
    assert found.details == ()


def test_a_tuning_runs_cells_may_be_timed_again_but_not_once_they_failed() -> None:
    """Rungs time survivors again; their addresses are of the mode."""
    one = swept()
    assert one.sweep is not None
    rungs = one.model_copy(update={"purpose": "tune"})
    settings = verify._settings(rungs)
    assert (settings.mode, verify._settings(one).mode) == ("tune", one.mode)
    planned = tuple(with_code(cell, cell.code, settings) for cell in one.sweep.planned)
    sweep = one.sweep.model_copy(update={"planned": planned})
    whole = rungs.model_copy(update={"sweep": sweep, "groups": (*rungs.groups, rungs.groups[0])})
    assert of_grid(whole) == []
    bare = whole.model_copy(
        update={"groups": tuple(one.model_copy(update={"series": one.series[:-1]}) for one in whole.groups)}
    )
    assert any(line.endswith("measured 0 times, expected 1") for line in of_grid(bare))
    failures = (Failure(address=planned[1].address, kind="wrong", message="far off"),)
    failed = whole.model_copy(update={"sweep": sweep.model_copy(update={"failures": failures})})
    (line,) = of_grid(failed)
    assert line.endswith("recorded as failed, but measured 2 times")


def test_a_variant_is_in_no_lock_and_in_no_table_of_the_ladder(folder: Path) -> None:
    result = swept()
    change = {"variant": " - swizzle", "text_sha256": OTHER}
    kernels = [one.model_copy(update=change) for one in result.kernels.values()]
    names = {old: new.key for old, new in zip(result.kernels, kernels, strict=True)}

    text = derive(result.model_copy(update={"sweep": None})).model_dump_json()
    for old, new in names.items():
        text = text.replace(json.dumps(old), json.dumps(new))
    ablation = type(result).model_validate_json(text)
    ablation = derive(ablation.model_copy(update={"kernels": {one.key: one for one in kernels}}))
    for name, n_refused in (("ablation.json", 0), ("bench.json", 2)):
        (one,) = verify.verify(write_result(folder / name, ablation))
        assert len([line for line in one.details if "refused: a variant" in line]) == n_refused
        assert len(one.details) == n_refused


def test_cells_of_the_emulator_are_compared_with_their_plan(tmp_path: Path) -> None:
    good = emulated()
    assert of_grid(good) == []
    missing = good.model_copy(update={"cells": good.cells[:1]})
    assert [line.partition("H=1: ")[2] for line in of_grid(missing)] == ["measured 0 times, expected 1"]
    for change in ({"hazards": 1}, {"accuracy": GOOD.model_copy(update={"max_error": 1.0})}):
        wrong = good.cells[0].model_copy(update=change)
        (line,) = of_grid(good.model_copy(update={"cells": (wrong, good.cells[1])}))
        assert line == f"cell {wrong.address}: races or wrong numbers, but not recorded as a failure"

    (one,) = verify.verify(write_result(tmp_path / "cpu.json.gz", good))
    assert one.status == "ok"
    note = "configs/grids/cpu.yaml changed since this sweep, so completeness was not checked"
    assert one.summary == f"emulated-sweep, 2 cells, schema 2; {note}"


def test_a_library_that_is_nowhere_in_a_sweep_was_not_installed() -> None:
    whole = plan.make(load_grid("h200"), "h200", lambda cells: [TEXT] * len(cells))
    sweep = swept().sweep
    assert sweep is not None
    digest = sha256((verify.GRIDS / "h200.yaml").read_bytes())

    def lost(cells: tuple[PlannedCell, ...]) -> list[str]:
        return list(verify._missing_from_plan(sweep.model_copy(update={"planned": cells, "grid_sha256": digest})))

    assert lost(whole.cells) == []
    assert lost(tuple(cell for cell in whole.cells if cell.subject != "cudnn")) == []
    first = next(cell for cell in whole.cells if cell.subject == "cudnn")
    assert len(lost(tuple(cell for cell in whole.cells if cell != first))) == 1


def test_a_file_alone_is_verified_as_json_too(tmp_path: Path) -> None:
    lone = write_result(tmp_path / "tune.json.gz", load_result(SWEPT))
    (one,) = json.loads(printed("verify", str(lone), "--json"))
    assert (one["status"], one["summary"], one["details"]) == ("ok", "bench, 47 cells, schema 2", [])
    for option in ("--cells", "--seed"):
        assert "--cells and --seed need --rerun" in error_line(command, "verify", str(lone), option, "3")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "empty: nothing to verify: expected result files in it, or in a folder of it, found none"),
        ("notes.txt", "notes.txt: not a result: expected a name that ends in .json or .json.gz"),
    ],
)
def test_nothing_to_verify_is_one_line_and_leaves_with_2(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("", encoding="utf-8")
    assert error_line(command, "verify", str(tmp_path / name)).endswith(message)


def test_records_of_a_live_sweep_are_verified(tmp_path: Path) -> None:
    planned = plan.make(sweep_fixture.grid(tmp_path), "h200", sweep_fixture.digests)
    records = Records(tmp_path / "live")
    good = sweep_fixture.timed(planned.cells[0], planned)
    records.write(good)
    records.write(sweep_fixture.failed(planned.cells[1]))
    found = {one.name.rpartition("/")[2][:16]: one for one in verify.verify(tmp_path / "live")}
    assert {one.status for one in found.values()} == {"ok"}
    assert found[planned.cells[0].address].summary.startswith("record of a cell: 1 (FP16, ")
    assert found[planned.cells[1].address].summary.endswith(": failed, crash")
    document = good.document.model_copy(update={"floors_pct": {"fp16": 9.0}})  # type: ignore[union-attr]  # it has one
    records.write(good.model_copy(update={"document": document}))
    (bad,) = (one for one in verify.verify(tmp_path / "live") if one.status == "failed")
    assert "floors_pct does not follow from the raw samples" in bad.details[0]


def test_a_folder_is_searched_one_level_deep(tmp_path: Path) -> None:
    """A sweep leaves a packed document, and a folder of records beside it."""
    for place in ("sweep/cpu", "sweep/h200", "far/sweep/cpu", "near", "near/below"):
        (tmp_path / place / "records").mkdir(parents=True)
        shutil.copy(SWEPT, tmp_path / place)
    told: list[verify.Outcome] = []
    assert verify.verify(tmp_path / "sweep", told.append) == told
    assert [one.status for one in told] == ["ok", "ok"]
    assert "nothing to verify" in error_line(verify.verify, tmp_path / "far")
    assert len(verify.verify(tmp_path / "near")) == 2


def test_committed_data_of_another_form_is_no_broken_result() -> None:
    for name in ("explain/predictions.json", "fuzzing.json"):
        (one,) = verify.verify(RESULTS / name)
        assert (one.status, one.summary) == ("ok", "not a result document; only its JSON syntax was checked")


def test_a_list_in_a_machines_folder_is_a_broken_result(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    (tmp_path / "rates.json.gz").write_bytes(gzip.compress(b"[]"))
    (one,) = verify.verify(tmp_path / "rates.json.gz")
    assert one.details[0].startswith("result of another schema: expected schema_version 2, found a list; restore")
