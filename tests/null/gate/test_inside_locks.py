"""Results are held against the locks of their own folder where it has some, and the manifest's files may be gone."""

from __future__ import annotations

import json
from pathlib import Path
import shutil

import pytest

from flashladder.gate.evidence import inside
from flashladder.gate.evidence.manifest import file_problems
from flashladder.ladder.manifest import NAME, Log, load_manifest
from flashladder.paths import RESULTS
from flashladder.results.files import load_result

COUNTERS = RESULTS / "h200" / "counters.json.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One machine with its counters and its manifest."""
    machine = tmp_path / "h200"
    machine.mkdir()
    for name in (COUNTERS.name, NAME):
        shutil.copy(COUNTERS.parent / name, machine / name)
    return machine


@pytest.mark.parametrize("beside", [True, False])
def test_the_locks_beside_the_folder_decide(folder: Path, *, beside: bool) -> None:
    path = folder / COUNTERS.name
    if beside:
        (folder.parent / "locks").mkdir()
        lock = json.loads((RESULTS / "locks" / "sm_90.json").read_text(encoding="utf-8"))
        for one in lock["iterations"]["7"]["kernels"].values():
            one["registers"] += 1
        (folder.parent / "locks" / "sm_90.json").write_text(json.dumps(lock), encoding="utf-8")
    found = list(inside.problems(path, load_result(path)))
    assert bool(found) is beside
    assert all(line.startswith("kernel 07 ") for line in found)
    assert not beside or any("as locked, found" in line for line in found)


def test_a_file_of_the_manifest_that_is_gone_is_a_line(folder: Path) -> None:
    name = next(name for name, spec in load_manifest(folder).files.items() if isinstance(spec, Log))
    (line,) = file_problems(folder / name)
    assert "cannot read the file (No such file" in line
