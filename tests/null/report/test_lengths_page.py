"""Speed over length: a point whose interval is wide stands hollow and off its line, and the caption says why."""

from __future__ import annotations

from analysis.page import lengths
from flashladder.paths import RESULTS
from flashladder.results.files import load_result
from flashladder.results.schema import BenchResult


def test_a_wide_interval_is_told_from_a_narrow_one() -> None:
    result = load_result(RESULTS / "h100" / "h100.json.gz")
    assert isinstance(result, BenchResult)
    one = result.summaries[0]
    assert not lengths.wide(one.model_copy(update={"pct": 100.0, "pct_low": 90.5, "pct_high": 110.0}))
    assert lengths.wide(one.model_copy(update={"pct": 100.0, "pct_low": 49.8, "pct_high": 177.0}))
    assert any(lengths.wide(each) for each in result.summaries), "FA4 at S = 1024"


def test_the_committed_page_says_which_points_are_unsure() -> None:
    page = (RESULTS / "report" / "index.html").read_text(encoding="utf-8")
    assert "hollow, off the line: its interval is wider than 20% of it" in page
    assert "%: unsure)" in page
