"""The action's scripts with a bash, as a runner starts them: a right kernel passes, a racy and a wrong one do not."""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from analysis import gate_action
from analysis.gate_action import Done, Inputs, compared, escaped, expectations, publish, tell
from flashladder.errors import FlashladderError
from flashladder.located import read_yaml
from flashladder.paths import ROOT

ARGS = "out=float32:32x32:zeros\nin=@in.npy"
DATA = ROOT / "tests" / "data"


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A workspace with a Python where the step `Install` leaves one, an input, and what it is transposed."""
    python = tmp_path / "flashladder" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    source = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    np.save(tmp_path / "in.npy", source)
    np.save(tmp_path / "expected.npy", source.T)
    np.save(tmp_path / "wrong.npy", source.T + np.float32(0.5))
    return tmp_path


def gate(runner: Path, **inputs: str) -> tuple[int, str, str]:
    """Exit code, log, and outputs of the step `Gate` with the action's defaults and these inputs."""
    action: Any = read_yaml(ROOT / "action.yml")
    (step,) = (one for one in action["runs"]["steps"] if one.get("id") == "gate")
    given = {name: one["default"] for name, one in action["inputs"].items()} | inputs
    environment = {"RUNNER_TEMP": str(runner), "GITHUB_OUTPUT": str(runner / "out"), "PYTHONPATH": str(ROOT)}
    for variable, value in step["env"].items():
        name = value.strip("${} ")
        environment[variable] = str(ROOT) if name == "github.action_path" else given[name.removeprefix("inputs.")]
    assert step["shell"] == "bash"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=runner, env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, (runner / "out").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("file", "expected", "code", "said"), [
    ("transpose.ptx", "expected.npy", 0, "largest difference 0, allowed 1e-06"),
    ("transpose.ptx", "wrong.npy", 1, "out: expected a difference of at most 1e-06, found 0.5"),
    ("transpose_without_barrier.ptx", "expected.npy", 1, "shared RAW (read after write by another thread)"),
])  # fmt: skip
def test_a_kernel_passes_or_is_stopped(runner: Path, file: str, expected: str, code: int, said: str) -> None:
    found, log, outputs = gate(
        runner, ptx=str(DATA / file), block="32,32", args=ARGS, expected=f"out={expected}", tolerance="1e-6"
    )
    assert (found, outputs) == (code, f"passed={'false' if code else 'true'}\n"), log
    assert said in log
    assert ("::error title=" in log) == bool(code)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_inputs_are_words_and_nothing_to_gate_is_an_error(runner: Path) -> None:
    code, log, outputs = gate(runner)
    assert (code, outputs) == (2, "passed=false\n")
    assert "error: nothing to gate: expected one of the inputs ptx, cuda, iteration, result" in log
    code, log, _ = gate(runner, ptx="$(touch broken); touch broken.ptx", block="`touch broken`")
    assert code == 2
    assert not list(runner.glob("broken*"))


@pytest.mark.parametrize(("given", "message"), [
    ({"GATE_EXPECTED": "y"}, "bad input `expected`"),
    ({"GATE_EXPECTED": "y=nosuch.npy"}, "bad input `expected`"),
    ({"GATE_TOLERANCE": "-1"}, "bad input `tolerance`"),
    ({"GATE_TOLERANCE": "nan"}, "bad input `tolerance`"),
    ({"GATE_TOLERANCE": "x"}, "bad input `tolerance`"),
])  # fmt: skip
def test_a_bad_input_is_one_line(given: dict[str, str], message: str) -> None:
    with pytest.raises(FlashladderError, match=message):
        expectations(Inputs(given))


def test_two_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_PTX", "a.ptx")
    monkeypatch.setenv("GATE_CUDA", "a.cu")
    with pytest.raises(FlashladderError, match="two kernels to gate"):
        gate_action.main()


@pytest.mark.parametrize(("wanted", "got", "code"), [
    (np.zeros(3), np.zeros(3), 0), (np.zeros(3), np.zeros(4), 1), (np.zeros(3), np.full(3, np.nan), 1),
    (np.zeros(0), np.zeros(0), 0), (np.array(["x"]), np.zeros(1), 2), (np.array([object()]), np.zeros(1), 2),
])  # fmt: skip
def test_arrays_are_compared_by_shape_and_value(wanted: Any, got: Any, code: int, tmp_path: Path) -> None:
    np.save(tmp_path / "wanted.npy", wanted, allow_pickle=True)
    np.save(tmp_path / "got.npy", got)
    assert compared("y", tmp_path / "wanted.npy", tmp_path / "got.npy", 0.0).code == code


def test_what_a_kernel_prints_is_no_command_of_the_runner(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tell(Done("a: b,\nc", 1, "::add-mask::x\nlast % line"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "::group::failed: a: b,%0Ac"
    token = lines[1].removeprefix("::stop-commands::")
    assert lines[2:5] == ["::add-mask::x", "last % line", f"::{token}::"]
    assert lines[6] == "::error title=a%3A b%2C%0Ac::last %25 line"
    assert escaped("\r") == "%0D"
    publish({"GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}, [Done("x|y", 0, "")])
    assert (tmp_path / "summary").read_text(encoding="utf-8").endswith("| x\\|y | holds |\n")
