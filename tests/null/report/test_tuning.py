"""Pages of made-up tuning runs: every candidate, the best of each place, winners beside what the iterations have."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from analysis import sweep_tables as script
from flashladder.paths import ROOT
from flashladder.report import sweeps, tuning
from flashladder.results.files import write_result
from flashladder.sweep.winner import rows_of
from tests.null.sweep.test_winner import FAST, ONLY_FP16, PRESENT, both, made, with_a_failure


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The rungs' document of a run; that of the finals lies beside it."""
    folder = tmp_path / "results" / "h200"
    write_result(folder / "tuned.json.gz", made({PRESENT: both(1.05), FAST: both(1.08)}, 24, seed=1))
    return write_result(folder / "tune.json.gz", with_a_failure())


def cells(text: str, start: str) -> list[list[str]]:
    """The cells of the rows of tables that begin so."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith(start)
    ]


def test_the_ranking_counts_and_bounds_what_it_leaves_out() -> None:
    rows = rows_of(with_a_failure())
    two = cells(tuning.ranking(rows, 2), "| 16 | fp16")
    assert [row[2] for row in two] == [FAST.brief(), PRESENT.brief(), "and 1 more"]
    fastest = max(row.pct or 0 for row in rows if row.config == ONLY_FP16.brief() and row.dtype == "fp16")
    assert two[-1][3] == f"up to {fastest:.2f}"
    every = tuning.ranking(rows, 9)
    assert every.count("too few pairs") == 2
    assert "crash: signal SIGSEGV" in every


def test_a_committed_run_has_a_page_a_table_and_a_plot(run: Path, tmp_path: Path) -> None:
    found = sweeps.render(run.parent.parent)
    assert set(found) == {f"tune_h200.{suffix}" for suffix in ("md", "csv", "svg", "png")}
    text = found["tune_h200.md"].decode()
    assert "7 candidates, 1 of them failed, S = 4096" in text
    (joint,) = cells(text, "| 16 | both")
    assert (joint[2], joint[3], joint[5]) == (FAST.brief(), "faster", PRESENT.brief())
    for interval, expected in ((joint[4], 108), (joint[6], 105)):
        median, low, high = (float(part.strip("[],")) for part in interval.split())
        assert low < median < high
        assert median == pytest.approx(expected, abs=0.3)
    listed = list(csv.DictReader(io.StringIO(found["tune_h200.csv"].decode())))
    assert len(listed) == len(rows_of(with_a_failure())) == 7
    script.main(["tune", str(run), "--out", str(tmp_path / "out")])
    written = {path.name.replace("tune.", "tune_h200."): path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert written == found


def test_a_sweep_that_ranks_no_candidates_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        script.main(["tune", str(ROOT / "results" / "h200" / "h200.json.gz"), "--out", str(tmp_path)])
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: results/h200/h200.json.gz: not a tuning run: found timings for a report")
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []
