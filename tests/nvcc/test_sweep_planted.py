"""A crashing, a hanging and a wrong iteration among twelve: nine good results, three labelled failures, exit code 1."""

from __future__ import annotations

from functools import partial
import json
from pathlib import Path

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.results.files import load_as
from flashladder.results.schema import EmulatedSweepResult
from flashladder.sweep import command
from flashladder.sweep.workers import run
from flashladder.toolchain.wheels import find_toolchain

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]
GRID = Path(__file__).parent / "planted.yaml"
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
    options = ["--grid", str(GRID), "--out", str(tmp_path / "records"), "--timeout", str(TIMEOUT_S)]

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
