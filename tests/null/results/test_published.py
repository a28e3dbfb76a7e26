"""Published figures: taken over unchanged, typed, sourced, with the tolerance that rule and statistic ask for."""

from __future__ import annotations

from pathlib import Path
import shutil

import pytest

from flashladder.files import sha256
from flashladder.results import published
from tests.data_files import table_of
from tests.typed import error_line


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(published.PUBLISHED, tmp_path / "published"))


def test_every_cell_is_the_csv_to_the_digit_with_source_and_tolerance() -> None:
    found = published.load()
    columns = [(gpu, statistic) for gpu in ("a100", "rtx3090") for statistic in ("seq4096", "hmean")]
    assert len(found.cells) == 16 * 4
    assert {(cell.gpu, cell.statistic) for cell in found.cells} == set(columns)
    assert all(0 < cell.value < 150 and cell.source for cell in found.cells)
    assert {(cell.statistic, cell.tolerance) for cell in found.cells} == {("hmean", 1.5), ("seq4096", 2.0)}
    lines = (published.PUBLISHED / published.PROGRESSION).read_text(encoding="utf-8").splitlines()
    last = [cell.value for cell in found.cells if cell.iteration == 16]
    assert last == [float(text) for text in lines[-1].split(",")[2:]]
    assert found.column("a100", "seq4096")[-1] == found.cell(16, "a100", "seq4096").value == last[0]


def test_published_tflops_are_converted_to_our_flop_count() -> None:
    found = published.load()
    cell, fa2 = found.cell(16, "a100", "seq4096"), found.fa2_tflops["a100", "seq4096"]
    assert found.tflops(16, "a100", "seq4096") == pytest.approx(cell.value / 100 * fa2 / (1 + 6 / 512))


def test_sass_counts_cover_both_gpus() -> None:
    counts = published.sass_counts()
    assert set(counts) == {(number, gpu) for number in range(1, 17) for gpu in ("a100", "rtx3090")}
    assert counts[5, "a100"]["FMUL"] == 194
    assert counts[6, "a100"]["FMUL"] == counts[6, "rtx3090"]["FMUL"] == 132
    assert counts[9, "a100"]["IMAD.MOV.U32"] + counts[9, "a100"]["MOV"] == 55


def test_a_column_that_is_not_there_is_one_line(copy: Path) -> None:
    path = copy / published.DESCRIPTION
    path.write_text(path.read_text(encoding="utf-8").replace("a100_hmean_pct_of_fa2", "a100_hmean"), encoding="utf-8")
    assert "not the table that is described: found KeyError" in error_line(published.load, copy)


def test_an_edited_figure_is_refused(copy: Path) -> None:
    path = copy / published.PROGRESSION
    path.write_bytes(path.read_bytes().replace(b"99.2", b"109.2"))
    noted = published.load_description().files[published.PROGRESSION].sha256
    told = f"{path}: published figures were edited: expected SHA-256 {noted}, found {sha256(path.read_bytes())}"
    assert f"{told}; restore the file: published figures are copied, never" in error_line(published.load, copy)
    (copy / "extra.csv").write_text("a\n1\n", encoding="utf-8")
    (copy / "published_configs.csv").unlink()
    extra, missing, edited = published.problems(copy)
    assert extra == f"{copy / published.DESCRIPTION}: extra.csv is not described"
    assert missing.startswith(f"{copy / 'published_configs.csv'}: cannot read the file")
    assert edited.startswith(told)


@pytest.mark.parametrize(("old", "new", "message"), table_of("null/results/published", "fields"))
def test_a_malformed_description_names_the_field(copy: Path, old: str, new: str, message: str) -> None:
    path = copy / published.DESCRIPTION
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    assert error_line(published.load_description, copy).startswith(f"{path}: {message}")
