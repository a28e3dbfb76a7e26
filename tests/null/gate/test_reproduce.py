"""Tests of flashladder.gate.reproduce: what it requires, what it measures, how it ends."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
import re
import shutil
from types import SimpleNamespace
from typing import Literal

import pytest

from flashladder import toolchain
from flashladder.bench import command as bench
from flashladder.cases.inputs import proof_cases
from flashladder.check import command as check
from flashladder.check.command import CheckReport
from flashladder.errors import CheckFailed
from flashladder.gate import reproduce
from flashladder.ladder.iteration import load_all
from flashladder.problem import Problem
from flashladder.report import data as report_data
from flashladder.results.schema import CaseResult
from tests.null.bench_fixture import GOOD
from tests.null.ladder_fixture import make


@pytest.mark.parametrize("status", ["pass", "fail"])
def test_without_a_gpu_every_iteration_is_checked_on_the_emulator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: Literal["pass", "fail"]
) -> None:
    monkeypatch.setattr(reproduce, "EMULATED", tmp_path / "emulator.json.gz")
    (tmp_path / "emulator.json.gz").write_bytes(b"damaged")
    shape = Problem(batch=1, seq_len=64, n_heads=1, d_head=128)
    case = CaseResult(
        kernel="07 ...", case="small", dtype="fp16", shape=shape, status=status, reason="off by one", accuracy=GOOD
    )
    asked: list[list[int]] = []

    def checked(emulated: check.Emulated, numbers: list[int], out: Path, _: object) -> CheckReport:
        assert (emulated.cases, out) == (proof_cases, reproduce.EMULATED)
        assert not out.exists(), "a damaged file proves nothing, and would be an error"
        asked.append(numbers)
        return CheckReport((case,))

    monkeypatch.setattr(toolchain, "gpu_arch", lambda: None)
    monkeypatch.setattr(check, "main", lambda _: pytest.fail("there is no GPU"))
    monkeypatch.setattr(check, "checked", checked)
    measured = reproduce.measure()
    assert asked == [[step.number for step in load_all()]]
    assert measured.folder is None
    assert measured.line == reproduce.NO_GPU.format(1)
    (outcome,) = measured.outcomes
    assert outcome.status == {"pass": "ok", "fail": "failed"}[status]
    assert outcome.details == (() if status == "pass" else ("07 ... small: off by one",))
    assert outcome.name == "this CPU: checks passed on the emulator"
    assert re.fullmatch(r"1 kernels, 1 cases, \d+ s", outcome.summary)


def test_with_a_gpu_every_iteration_is_checked_then_timed_and_reported_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fixture = make(tmp_path / "results", lambda number: 50.0 + number)
    gpu = report_data.collect(fixture.folder).machines[0].gpu
    calls: list[str] = []

    def timed(argv: list[str]) -> None:
        calls.append("bench")
        assert argv[0] == "--all"
        shutil.copyfile(fixture.bench, Path(argv[1].removeprefix("--out=")))

    def checked(argv: list[str]) -> None:
        calls.append("check")
        assert argv[0] == "--all"
        Path(argv[2].removeprefix("--out=")).parent.mkdir(parents=True)

    monkeypatch.setattr(reproduce, "OWN", tmp_path / "own")
    monkeypatch.setattr(reproduce, "own_folder", lambda uuid, own=reproduce.own_folder: own(uuid, fixture.folder))
    monkeypatch.setattr(toolchain, "gpu_arch", lambda: "sm_90")
    monkeypatch.setattr("flashladder.gpu.device.open_device", lambda: SimpleNamespace(gpu=gpu))
    monkeypatch.setattr(check, "main", checked)
    monkeypatch.setattr(bench, "main", timed)
    measured = reproduce.measure()
    assert calls == ["check", "bench"]
    assert measured.folder is not None
    assert measured.folder.parent == tmp_path / "own"
    assert {path.name for path in measured.folder.iterdir()} >= {"h200", "locks", "progression.md", "progression.png"}
    status = {outcome.name: outcome.status for outcome in measured.outcomes}
    assert status["this machine: documents follow from their samples and the locks"] == "failed"
    details = next(one.details for one in measured.outcomes if "documents follow" in one.name)
    assert all("but not checked" in line for line in details), "the stand-in wrote no check.json.gz"
    assert reproduce.own_folder(gpu.uuid) == measured.folder != reproduce.own_folder("GPU-2")
    (fixture.folder / "locks" / "sm_80.json").write_text("{}", encoding="utf-8")
    assert reproduce.own_folder(gpu.uuid) != measured.folder, "of other locks"


@pytest.mark.parametrize("problems", [[], ["iteration 7: moved"]])
def test_it_ends_with_the_table_the_plot_and_one_line_per_check(
    problems: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = make(tmp_path / "results", lambda number: 50.0 + number, lengths=[4096])
    ladder = report_data.collect(fixture.folder)
    monkeypatch.setattr(reproduce, "require_wheels", lambda: 1)
    monkeypatch.setattr(reproduce, "measure", lambda *_: reproduce.Measured("no GPU here"))
    monkeypatch.setattr(reproduce, "collect", lambda _: ladder)
    monkeypatch.setattr(reproduce.Gate, "checks", lambda _: [])
    monkeypatch.setattr(reproduce.Gate, "verified", None)
    monkeypatch.setattr(reproduce, "built_code", lambda: (problems, "2 kernels"))
    locks = "the machine code that is built here is the locked one"
    with pytest.raises(CheckFailed, match=f"not reproduced: {locks}") if problems else nullcontext():
        reproduce.main([])
    printed = capsys.readouterr()
    assert "plot    results/report/progression.svg, .png" in printed.out
    assert ("        iteration 7: moved" in printed.out) == bool(problems)
    assert (f"ok      {locks} (2 kernels)" in printed.out) == (not problems)
