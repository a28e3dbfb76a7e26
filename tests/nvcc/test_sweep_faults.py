"""Sweeps on the emulator: a crashing, a hanging and a wrong iteration among twelve, and kills at random moments.

The kills: ten sweeps and ten workers; results/sweep/ has the log of a hundred of each. Another seed, or more:
``FLASHLADDER_FAULTS_SEED=7 FLASHLADDER_FAULTS=100 pytest -s tests/nvcc/test_sweep_faults.py``.
"""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.paths import ROOT
from flashladder.results.files import load_as
from flashladder.results.schema import EmulatedSweepResult
from flashladder.sweep import command
from flashladder.sweep.workers import run
from flashladder.toolchain import find_toolchain

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

GRID = """
why: Twelve steps on one small problem, three of which are replaced by a crashing, a hanging and a wrong kernel.
gpu: any
mode: emulator
iterations: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
configs: a100
dtypes: [fp16]
seq_lens: [{seq_len: 128, batch: 1}]
n_heads: 1
"""
PLANTS = {"4": "crash", "7": "hang", "2": "scale_of_half_the_head"}
TIMEOUT_S = 20  # for a cell: more than any takes on a busy machine, as long as the hanging one is waited for


def test_three_planted_iterations_among_twelve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        find_toolchain()
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")
    notes = tmp_path / "asked"
    monkeypatch.setenv("PLANTS", json.dumps(PLANTS))
    monkeypatch.setenv("PLANT_NOTES", str(notes))
    monkeypatch.setattr(command, "run", partial(run, module="tests.nvcc.planted_kernels"))
    (tmp_path / "planted.yaml").write_text(GRID, encoding="utf-8")
    options = [f"--grid={tmp_path / 'planted.yaml'}", f"--out={tmp_path / 'records'}", f"--timeout={TIMEOUT_S}"]
    with pytest.raises(CheckFailed, match=r"^3 of 12 cells failed, the first: 2 .*--retry measures them again") as told:
        command.main(options)
    assert told.value.exit_code == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    by_subject = {line.split()[1]: line.partition(" S=128 B=1 H=1: ")[2] for line in sorted(lines)}
    assert by_subject.keys() == PLANTS.keys()
    assert by_subject["4"] == "crash: its worker ended with signal SIGSEGV"
    assert by_subject["7"] == f"timeout: no answer within {TIMEOUT_S} s: its worker was ended"
    assert by_subject["2"].startswith("wrong: max error ")
    assert sorted(notes.read_text().split(), key=int) == [str(number) for number in range(1, 13)]

    packed = load_as(tmp_path / "records.json.gz", EmulatedSweepResult)
    subject = {cell.address: cell.subject for cell in packed.sweep.planned}
    assert {subject[one.address]: one.kind for one in packed.sweep.failures} == {
        "2": "wrong", "4": "crash", "7": "timeout"
    }  # fmt: skip
    assert sorted(int(subject[cell.address]) for cell in packed.cells) == [1, 3, 5, 6, 8, 9, 10, 11, 12]
    assert all(cell.accuracy.ok for cell in packed.cells)

    notes.unlink()
    with pytest.raises(CheckFailed, match=r"^3 of 12 cells failed"):
        command.main(options)
    assert not notes.exists()  # nothing was repeated
    monkeypatch.setenv("PLANTS", "{}")
    assert command.main([*options, "--retry"]) == 0
    assert sorted(notes.read_text().split()) == ["2", "4", "7"]


SEED = os.environ.get("FLASHLADDER_FAULTS_SEED") or datetime.now(timezone.utc).strftime("%Y%m%d")
KILLS = os.environ.get("FLASHLADDER_FAULTS") or "10"


def test_nothing_is_lost_or_doubled_by_kills_at_random_moments(tmp_path: Path) -> None:
    try:
        find_toolchain()
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")
    log = tmp_path / "faults.txt"
    words = [sys.executable, "-m", "tests.nvcc.sweep_faults", "--kills", KILLS, "--seed", SEED, "--log", str(log)]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    told = log.read_text(encoding="utf-8")
    print(told)  # shown when it fails, or with -s: the seed is in the first line
    assert done.returncode == 0, done.stderr
    assert "passed: " in told
    assert told.count("sweep killed") == told.count("worker killed") == int(KILLS)
