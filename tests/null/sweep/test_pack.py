"""Packing: all records in one document whose tables follow from all samples; done once, read afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.results.derive import problems
from flashladder.results.files import load_result
from flashladder.results.schema import BenchResult, EmulatedSweepResult, Reference, Settings
from flashladder.sweep import plan
from flashladder.sweep.records import Records
from flashladder.sweep.screen import Screen, emulated_table, finish, pack, require_own_name
from tests.null.bench_fixture import GPU
from tests.null.sweep_fixture import digests, emulated, emulated_grid, failed, grid, timed

TORCH = Reference(op="fa2", torch="2.12", cuda="13.0", kernels={})


@pytest.fixture
def made(tmp_path: Path) -> plan.Plan:
    return plan.make(grid(tmp_path), "h200", digests)


def filled(tmp_path: Path, made: plan.Plan) -> Records:
    records = Records(tmp_path / "out")
    for number, cell in enumerate(made.cells):
        records.write(timed(cell, made, seed=number))
    return records


def test_timed_cells_become_one_bench_result_that_holds(tmp_path: Path, made: plan.Plan) -> None:
    document = pack(made, filled(tmp_path, made))
    assert isinstance(document, BenchResult)
    assert load_result(tmp_path / "out.json.gz") == document
    assert problems(document) == []
    assert {summary.kernel[:2] for summary in document.summaries} == {"01", "16"}
    assert len(document.summaries) == 4  # the floor is none of them
    assert document.floors_pct.keys() == {"fp16"}
    assert document.sweep is not None
    assert document.sweep.planned == made.cells


def test_the_workers_are_numbered_anew_each_once(tmp_path: Path, made: plan.Plan) -> None:
    records = filled(tmp_path, made)
    first = timed(made.cells[0], made).document
    assert isinstance(first, BenchResult)
    other = first.processes[0].model_copy(update={"started_utc": "2026-01-02T00:00:00+00:00"})
    records.write(timed(made.cells[0], made, processes=(other,)))
    document = pack(made, records)
    assert isinstance(document, BenchResult)
    assert [process.index for process in document.processes] == [0, 1]
    assert [group.process for group in document.groups] == [0, 1, 1, 1, 1, 1]


def test_a_failure_comes_along_and_its_cell_has_no_numbers(tmp_path: Path, made: plan.Plan) -> None:
    records = filled(tmp_path, made)
    records.write(failed(made.cells[0]))
    document = pack(made, records)
    assert isinstance(document, BenchResult)
    assert document.sweep is not None
    assert [failure.address for failure in document.sweep.failures] == [made.cells[0].address]
    assert len(document.summaries) == 3


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"gpu": GPU.model_copy(update={"name": "NVIDIA Example 2"})}, "GPU models"),
     ({"gpu": GPU.model_copy(update={"driver": "1"})}, "drivers"),
     ({"mode": "event-locked"}, "modes or settings"),
     ({"reference": TORCH}, "torch versions"),
     ({"settings": Settings(pairs=12, blocks=4, min_pairs=9, flush_bytes=2**29)}, "modes or settings")],
)  # fmt: skip
def test_one_table_mixes_no_machines_and_no_modes(
    tmp_path: Path, made: plan.Plan, changed: dict[str, object], told: str
) -> None:
    records = filled(tmp_path, made)
    records.write(timed(made.cells[1], made, **changed))  # type: ignore[arg-type]  # fields of the document
    with pytest.raises(FlashladderError, match=f"different {told}, which one table must not mix"):
        pack(made, records)


def test_references_are_joined_over_dtypes_and_cells(tmp_path: Path, made: plan.Plan) -> None:
    """Each cell's process knows the kernel of its own dtype, or none."""
    records = filled(tmp_path, made)
    both = [TORCH.model_copy(update={"torch": "2.11", "kernels": {dtype: dtype}}) for dtype in ("fp16", "bf16")]
    both[1] = both[1].model_copy(update={"tile": "128x64"})
    for number, one in enumerate(both, start=2):
        records.write(timed(made.cells[number], made, reference=one, references={"cudnn": one}))
    document = pack(made, records)
    assert isinstance(document, BenchResult)
    for one in (document.reference, document.references["cudnn"]):
        assert (one.kernels, one.tile) == ({"fp16": "fp16", "bf16": "bf16"}, "128x64")


def test_emulated_cells_become_one_document_with_a_line_each(tmp_path: Path) -> None:
    made = plan.make(emulated_grid(tmp_path), "cpu", digests)
    records = Records(tmp_path / "out")
    for cell in made.cells:
        records.write(emulated(cell, made))
    document = pack(made, records)
    assert isinstance(document, EmulatedSweepResult)
    assert load_result(tmp_path / "out.json.gz") == document
    assert [cell.address for cell in document.cells] == [cell.address for cell in made.cells]
    lines = emulated_table(document).splitlines()
    assert len(lines) == len(made.cells) + 2  # a head, and what the last column means
    assert [line.split()[:3] for line in lines[1:-1]] == [
        [cell.subject, cell.dtype, str(cell.shape.seq_len)] for cell in made.cells
    ]
    assert all(line.split()[3:7] == ["1", "1", "33", "%"] for line in lines[1:-1])


def test_where_everything_failed_there_is_no_document(tmp_path: Path, made: plan.Plan) -> None:
    records = Records(tmp_path / "out")
    for cell in made.cells:
        records.write(failed(cell))
    with pytest.raises(FlashladderError, match="none of 6 cells was measured, the first: crash: its worker") as caught:
        pack(made, records)
    assert caught.value.exit_code == 1


def test_another_grids_document_is_not_replaced(tmp_path: Path, made: plan.Plan) -> None:
    records, screen = filled(tmp_path, made), Screen(made, 6, 0, 0.0, as_json=True)
    require_own_name(made.grid, records.packed)  # nothing is there yet
    finish(made, records, screen)
    require_own_name(made.grid, records.packed)
    with pytest.raises(FlashladderError) as caught:
        require_own_name(made.grid.model_copy(update={"name": "other"}), records.packed)
    where = f"{tmp_path / 'out.json.gz'}: this path already holds another grid's document: "
    assert str(caught.value) == f"{where}expected other, found {made.grid.name}; choose another folder with --out"
    (tmp_path / "out.json.gz").write_bytes(b"half")
    require_own_name(made.grid.model_copy(update={"name": "other"}), records.packed)
