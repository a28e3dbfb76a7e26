"""Tests of flashladder.reproduce: what it requires, what it measures, how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder import bench, check, gate, installed, report, report_data, reproduce, results, toolchain
from flashladder.errors import FlashladderError
from tests.null.ladder_fixture import make


def test_a_missing_wheel_is_named_with_the_session_that_builds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(number: int) -> object:
        raise FlashladderError(f"iteration {number} is not built", hint=f"nox -s build-iteration-{number}")

    monkeypatch.setattr(installed, "load_installed", missing)
    with pytest.raises(FlashladderError, match="nox -s build-iteration-1"):
        reproduce.require_wheels()


def test_without_a_gpu_nothing_is_run_and_the_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "gpu_arch", lambda: None)
    monkeypatch.setattr(check, "main", lambda _: pytest.fail("nothing can be checked"))
    assert reproduce.measure().startswith("no GPU here")


def test_with_a_gpu_every_iteration_is_checked_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, list[str]]] = []

    class Device:
        class gpu:  # noqa: N801  stands in for an attribute
            name = "NVIDIA H200"

    monkeypatch.setattr(toolchain, "gpu_arch", lambda: "sm_90")
    monkeypatch.setattr("flashladder.device.open_device", Device)
    monkeypatch.setattr(check, "main", lambda argv: calls.append(("check", argv)))
    monkeypatch.setattr(bench, "main", lambda argv: calls.append(("bench", argv)))
    monkeypatch.setattr(results, "seal", lambda folder: calls.append(("seal", [folder.name])))
    monkeypatch.setattr(report, "report", lambda: calls.append(("report", [])))
    assert reproduce.measure().endswith("results/h200")
    assert [name for name, _ in calls] == ["check", "bench", "seal", "report"]
    assert calls[2][1] == ["h200"]
    assert calls[0][1][0] == calls[1][1][0] == "--all"


def test_an_unknown_gpu_gets_a_folder_of_its_own() -> None:
    assert reproduce.machine_folder("NVIDIA H200").name == "h200"
    assert reproduce.machine_folder("NVIDIA Tesla T4 (16 GB)").name == "nvidia_tesla_t4_16_gb"


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("skipped", 0), ("failed", 1)])
def test_it_ends_with_the_table_the_plot_and_one_line_per_check(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = make(tmp_path / "results", lambda number: 50.0 + number, lengths=[4096])
    ladder = report_data.collect(fixture.folder)
    monkeypatch.setattr(reproduce, "require_wheels", lambda: ["iteration 1: 2 kernels"])
    monkeypatch.setattr(reproduce, "measure", lambda: "no GPU here")
    monkeypatch.setattr(report_data, "collect", lambda: ladder)
    monkeypatch.setattr(gate, "run_gate", lambda: [gate.Outcome("locks", status, ("iteration 7: moved",))])
    if code:
        with pytest.raises(SystemExit) as caught:
            reproduce.main([])
        assert caught.value.code == code
    else:
        assert reproduce.main([]) == 0
    printed = capsys.readouterr()
    assert "plot    results/report/progression.svg, .png" in printed.out
    assert "        iteration 7: moved" in printed.out
    assert ("not reproduced: locks" in printed.err) == bool(code)
