"""The page of sustained runs: all files of a machine, medians of turns, what holds each; nothing where nothing is."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from flashladder.report.sweeps import render_energy as render
from flashladder.results.files import write_result
from tests.null.energy_fixture import SHAPE, kernel, look, made, run

FREE = look(sm_clock_mhz=1965, throttle_bits=0)


def cells(text: str) -> list[list[str]]:
    """The cells of all tables, blanks and headers left out."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_page_holds_all_files_of_a_machine(tmp_path: Path) -> None:
    assert render(tmp_path) == {}
    short = SHAPE.model_copy(update={"seq_len": 512})
    runs = [run(shape=short, launches=60_000, samples=(FREE,)), run(), run(kernel(), joules=600.0)]
    later = [run(turn=1, joules=960.0), run(turn=2, joules=990.0)]
    write_result(tmp_path / "h200" / "energy.json.gz", made(*runs[1:], runs[0], *later))
    write_result(tmp_path / "h200" / "energy_10s.json.gz", made(run(seconds=10.5)).model_copy(update={"seconds": 10.0}))
    write_result(tmp_path / "h100" / "energy.json.gz", made(run()))
    found = render(tmp_path)
    assert found.keys() == {f"energy_{name}.{suffix}" for name in ("h100", "h200") for suffix in ("csv", "md")}
    page = found["energy_h200.md"].decode()
    assert cells(page) == [
        ["512", "fa2", "–", "1374.4", "1965", "600", "0.437", "structure"],
        ["4096", "fa2", "–", "1466.0", "1500", "640", "0.437", "power"],
        ["4096", "16", "64,64,4 2_2_2", "1466.0", "1500", "400", "0.273", "power"],
        ["4096", "fa2", "–", "209.4", "1500", "86", "0.409", "power"],
    ]
    assert page.count("\n## ") == 2
    assert "At least 10 s a run, 1 turn: power limit 700 W, highest clock 1980 MHz, driver 580.0; FA2 of torch" in page
    rows = list(csv.DictReader(io.StringIO(found["energy_h200.csv"].decode())))
    assert len(rows) == 6
    assert (rows[-1]["file"], rows[-1]["seconds"], rows[-1]["watts"]) == ("energy_10s.json.gz", "10.5", "85.71")
