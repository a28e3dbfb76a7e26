"""Eighteen cells whose planted workers (`tests.null.sweep.planted`) know the right answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from flashladder.errors import one_line_errors
from flashladder.sweep import command, measure, plan
from flashladder.sweep.workers import run
from tests.null.sweep_fixture import SMALL, digests, emulated_document, grid

TEXT = SMALL.replace("gpu: any", "gpu: any\nmode: emulator").replace("[1, 16]", "[1, 2, 3, 4, 5, 6, 7, 8, 9]")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> plan.Plan:
    """A plan of the grid ``small.yaml``, and what is right of each cell in the planted worker's folder, `tmp_path`."""
    monkeypatch.setenv("PLANT_NOTES", str(tmp_path))
    made = plan.make(grid(tmp_path, TEXT), "cpu", digests)
    for cell in made.cells:
        document = emulated_document(cell, made.grid.name, made.grid.sha256)
        (tmp_path / f"{cell.address}.json").write_text(document.model_dump_json(), encoding="utf-8")
    other = emulated_document(made.cells[-1], made.grid.name, made.grid.sha256)
    (tmp_path / "another.json").write_text(other.model_dump_json(), encoding="utf-8")
    return made


def plant() -> None:
    """The sweep's command takes planted workers and made-up digests of code."""
    vars(command).update(run=partial(run, module="tests.null.sweep.planted"))
    vars(measure).update(known_digests=digests)


def drive(words: list[str]) -> None:
    """``python -m flashladder.sweep`` with both, for tests that signal it."""
    plant()
    with one_line_errors():
        raise SystemExit(command.main(words))
