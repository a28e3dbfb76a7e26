"""Packing: all records become one document, whose tables follow from all samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.results.derive import problems
from flashladder.results.files import load_result
from flashladder.results.schema import BenchResult, EmulatedSweepResult, Reference, Settings
from flashladder.sweep import plan
from flashladder.sweep.records import Records
from flashladder.sweep.screen import Screen, emulated_table, finish, pack, require_own_name
from tests.null.bench_fixture import GPU
from tests.null.sweep_fixture import EMULATED, emulated, failed, planned, timed
from tests.typed import error_line

TORCH = Reference(op="fa2", torch="2.12", cuda="13.0", kernels={})


@pytest.fixture
def made(tmp_path: Path) -> plan.Plan:
    return planned(tmp_path)


@pytest.fixture
def records(tmp_path: Path, made: plan.Plan) -> Records:
    """A record of each cell, all by one worker."""
    found = Records(tmp_path / "out")
    for number, cell in enumerate(made.cells):
        found.write(timed(cell, made, seed=number))
    return found


def packed(made: plan.Plan, records: Records) -> BenchResult:
    document = pack(made, records)
    assert isinstance(document, BenchResult)
    assert document.sweep
    assert document.sweep.planned == made.cells
    return document


def test_timed_cells_become_one_valid_document(made: plan.Plan, records: Records) -> None:
    document = packed(made, records)
    assert load_result(records.packed) == document
    assert problems(document) == []
    assert [summary.kernel[:2] for summary in document.summaries] == ["01", "01", "16", "16"]  # without the A/A floor
    assert document.floors_pct.keys() == {"fp16"}


def test_each_worker_is_a_process_with_a_new_number(made: plan.Plan, records: Records) -> None:
    first = timed(made.cells[0], made).document
    assert isinstance(first, BenchResult)
    other = first.processes[0].model_copy(update={"started_utc": "2026-01-02T00:00:00+00:00"})
    records.write(timed(made.cells[0], made, processes=(other,)))
    document = packed(made, records)
    assert [process.index for process in document.processes] == [0, 1]
    assert [group.process for group in document.groups] == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({"gpu": GPU.model_copy(update={"name": "NVIDIA Example 2"})}, "GPU models"),
        ({"gpu": GPU.model_copy(update={"driver": "1"})}, "drivers"),
        ({"mode": "event-locked"}, "modes or settings"),
        ({"reference": TORCH}, "torch versions"),
        ({"settings": Settings(pairs=12, blocks=4, min_pairs=9, flush_bytes=2**29)}, "modes or settings"),
    ],
)
def test_one_table_mixes_no_machines_and_no_modes(
    made: plan.Plan, records: Records, changed: dict[str, Any], differing: str
) -> None:
    records.write(timed(made.cells[1], made, **changed))
    with pytest.raises(FlashladderError, match=f"different {differing}, which one table must not mix"):
        pack(made, records)


def test_references_are_merged_over_dtypes_and_cells(made: plan.Plan, records: Records) -> None:
    """Each cell's process knows the reference's kernel in its own dtype, or none."""
    both = [TORCH.model_copy(update={"torch": "2.11", "kernels": {dtype: dtype}}) for dtype in ("fp16", "bf16")]
    both[1] = both[1].model_copy(update={"tile": "128x64"})
    for number, one in enumerate(both, start=2):
        records.write(timed(made.cells[number], made, reference=one, references={"cudnn": one}))
    document = packed(made, records)
    for one in (document.reference, document.references["cudnn"]):
        assert (one.kernels, one.tile) == ({"fp16": "fp16", "bf16": "bf16"}, "128x64")


def test_emulated_cells_become_one_document_with_a_line_each(tmp_path: Path) -> None:
    made, records = planned(tmp_path, EMULATED, "cpu"), Records(tmp_path / "out")
    for cell in made.cells:
        records.write(emulated(cell, made))
    document = pack(made, records)
    assert isinstance(document, EmulatedSweepResult)
    assert load_result(records.packed) == document
    assert [cell.address for cell in document.cells] == [cell.address for cell in made.cells]
    assert [line.split()[:7] for line in emulated_table(document).splitlines()[1:-1]] == [
        [cell.subject, cell.dtype, str(cell.shape.seq_len), "1", "1", "33", "%"] for cell in made.cells
    ]


def test_without_a_measured_cell_there_is_no_document(made: plan.Plan, records: Records) -> None:
    for cell in made.cells:
        records.write(failed(cell))
    with pytest.raises(FlashladderError, match="none of 6 cells was measured, the first: crash: its worker") as caught:
        pack(made, records)
    assert caught.value.exit_code == 1


def test_another_grids_document_is_not_replaced(made: plan.Plan, records: Records) -> None:
    other = made.grid.model_copy(update={"name": "other"})
    require_own_name(other, records.packed)  # nothing is there yet
    finish(made, records, Screen(made, 6, 0, 0.0, as_json=True))
    require_own_name(made.grid, records.packed)
    where = f"{records.packed}: this path already holds another grid's document: "
    told = f"{where}expected other, found {made.grid.name}; choose another folder with --out"
    assert error_line(require_own_name, other, records.packed) == told
    records.packed.write_bytes(b"half")
    require_own_name(other, records.packed)
