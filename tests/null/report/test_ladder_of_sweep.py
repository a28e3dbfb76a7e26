"""What `analysis/ladder_of_sweep.py` takes out of a sweep is the committed timing, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path
import subprocess
import sys

import pytest

from flashladder.paths import RESULTS, ROOT
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult

H200 = RESULTS / "h200"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The script with these arguments."""
    command = [sys.executable, str(ROOT / "analysis" / "ladder_of_sweep.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=ENVIRONMENT)


@pytest.mark.parametrize("path", sorted(H200.glob("bench_*.json.gz")), ids=lambda path: path.name)
def test_committed_parts_are_what_the_script_writes(path: Path, tmp_path: Path) -> None:
    committed = load_as(path, BenchResult)
    sweep = H200 / path.name.removeprefix("bench_")
    whole = load_as(sweep, BenchResult) if sweep.is_file() else None
    if whole is None or whole.processes != committed.processes:
        pytest.skip(f"{path.name} is a run of its own, no part of {sweep.name}")
    numbers = sorted({kernel.iteration for kernel in committed.kernels.values()})
    out = tmp_path / path.name
    done = run(str(sweep), *map(str, numbers), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == path.read_bytes()


def test_a_step_that_was_not_timed_is_one_line(tmp_path: Path) -> None:
    done = run(str(H200 / "hopper.json.gz"), "20", "99", "--out", str(tmp_path / "x.json.gz"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "99" in done.stderr
    assert not list(tmp_path.iterdir())
