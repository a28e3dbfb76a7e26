"""The page about the emulator's speed follows from the committed samples."""

from __future__ import annotations

import json
import statistics

from flashladder.emulator_speed import PAGE, PLOT, SAMPLES, render

DOCUMENT = json.loads(SAMPLES.read_text(encoding="utf-8"))


def test_page_and_plot_are_rendered_from_the_samples() -> None:
    files = render(DOCUMENT)
    assert set(files) == {PAGE, PLOT}
    assert {path.read_bytes() == data for path, data in files.items()} == {True}


def test_a_slower_sample_changes_the_page() -> None:
    slower = json.loads(json.dumps(DOCUMENT))
    slower["runs"][0]["seconds"] = [10 * seconds for seconds in slower["runs"][0]["seconds"]]
    assert render(slower)[PAGE] != PAGE.read_bytes()


def test_the_goals_were_met_when_it_was_measured() -> None:
    """S=512 below 2 s for iteration 16; 30 million lane-instructions a second at S=1024 with 16 heads."""
    runs = {(run["iteration"], run["seq_len"], run["heads"]): run for run in DOCUMENT["runs"]}
    assert max(runs[16, 512, 1]["seconds"]) < 2.0
    for number in (1, 16):
        run = runs[number, 1024, 16]
        assert run["lane_instructions"] / statistics.median(run["seconds"]) > 30e6
        assert [seq_len for n, seq_len, heads in runs if (n, heads) == (number, 1)] == [256, 512, 1024, 2048]
