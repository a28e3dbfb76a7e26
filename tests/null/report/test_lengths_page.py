"""Speed over length: a point whose interval is wide stands hollow and off its line, and the caption says why."""

from __future__ import annotations

import html
import re

from analysis.page import lengths, progression
from flashladder.ladder.iteration import load_all
from flashladder.names import HEADLINE_LENGTH
from flashladder.paths import RESULTS
from flashladder.report.data import collect
from flashladder.report.page.book import Book
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


def test_a_machine_whose_timings_lie_in_several_files_is_told_of_as_a_whole() -> None:
    """The H200's later steps have files of their own, and the caption's best and the table are of all of them."""
    book = Book(collect())
    h200 = next(one for one in book.machines if one.key == "h200")
    assert [one.path.name for one in h200.further] == [
        "bench_beyond.json.gz",
        "bench_hopper.json.gz",
        "bench_persistent.json.gz",
        "bench_split.json.gz",
    ]
    every = [one.summaries for one in h200.further]
    best = max(one.pct for own in every for one in own.values() if (one.dtype, one.shape.seq_len) == ("fp16", 4096))
    assert best > max(one.pct for one in h200.result.summaries)
    drawn = progression.panel(book, "all", "All steps", 1)
    told = html.unescape(drawn.description)
    assert f"H200, iterations 1 to 28: at most {best:.1f} %" in told
    h100 = next(one for one in book.machines if one.key == "h100")
    steps = {one.iteration for part in (h100, *h100.further) for one in part.result.kernels.values()}
    assert f"H100, iterations {min(steps)} to {max(steps)}: at most" in told, "its line ends before the ladder does"
    table = lengths.table(book, h200, "fp16")
    assert {row[0].text for row in table.rows} == {str(step.number) for step in load_all() if not step.unmeasured}
    assert "bench_hopper.json.gz" in table.caption
    assert HEADLINE_LENGTH == 4096


def test_the_hopper_ladder_stands_beside_cudnn_and_fa4() -> None:
    page = (RESULTS / "report" / "index.html").read_text(encoding="utf-8")
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for gpu, references in (("h200", {"cudnn", "fa4"}), ("h100", {"cudnn"})):
        (svg,) = [one for one in drawn if f'"tflops-{gpu}-hopper-fp16-' in one]
        assert {"iteration 24", "FA2", *references} <= set(re.findall(r"iteration \d+|cudnn|fa4|FA2", svg))
