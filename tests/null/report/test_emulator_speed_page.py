"""The page about the emulator's speed changes with its samples, and a goal that was missed is named."""

from __future__ import annotations

import json

from flashladder.report.speed_page import PAGE, PLOT, SAMPLES, render

DOCUMENT = json.loads(SAMPLES.read_text(encoding="utf-8"))


def test_a_slower_sample_changes_page_and_plot() -> None:
    slower = json.loads(json.dumps(DOCUMENT))
    slower["runs"][0]["seconds"] = [10 * seconds for seconds in slower["runs"][0]["seconds"]]
    before, after = render(DOCUMENT), render(slower)
    assert set(before) == {PAGE, PLOT}
    assert {before[path] == after[path] for path in before} == {False}
