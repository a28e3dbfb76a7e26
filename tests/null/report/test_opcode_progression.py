"""analysis/opcode_progression.py: the table's shape, the published side, and bad input."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from flashladder.ladder.iteration import load_all
from flashladder.results.published import sass_counts

SCRIPT = Path(__file__).parents[3] / "analysis" / "opcode_progression.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("opcode_progression", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_cell_is_ours_beside_the_published_count(script: ModuleType) -> None:
    assert script.cell({"LOP3": 3}, {"LOP3": 24}, "LOP3") == "3/24"
    assert script.cell({"LOP3": 3}, None, "SHF") == "0/-"
    assert script.cell(None, {"LOP3": 24}, "LOP3") == "-/24"


@pytest.mark.parametrize("gpu", ["a100", "rtx3090"])
def test_one_row_per_iteration(script: ModuleType, gpu: str) -> None:
    header, *rows = script.rows(gpu, ["LOP3", "SHF"])
    assert header[-2:] == ["LOP3", "SHF"]
    assert [int(row[0]) for row in rows] == [step.number for step in load_all()]
    assert [row[-2].rpartition("/")[2] for row in rows[16:]] == ["-"] * (len(load_all()) - 16)
    assert [row[-2].rpartition("/")[2] for row in rows[:16]] == [
        str(sass_counts()[n, gpu]["LOP3"]) for n in range(1, 17)
    ]


def test_csv_has_the_same_rows(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--classes", "LOP3", "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(load_all())


def test_refuses_a_class_that_was_not_published(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        script.main(["--classes", "LOP4"])
    assert stop.value.code == 2
    assert "found LOP4" in capsys.readouterr().err
