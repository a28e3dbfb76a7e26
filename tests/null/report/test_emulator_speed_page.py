"""The page about the emulator's speed changes with its samples, and a goal that was missed is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashladder.gate.limits import speed_problems
from flashladder.report.speed_page import PAGE, PLOT, SAMPLES, render

DOCUMENT = json.loads(SAMPLES.read_text(encoding="utf-8"))


def test_a_slower_sample_changes_page_and_plot() -> None:
    slower = json.loads(json.dumps(DOCUMENT))
    slower["runs"][0]["seconds"] = [10 * seconds for seconds in slower["runs"][0]["seconds"]]
    before, after = render(DOCUMENT), render(slower)
    assert set(before) == {PAGE, PLOT}
    assert {before[path] == after[path] for path in before} == {False}


def test_the_hopper_kernel_has_a_table_of_its_own() -> None:
    page = render(DOCUMENT)[PAGE].decode()
    assert "| Hopper attention | 512 |" in page
    without = render({key: value for key, value in DOCUMENT.items() if key != "loops"})[PAGE].decode()
    assert page.startswith(without)
    assert "Hopper" not in without


@pytest.mark.parametrize(
    ("seconds", "message"), [([0.5, 3.5], "expected less than 3 s, found 3.50 s"), (None, "timed")]
)
def test_a_slow_hopper_kernel_is_named(tmp_path: Path, seconds: list[float] | None, message: str) -> None:
    loops = [run for run in DOCUMENT["loops"] if seconds or run["seq_len"] != 512]
    loops = [{**run, "seconds": seconds} if run["seq_len"] == 512 else run for run in loops]
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({**DOCUMENT, "loops": loops}), encoding="utf-8")
    (line,) = speed_problems(path).problems
    assert "Hopper attention, S = 512" in line
    assert message in line


@pytest.mark.parametrize(
    ("case", "seconds", "message"),
    [
        ((16, 512, 1), [0.5, 2.5], "iteration 16, S = 512, 1 heads: expected less than 2 s, found 2.50 s"),
        ((1, 1024, 16), [100.0], "expected 30 million lane-instructions a second, found "),
        ((16, 1024, 16), None, "iteration 16, S = 1024, 16 heads: was not timed"),
    ],
)
def test_a_goal_that_was_missed_is_named(
    tmp_path: Path, case: tuple[int, int, int], seconds: list[float] | None, message: str
) -> None:
    keys = ("iteration", "seq_len", "heads")
    runs = [run for run in DOCUMENT["runs"] if seconds or tuple(run[key] for key in keys) != case]
    runs = [{**run, "seconds": seconds} if tuple(run[key] for key in keys) == case else run for run in runs]
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({**DOCUMENT, "runs": runs}), encoding="utf-8")
    (line,) = speed_problems(path).problems
    assert message in line
