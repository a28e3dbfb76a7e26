"""Records: whole or not there, of their own cell only, what a resumed sweep finds missing; kinds of failures."""

from __future__ import annotations

import gzip
from pathlib import Path

from pydantic import ValidationError
import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.sweep import plan
from flashladder.sweep.records import CellFailed, CellRecord, Records, kind_of
from tests.null.sweep_fixture import EMULATED, emulated, failed, planned


@pytest.fixture
def made(tmp_path: Path) -> plan.Plan:
    return planned(tmp_path, EMULATED, "cpu")


@pytest.mark.parametrize("damage", [b"no gzip", gzip.compress(b"{}", mtime=0)])
def test_a_damaged_record_is_one_line_that_says_what_to_do(tmp_path: Path, made: plan.Plan, damage: bytes) -> None:
    records = Records(tmp_path / "out")
    path = records.write(emulated(made.cells[0], made))
    path.write_bytes(damage)
    with pytest.raises(FlashladderError, match=r"not a record of the cell.*delete it to measure the cell again"):
        records.read(made.cells[0].address)
    with pytest.raises(FlashladderError, match="delete it"):  # before anything is measured, and in a dry run
        records.missing(made.cells)
    records.write(emulated(made.cells[0], made)).rename(records.path(made.cells[1].address))
    with pytest.raises(FlashladderError, match=f"another cell, {made.cells[0].address}"):
        records.read(made.cells[1].address)


def test_a_record_is_about_its_own_cell_and_holds_one_of_both(made: plan.Plan) -> None:
    one, other = (emulated(cell, made).model_dump(mode="json") for cell in made.cells[:2])
    bad = failed(made.cells[0]).model_dump(mode="json")
    for wrong in (one | {"cell": other["cell"]}, one | {"failure": bad["failure"]}, one | {"document": None}):
        with pytest.raises(ValidationError, match=r"either a document or a failure|contains cell"):
            CellRecord.model_validate(wrong)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "illegal-address"),
        (RuntimeError("CUDA error: device-side assert triggered"), "crash"),
        (RuntimeError("GPU is lost"), "gpu-lost"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out-of-memory"),
        (type("OutOfMemoryError", (RuntimeError,), {})("Tried to allocate"), "out-of-memory"),
        (MemoryError(), "out-of-memory"),
        (ValueError("shape"), "refused"),
        (FlashladderError("not installed here"), "refused"),
        (CheckFailed("other bits after timing"), "wrong"),
        (CellFailed("timeout", "GPU is lost"), "timeout"),
        (ZeroDivisionError("of all things"), "crash"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value)[:30],
)
def test_an_exception_has_its_kind(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind
