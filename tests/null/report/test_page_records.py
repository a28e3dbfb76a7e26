"""Records and plots of the page: raw pairs come back as they were taken, machine code and command stand beside them."""

from __future__ import annotations

from itertools import accumulate
import json
import re

import pytest

from flashladder.errors import FlashladderError
from flashladder.lock.schema import read_lock
from flashladder.paths import RESULTS, ROOT
from flashladder.report.page.cells import EMPTY, Cell, columns, number, step, verdict
from flashladder.report.page.figure import SERIES, Plot, draw
from flashladder.report.page.notes import html
from flashladder.report.page.records import Records, in_script, join
from flashladder.report.page.samples import cycle, differences, in_columns, packed
from flashladder.results.derive import by_cell
from flashladder.results.files import load_as
from flashladder.results.schema import A_A, BenchResult

BENCH = RESULTS / "h200" / "bench.json.gz"


@pytest.fixture(scope="module")
def bench() -> BenchResult:
    return load_as(BENCH, BenchResult)


def test_packed_pairs_come_back_to_the_nanosecond(bench: BenchResult) -> None:
    cells = by_cell(bench.groups)
    for parts in cells.values():
        for group, series in parts:
            found = packed(group, series)
            fa2, kernel = ([time * found["unit"] for time in accumulate(found[name])] for name in ("fa2", "kernel"))
            assert fa2 == [round(1000 * pair.reference_us) for pair in series.pairs]
            assert kernel == [round(1000 * pair.kernel_us) for pair in series.pairs]
            inputs = found["inputs"]
            assert [inputs[i % len(inputs)] for i in range(len(fa2))] == [pair.input_set for pair in series.pairs]
            rows = max([1, *(len(column) for column in found["blocks"] if isinstance(column, list))])
            indices, counts = (one if isinstance(one, list) else [one] * rows for one in found["blocks"][:2])
            blocks = [index for index, count in zip(indices, counts, strict=True) for _ in range(count)]
            assert blocks == [pair.block for pair in series.pairs]  # in order: the page's script counts on it


def test_small_packings() -> None:
    assert differences([5, 7, 4]) == [5, 2, -3]
    assert differences([]) == []
    assert cycle([0, 1, 2, 0, 1, 2, 0]) == [0, 1, 2]
    assert cycle([0, 1, 1]) == [0, 1, 1]
    assert cycle([3]) == [3]
    assert in_columns([[0, 3, None], [1, 3, None]]) == [[0, 1], 3, None]
    assert in_columns([[0, 3]]) == [0, 3]
    assert in_columns([]) == []


def test_a_record_holds_machine_code_that_a_lock_holds_and_the_command(bench: BenchResult) -> None:
    records = Records(ROOT)
    summary = next(one for one in bench.summaries if one.kernel.startswith("16 "))
    assert records.timing(BENCH, summary.kernel, summary.dtype, summary.shape) == "0"
    assert records.timing(BENCH, summary.kernel, summary.dtype, summary.shape) == "0"
    found = json.loads(records.data())
    name, facts = found["codes"][found["records"][0]["code"]]
    locked = read_lock("sm_90").iterations[16].kernels
    assert name == summary.kernel
    assert any(kernel.text_sha256 in dict(facts)["machine code, sm_90"] for kernel in locked.values())
    assert dict(facts)["machine code, sm_90"].endswith(", as in results/locks/sm_90.json")
    source = dict(found["sources"][found["records"][0]["source"]])
    assert source["made by"] == "python -m flashladder.bench --all --configs a100 h200"
    assert source["derived again by"] == "invoke verify results/h200/bench.json.gz"
    assert bench.gpu.uuid == source["card"]


def test_every_document_says_which_command_made_it() -> None:
    records = Records(ROOT)
    silent = [path.name for path in RESULTS.glob("*/*.json.gz") if not records.made_by(path)]
    assert silent == []


def test_floors_and_means_lead_to_every_length(bench: BenchResult) -> None:
    records = Records(ROOT)
    assert records.floor(BENCH, "fp16") == "0,1,2,3,4,5"
    assert records.mean(BENCH, bench.means[0].kernel, bench.means[0].dtype) == "6,7,8,9,10,11"
    assert records.timing(BENCH, "no such kernel", "fp16", bench.groups[0].shape) == ""
    assert join(["1,2", "", "2,3"]) == "1,2,3"
    assert all(one["title"].startswith("fp16, S = ") for one in json.loads(records.data())["records"][:6])
    assert json.loads(records.data())["codes"][0][0] == A_A


def test_json_in_a_script_holds_no_markup() -> None:
    assert in_script(["</script>&"]) == '["\\u003c/script\\u003e\\u0026"]'
    assert json.loads(in_script(["</script>&", "é"])) == ["</script>&", "é"]


def test_cells() -> None:
    assert number(1234.56, 1, "3") == Cell("1,234.6", "3", 1234.56)
    assert number(None) is EMPTY
    assert (number(5.0, 0).key, number(5.04, 1).key, Cell("x").key) == ("", "5.04", "")
    assert step(7) == Cell("7", sort=7.0, target="iteration-7")
    assert verdict("faster").style == "verdict faster"
    assert verdict(None) is EMPTY
    assert [(one.title, one.kind) for one in columns("#", "dtype|text")] == [("#", "number"), ("dtype", "text")]


def drawn(plot: Plot) -> None:
    plot.line([1, 2], [3, 4], 0)
    plot.dots([1, 2], [3, 4], [plot.url("7", "first & <last>"), plot.url("", "second")], 0)
    plot.label("a line", 0)
    plot.legend()


def test_a_plot_takes_its_colours_from_the_page_and_its_points_lead_to_records() -> None:
    one = draw("some-plot", "A title", "It rises.", drawn)
    assert '<svg role="group" aria-label="A title. It rises."' in one.svg
    assert '<a href="#record" data-p="7" tabindex="-1"><title>first &amp; &lt;last&gt;</title>' in one.svg
    assert "<g><title>second</title>" in one.svg
    assert "var(--s0)" in one.svg
    assert SERIES[0] not in one.svg
    assert set(re.findall(r"#[0-9a-f]{6}\b", one.svg)) <= {"#000000", "#ffffff"}
    assert "<metadata" not in one.svg
    assert "DejaVu" not in one.svg
    ids = re.findall(r' id="([^"]+)"', one.svg)
    assert len(ids) == len(set(ids)) > 0
    assert all(name.startswith("some-plot-") for name in ids)
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', one.svg)) - {"record"} <= set(ids)
    assert draw("some-plot", "A title", "It rises.", drawn) == one


def test_another_point_is_another_digest() -> None:
    def other(plot: Plot) -> None:
        plot.dots([1], [3], [plot.url("7", "first")], 0)

    assert (
        draw("some-plot", "A title", "It rises.", other).digest
        != draw("some-plot", "A title", "It rises.", drawn).digest
    )


def test_a_plot_without_a_name_is_an_error() -> None:
    with pytest.raises(FlashladderError, match="not the name of a plot"):
        draw("Some plot", "", "", drawn)


def test_a_note_is_markup_and_markup_in_it_is_text() -> None:
    text = html(
        "# One\n\n<script>x</script> [here](javascript:x) `code`\n\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n", below=2
    )
    assert "<h3>One</h3>" in text
    assert "&lt;script&gt;x&lt;/script&gt;" in text
    assert "<a " not in text
    assert "here" in text
    assert '<div class="scroll" tabindex="0" role="group" aria-label="table"><table>' in text
    assert text.rstrip().endswith("</table></div>")


def test_every_note_of_the_ladder_renders() -> None:
    for path in sorted((ROOT / "iterations" / "notes").glob("*.md")):
        first = path.stem in ("01", "20")  # of its family: there is nothing to compare it with
        assert "<table>" in html(path.read_text(encoding="utf-8")) or first
