"""Intervals as tables print them: never narrower than the floor, holding other runs, in step with the verdicts."""

from __future__ import annotations

import csv
from functools import cache
import math
from pathlib import Path

import pytest

from flashladder.paths import RESULTS
from flashladder.report.data import bench_files, other_runs
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult
from flashladder.results.statistics import LogSummary, stated, widened

OWN = LogSummary(0.02, 0.019, 0.022, 24)
TABLES = sorted((RESULTS / "report").glob("*.csv"))
BENCH = RESULTS / "h200" / "bench.json.gz"


@pytest.mark.parametrize(
    ("floor", "others", "low", "high"),
    [
        (0.0, [], 0.019, 0.022),
        (0.006, [], 0.013, 0.028),
        (0.006, [0.02], 0.013, 0.028),
        (0.006, [0.01], 0.004, 0.028),
        (0.006, [0.01, 0.03], 0.004, 0.036),
    ],
)
def test_an_interval_holds_samples_floor_and_other_runs(
    floor: float, others: list[float], low: float, high: float
) -> None:
    found = widened(OWN, floor, others)
    assert [found.low, found.high] == pytest.approx([low, high])
    assert (found.median, found.n) == (OWN.median, OWN.n)


def test_stated_cells_hold_the_floor_and_what_other_files_measured() -> None:
    own, others = load_as(BENCH, BenchResult), other_runs(BENCH)
    assert [one.settings.pairs for one in others] == [24] * 7, (
        "further steps, Hopper thrice, second card, sweep, bundle"
    )
    told = stated(own, others)
    seen = [{(one.kernel, one.dtype, one.shape): one.pct for one in run.summaries} for run in others]
    held = 0
    for before, after in zip(own.summaries, told.summaries, strict=True):
        floor = 1 + own.floors_pct[before.dtype] / 100
        assert after.pct == before.pct
        assert after.pct_low <= before.pct_low / floor * (1 + 1e-12)
        assert after.pct_high >= before.pct_high * floor * (1 - 1e-12)
        for run in seen:
            if other := run.get((before.kernel, before.dtype, before.shape)):
                assert after.pct_low <= other <= after.pct_high
                held += 1
    assert held > 2 * len(own.summaries)
    assert told.groups == own.groups
    floor = math.log1p(own.floors_pct["fp16"] / 100)
    for before_mean, after_mean in zip(own.means, told.means, strict=True):
        assert math.log(after_mean.pct_high / before_mean.pct) >= floor * 0.9


def test_another_run_on_the_other_side_makes_a_verdict_ambiguous() -> None:
    own = load_as(BENCH, BenchResult)
    cell = next(one for one in own.summaries if one.verdict == "faster")
    slow = own.model_copy(update={"summaries": (cell.model_copy(update={"pct": 99.0, "pct_low": 98.0}),), "means": ()})
    (told,) = (one for one in stated(own, [slow]).summaries if (one.kernel, one.shape) == (cell.kernel, cell.shape))
    assert (told.verdict, told.pct_low < 99.0) == ("ambiguous", True)
    kernels = {name: one.model_copy(update={"text_sha256": "0" * 64}) for name, one in own.kernels.items()}
    other_code = slow.model_copy(update={"kernels": kernels})
    (told,) = (
        one for one in stated(own, [other_code]).summaries if (one.kernel, one.shape) == (cell.kernel, cell.shape)
    )
    assert told.verdict == "faster"
    same = own.model_copy(update={"summaries": (cell.model_copy(update={"verdict": "same"}),)})
    assert stated(same, [slow]).summaries[0].verdict == "ambiguous"


@cache
def least_floors() -> dict[str, float]:
    """The smallest A/A floor of any file of the tables, by dtype."""
    files = [load_as(path, BenchResult) for path in bench_files()]
    return {dtype: min(one.floors_pct[dtype] for one in files) for dtype in ("fp16", "bf16")}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_committed_tables_call_faster_what_their_interval_shows(path: Path) -> None:
    """A printed interval leaves out 100 % exactly where the verdict says so, and is never narrower than a floor.

    The floor of a machine's table is the largest of its files'; an interval has that of its own.
    """
    least = least_floors()
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    for row in rows:
        end = "" if "pct_low" in row else "_seq4096"
        if not row.get(f"pct_low{end}"):
            continue
        low, high, said = (row[f"{name}{end}"] for name in ("pct_low", "pct_high", "verdict"))
        shown = "faster" if float(low) > 100 else "slower" if float(high) < 100 else "neither"
        assert said == shown or (shown == "neither" and said in ("same", "ambiguous")) or said == "ambiguous", row
        floor = float(row.get("a_a_floor_points") or 0)
        assert float(high) / float(low) >= 1 + 1.5 * min(floor, least[row["dtype"]]) / 100, row
    if path.stem in ("cells", "progression", "sweep_h200", "sweep_h100"):
        assert len(rows) > 20
