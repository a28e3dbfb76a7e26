"""Eighteen cells whose planted workers (`tests.null.sweep.planted`) have the right answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from flashladder.errors import one_line_errors
from flashladder.sweep import command, measure, plan
from flashladder.sweep.workers import run
from tests.null.sweep_fixture import digests, emulated_document, planned


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> plan.Plan:
    """A plan of the grid ``small.yaml``; the right documents of its cells are in the planted worker's folder."""
    monkeypatch.setenv("PLANT_NOTES", str(tmp_path))
    made = planned(tmp_path, {"mode": "emulator", "iterations": list(range(1, 10))}, "cpu")
    for name, cell in [*((cell.address, cell) for cell in made.cells), ("another", made.cells[-1])]:
        document = emulated_document(cell, made.grid.name, made.grid.sha256)
        (tmp_path / f"{name}.json").write_text(document.model_dump_json(), encoding="utf-8")
    return made


def plant(patch: Callable[[object, str, object], None] = setattr) -> None:
    """Gives planted workers and made-up code digests to the sweep's command."""
    patch(command, "run", partial(run, module="tests.null.sweep.planted"))
    patch(measure, "known_digests", digests)


def drive(words: list[str]) -> None:
    """``python -m flashladder.sweep`` with both, for tests that signal it."""
    plant()
    with one_line_errors():
        raise SystemExit(command.main(words))
