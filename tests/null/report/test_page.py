"""The page: sections are found by their file, names are escaped, numbers lead to samples, stale pages are named."""

from __future__ import annotations

import base64
import html as escaping
from itertools import accumulate
import json
from pathlib import Path
import re
import shutil
import zlib

import pytest

from analysis.page import why
from flashladder.files import inflated, last_iteration
from flashladder.paths import RESULTS, ROOT
from flashladder.report import command as report
from flashladder.report import data as report_data
from flashladder.report import page as report_page
from flashladder.report import tables as report_tables
from flashladder.report.book import Book, Records, cycle, in_script, join, packed
from flashladder.report.page import MOST_BYTES, SECTIONS, find, html, page
from flashladder.results.derive import by_cell
from flashladder.results.files import load_as
from flashladder.results.schema import A_A, BenchResult
from flashladder.view.linked_page import TEMPLATES, frame, read_document
from tests.data_files import text_of
from tests.typed import error_line

INDEX, CODE = RESULTS / "report" / "index.html", RESULTS / "report" / "code.html"
BENCH = RESULTS / "h200" / "bench.json.gz"
RECORDS = re.compile(r'<script type="text/plain" id="records">(.*?)</script>', re.DOTALL)
TOY = text_of("null/report/page", "toy")


@pytest.fixture(scope="module")
def ladder() -> report_data.Ladder:
    return report_data.collect()


def add(folder: Path, title: str = "A toy") -> Path:
    """Writes a section; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.py").write_text(TOY.replace("TITLED", title), encoding="utf-8")
    return folder


def test_a_section_is_found_by_its_file_and_stands_in_its_order(ladder: report_data.Ladder, tmp_path: Path) -> None:
    shutil.copytree(SECTIONS, tmp_path / "page", ignore=shutil.ignore_patterns("__pycache__"))
    before = [name for name, *_ in find(tmp_path / "page")]
    assert before == ["speed", "lengths", "why", "correctness", "iterations", "sources"]
    found = find(add(tmp_path / "page"))
    assert [name for name, *_ in found] == ["toy", *before]
    text = page(ladder, sections=[found[0], found[-1]]).decode()
    assert '<li><a href="#toy">A toy</a></li>' in text
    assert '<details class="step" id="anchor"><summary>folded</summary>' in text
    assert text.index('id="toy"') < text.index('<table id="t-toy"') < text.index('id="sources"')
    assert "no section of the page" in error_line(find, tmp_path / "empty")


def test_every_value_is_escaped(ladder: report_data.Ladder, tmp_path: Path) -> None:
    title = "</title><script>x</script>"
    text = page(ladder, sections=find(add(tmp_path, title=title))).decode()
    assert "<script>x" not in text
    assert "<img" not in text
    assert text.count(escaping.escape(title)) == 2
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; co" in text
    assert text.count("<script") == 2
    (block,) = RECORDS.findall(text)
    assert json.loads(inflated(block))["records"][0]["title"] == "</script><script>x</script>"
    assert in_script(["</script>&"]) == '["\\u003c/script\\u003e\\u0026"]'


def test_the_committed_page_holds_every_step_and_asks_the_network_for_nothing() -> None:
    committed = INDEX.read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', committed) == [name for name, *_ in find()]
    assert set(range(1, last_iteration() + 1)) <= {int(one) for one in re.findall(r'id="iteration-(\d+)"', committed)}
    assert """http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'sha256-""" in committed
    body = RECORDS.sub("", committed)
    addresses = set(re.findall(r"""(?:https?:)?//[\w./-]+|\bsrc=|@import|url\((?!#)""", body))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert INDEX.stat().st_size < MOST_BYTES <= 1 << 20
    beside = set(re.findall(r'href="([^"#]+)', committed))
    assert len(beside) > 5
    assert [link for link in beside if not (INDEX.parent / link).is_file()] == []


def test_another_zlib_gives_the_same_page_and_another_record_does_not(tmp_path: Path) -> None:
    page, path = INDEX.read_text(encoding="utf-8"), tmp_path / "index.html"
    (block,) = RECORDS.findall(page)
    records = inflated(block)
    packed = [base64.b64encode(zlib.compress(text.encode(), 1)) for text in (records, records.replace("1", "2", 1))]
    for data, stale in ((packed[0], False), (packed[1], True), (b"no base64!", True)):
        path.write_text(page.replace(block, data.decode(), 1), encoding="utf-8")
        assert bool(report.stale({path: page.encode()})) is stale


def test_an_edit_and_a_missing_page_are_named(
    ladder: report_data.Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report_page, "find", lambda: find(tmp_path / "sections"))
    add(tmp_path / "sections")
    (tmp_path / "results").symlink_to(RESULTS)
    data, path = page(ladder, tmp_path), tmp_path / "index.html"
    assert report.stale({path: data}) == [f"{path}: missing"]
    path.write_bytes(data)
    assert report.stale({path: data}) == []
    path.write_bytes(data.replace(b">1.0</a>", b">1.1</a>"))
    assert report.stale({path: data}) == [f"{path}: not what the committed results give"]
    release = re.search(rb"Matplotlib v([\d.]+)", data)
    assert release is not None
    path.write_bytes(data.replace(release[0], b"Matplotlib v0.0.1").replace(b"<svg", b"<svg "))
    assert report.stale({path: data}) == []
    assert "compared by their data" in capsys.readouterr().err
    path.write_bytes(re.sub(rb"data [0-9a-f]{64}", b"data " + b"0" * 64, path.read_bytes()))
    assert report.stale({path: data}) == [f"{path}: not what the committed results give"]


def test_nothing_measured_makes_a_page(tmp_path: Path) -> None:
    for name in ("published", "locks"):
        shutil.copytree(RESULTS / name, tmp_path / "results" / name)
    text = page(report_data.collect(tmp_path / "results"), tmp_path).decode()
    assert "Nothing was measured by this project yet" in text
    assert "A100, published" in text


def test_packed_pairs_come_back_to_the_nanosecond() -> None:
    for parts in by_cell(load_as(BENCH, BenchResult).groups).values():
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
            assert blocks == [pair.block for pair in series.pairs]  # the page's script relies on this order
    assert cycle([0, 1, 2, 0, 1, 2, 0]) == [0, 1, 2]


def test_a_cell_is_one_record_and_a_mean_leads_to_every_length() -> None:
    records, bench = Records(ROOT), load_as(BENCH, BenchResult)
    summary = next(one for one in bench.summaries if one.kernel.startswith("16 "))
    for _ in range(2):
        assert records.timing(BENCH, summary.kernel, summary.dtype, summary.shape) == "0"
    assert records.mean(BENCH, A_A, "fp16") == "1,2,3,4,5,6"
    assert records.timing(BENCH, "no such kernel", "fp16", summary.shape) == ""
    assert join(["1,2", "", "2,3"]) == "1,2,3"
    assert [path.name for path in RESULTS.glob("*/*.json.gz") if not records.made_by(path)] == []


def test_markup_in_a_note_is_text() -> None:
    text = html("# One\n\n<script>x</script> [here](javascript:x) `code`\n\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n")
    assert "<h2>One</h2>" in text
    assert "&lt;script&gt;x&lt;/script&gt;" in text
    assert 'href="javascript' not in text
    assert '<div class="scroll" tabindex="0" role="group" aria-label="table"><table>' in text


def test_the_linked_view_is_of_every_step_of_sm_80_and_of_its_templates(ladder: report_data.Ladder) -> None:
    """If this fails, run: python analysis/linked_page.py."""
    made = [str(step.number) for step in ladder.iterations if "sm_80" in step.family.targets.arches]
    assert [one["key"] for one in read_document(CODE.read_bytes())["kernels"]] == made
    text = frame(CODE.read_bytes())
    for path in (report_tables.TEMPLATES / "page.css", TEMPLATES / "linked.css", TEMPLATES / "linked.js"):
        assert path.read_text(encoding="utf-8").strip() in text, path.name


def test_a_linked_view_of_other_machine_code_is_refused(ladder: report_data.Ladder, tmp_path: Path) -> None:
    digest = read_document(CODE.read_bytes())["kernels"][0]["sha256"]["machine code"]
    (tmp_path / "results" / "report").mkdir(parents=True)
    assert why.linked(Book(ladder, tmp_path)) == []
    other = CODE.read_text(encoding="utf-8").replace(digest, "0" * 64)
    (tmp_path / "results" / "report" / "code.html").write_text(other, encoding="utf-8")
    assert "shows another kernel of iteration 1 than is locked" in error_line(why.linked, Book(ladder, tmp_path))


def test_a_plots_label_is_escaped() -> None:
    assert 'aria-label="a &lt;b&gt; &quot;c&quot;"' in report_page.inlined(
        '<svg viewBox="0 0 1 1"></svg>', "x", 'a <b> "c"'
    )
