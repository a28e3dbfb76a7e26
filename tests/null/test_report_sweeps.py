"""Pages of sweeps: from a packed document of made-up times to its table, references and failures."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from flashladder import report_sweeps
from flashladder.result_origin import Reference
from flashladder.result_schema import BenchResult
from flashladder.results import write_result
from flashladder.sweep import plan
from flashladder.sweep.pack import pack
from flashladder.sweep.records import Records
from tests.null.sweep_fixture import SMALL, digests, failed, grid, timed


@pytest.fixture
def packed(tmp_path: Path) -> BenchResult:
    """A sweep of the grid `h200` in which one of six cells failed."""
    made = plan.make(grid(tmp_path, SMALL, "h200"), "h200", digests)
    records = Records(tmp_path / "out")
    for number, cell in enumerate(made.cells):
        records.write(failed(cell) if number == 1 else timed(cell, made, seed=number))
    document = pack(made, records, tmp_path / "h200.json.gz")
    assert isinstance(document, BenchResult)
    return document


def pages(tmp_path: Path, document: BenchResult, name: str = "h200.json.gz") -> dict[str, bytes]:
    write_result(tmp_path / "results" / "h200" / name, document)
    return report_sweeps.render(tmp_path / "results")


def test_a_sweep_has_a_page_and_a_table_of_every_cell(tmp_path: Path, packed: BenchResult) -> None:
    found = pages(tmp_path, packed)
    assert set(found) == {"sweep_h200.md", "sweep_h200.csv"}
    text = found["sweep_h200.md"].decode()
    assert f"## fp16, percent of FA2's speed; A/A floor {packed.floors_pct['fp16']:.2f} points" in text
    by_cell = {(one.kernel[:2], one.shape.seq_len): one for one in packed.summaries}
    (last,) = (line for line in text.splitlines() if line.startswith("| 16 "))
    cells = [cell.strip() for cell in last.strip("|").split("|")]
    assert cells[2:4] == [f"{by_cell['16', n].pct:.1f} +" for n in (512, 1024)]
    rows = list(csv.DictReader(io.StringIO(found["sweep_h200.csv"].decode())))
    assert [float(row["pct_of_fa2"]) for row in rows] == pytest.approx([one.pct for one in packed.summaries], abs=1e-4)
    assert {row["a_a_floor_points"] for row in rows} == {f"{packed.floors_pct['fp16']:.4f}"}


def test_a_cell_that_failed_is_named_and_leaves_a_dash(tmp_path: Path, packed: BenchResult) -> None:
    text = pages(tmp_path, packed)["sweep_h200.md"].decode()
    (line,) = (line for line in text.splitlines() if line.startswith("| 1 ") and "crash" in line)
    assert "its worker ended with signal SIGSEGV" in line
    (first,) = (line for line in text.splitlines() if line.startswith("| 1 ") and "crash" not in line)
    assert [cell.strip() for cell in first.strip("|").split("|")][3] == "–"


def test_references_are_told_with_version_tile_and_kernel(tmp_path: Path, packed: BenchResult) -> None:
    one = Reference(op="x", version="9.1", tile="64x128", torch="2.11", cuda=None, kernels={"fp16": "k" * 200})
    text = pages(tmp_path, packed.model_copy(update={"references": {"cudnn": one}}))["sweep_h200.md"].decode()
    (line,) = (line for line in text.splitlines() if line.startswith("| cudnn"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["cudnn", "9.1", "64x128", f"`{'k' * 90}`"]


def test_other_documents_have_no_page(tmp_path: Path, packed: BenchResult) -> None:
    assert pages(tmp_path, packed, "other.json.gz") == {}  # not called as a grid
    assert pages(tmp_path, packed, "h100.json.gz") == {}  # another grid's name
    assert pages(tmp_path, packed.model_copy(update={"purpose": "tune"})) == {}
    assert pages(tmp_path, packed.model_copy(update={"sweep": None})) == {}
