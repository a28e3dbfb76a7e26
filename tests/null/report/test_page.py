"""The page: sections found by their two files, one line for a broken one, names escaped, the same bytes again."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
from typing import Any
import zlib

import pytest

from flashladder.errors import FlashladderError
from flashladder.files import inflated
from flashladder.paths import RESULTS, ROOT
from flashladder.report import command as report
from flashladder.report import data as report_data
from flashladder.report.page import frame, sections
from flashladder.report.page.alone import alone
from flashladder.report.page.frame import MOST_BYTES, page
from flashladder.report.page.sections import find
from flashladder.report.tables import headline
from tests.null.ladder_fixture import make
from tests.null.report.page_fixture import TOY, add

INDEX = RESULTS / "report" / "index.html"


@pytest.fixture(scope="module")
def ladder() -> report_data.Ladder:
    return report_data.collect()


@pytest.fixture(scope="module")
def committed() -> str:
    return INDEX.read_text(encoding="utf-8")


def data_of(text: str) -> dict[str, Any]:
    """The records of a page, as its script reads them."""
    (block,) = re.findall(r'<script type="text/plain" id="records">(.*?)</script>', text, re.DOTALL)
    found: dict[str, Any] = json.loads(inflated(block))
    return found


def test_a_section_is_two_files(ladder: report_data.Ladder, tmp_path: Path) -> None:
    shutil.copytree(sections.SECTIONS, tmp_path / "page", ignore=shutil.ignore_patterns("__pycache__"))
    before = [one.name for one in find(tmp_path / "page")]
    add(tmp_path / "page", order=15)
    found = find(tmp_path / "page")
    assert [one.name for one in found] == [before[0], "toy", *before[1:]]
    text = page(ladder, sections=[one for one in found if one.name in ("toy", "provenance")]).decode()
    assert '<li><a href="#toy">A toy</a></li>' in text
    assert '<section id="toy" aria-labelledby="toy-title">' in text
    assert '<table id="t-toy"' in text
    assert '<td class="number">1.0</td>' in text
    assert text.index('id="toy"') < text.index('id="provenance"')


def test_the_committed_page_has_a_section_of_each_pair(committed: str) -> None:
    assert re.findall(r'<section id="(\w+)"', committed) == [one.name for one in find()]
    assert {"progression", "lengths", "roofline", "worth", "instructions", "counters", "tuning", "compilers", "claims",
            "correctness", "iterations", "provenance"} <= {one.name for one in find()}  # fmt: skip
    for number in range(1, 17):
        assert f'id="iteration-{number}"' in committed


def test_every_value_is_escaped(ladder: report_data.Ladder, tmp_path: Path) -> None:
    title = "</title><script>x</script>"
    (section,) = (sections.load(add(tmp_path, title=title)),)
    text = page(ladder, sections=[section]).decode()
    assert "<script>x" not in text
    assert text.count(html.escape(title)) >= 3
    assert '<p class="toy">&lt;b&gt;bold&lt;/b&gt; &amp; co</p>' in text


def test_records_cannot_end_their_script(ladder: report_data.Ladder, tmp_path: Path) -> None:
    script = TOY.format(order=1, title="A toy").replace('"A fact"', '"</script><script>x</script>"')
    text = page(ladder, sections=[sections.load(add(tmp_path, script=script))]).decode()
    assert text.count("<script") == 2
    assert data_of(text)["records"][0]["title"] == "</script><script>x</script>"


def test_the_policy_names_the_digest_of_the_only_script(committed: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", committed, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', committed)
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in html.unescape(policy)


def test_it_names_no_address_but_the_namespace_of_svg(committed: str) -> None:
    body = re.sub(r"<pre.*?</pre>", "", committed, flags=re.DOTALL)
    assert set(re.findall(r"""(?:https?:)?//[\w./-]+|\bsrc=|@import|url\((?!#)""", data_free(body))) <= {
        "http://www.w3.org/2000/svg"
    }


def data_free(text: str) -> str:
    """The page without what its records say."""
    return re.sub(r'<script type="text/plain".*?</script>', "", text, flags=re.DOTALL)


def test_it_is_small_enough_to_send() -> None:
    assert 500_000 < INDEX.stat().st_size < MOST_BYTES == 3_300_000


@pytest.mark.slow
def test_it_is_what_the_results_give_to_the_byte(ladder: report_data.Ladder) -> None:
    """Another process rendered the committed one."""
    assert report.stale(report.pages(ladder)) == []


def test_another_zlib_gives_the_same_page_and_another_record_does_not(tmp_path: Path) -> None:
    data = INDEX.read_bytes()
    (block,) = re.findall(rb'<script type="text/plain" id="records">(.*?)</script>', data, re.DOTALL)
    path = tmp_path / "index.html"
    for text, stale in ((inflated(block.decode()), False), (inflated(block.decode()).replace("1", "2", 1), True)):
        path.write_bytes(data.replace(block, base64.b64encode(zlib.compress(text.encode(), 1)), 1))
        assert bool(report.stale({path: data})) is stale
    path.write_bytes(data.replace(block, b"no base64!", 1))
    assert report.stale({path: data})


@pytest.mark.parametrize("check", [False, True])
def test_a_folder_in_the_place_of_a_file_is_named_before_any_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    first, folder = tmp_path / "first.md", tmp_path / "fastest.json"
    folder.mkdir()
    monkeypatch.setattr(report, "collect", lambda: None)
    monkeypatch.setattr(report, "committed", lambda ladder, root: {first: b"text", folder: b"{}"})
    monkeypatch.setattr(report, "pages", lambda ladder, root: {})
    with pytest.raises(FlashladderError, match=r"/fastest.json: is a directory; remove it$") as told:
        report.report(check=check)
    assert told.value.exit_code == 2
    assert not first.exists()


def test_an_edit_and_a_missing_page_are_named(
    ladder: report_data.Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tmp_path / "sections")
    monkeypatch.setattr(frame, "find", lambda: find(tmp_path / "sections"))
    monkeypatch.setattr("flashladder.report.page.book.ROOT", tmp_path)
    (tmp_path / "results").symlink_to(RESULTS)
    data = page(ladder, tmp_path)
    path = tmp_path / "index.html"
    assert report.stale({path: data}) == [f"{path}: missing"]
    path.write_bytes(data)
    assert report.stale({path: data}) == []
    path.write_bytes(data.replace(b"1.0</td>", b"1.1</td>"))
    assert report.stale({path: data}) == [f"{path}: not what the committed results give"]
    release = re.search(rb"Matplotlib v([\d.]+)", data)
    assert release is not None
    path.write_bytes(data.replace(release[0], b"Matplotlib v0.0.1").replace(b"<svg", b"<svg "))
    assert report.stale({path: data}) == []
    assert "compared by their data" in capsys.readouterr().err
    path.write_bytes(re.sub(rb"data [0-9a-f]{64}", b"data " + b"0" * 64, path.read_bytes()))
    assert report.stale({path: data}) == [f"{path}: not what the committed results give"]


BROKEN = {
    "syntax": ("def content(:\n", "", r"toy\.py:1: the section of the page fails: found SyntaxError: "),
    "import": ("\nimport nothing_of_this_name\n", "", r"toy\.py:2: .*ModuleNotFoundError: No module named"),
    "no title": (
        "ORDER = 1\ndef content(book): return {}\n",
        "",
        r"toy\.py: not a section of the page: .*found no TITLE",
    ),
    "bad order": ('ORDER, TITLE = "1", "x"\ndef content(book): return {}\n', "", r"toy\.py: not a section.*ORDER '1'"),
    "fails": ('ORDER, TITLE = 1, "x"\ndef content(book):\n    return 1 / 0\n', "", r"toy\.py:3: .*ZeroDivisionError"),
    "no dict": ('ORDER, TITLE = 1, "x"\ndef content(book): return 3\n', "", r"toy\.py: .*expected a dict, found int"),
    "template": ("", "\n{% for %}", r"toy\.html\.j2:2: the section's template is broken: found "),
    "name": ("", "{{ nothing }}", r"toy\.html\.j2: the section's template fails: found 'nothing' is undefined"),
    "macro": (
        "",
        "{{ table.rows[9].text }}",
        r"toy\.html\.j2: the section's template fails: found .* has no element 9",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_section_is_one_line_that_names_the_place(
    case: str, ladder: report_data.Ladder, tmp_path: Path
) -> None:
    script, template, message = BROKEN[case]
    add(tmp_path, script=script, template=template)
    with pytest.raises(FlashladderError, match=message) as found:
        page(ladder, sections=find(tmp_path))
    assert "\n" not in str(found.value)


def test_half_a_section_and_none_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(FlashladderError, match="no section of the page"):
        find(tmp_path)
    add(tmp_path)
    (tmp_path / "toy.html.j2").rename(tmp_path / "other.html.j2")
    with pytest.raises(
        FlashladderError, match=r"other\.html\.j2: half a section: expected other\.py and other\.html\.j2"
    ):
        find(tmp_path)


def test_a_section_runs_alone(tmp_path: Path) -> None:
    out = tmp_path / "out" / "provenance.html"
    script = sections.SECTIONS / "provenance.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # the package need not be installed where tests run
    command = [sys.executable, str(script), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    text = out.read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', text) == ["provenance"]
    assert "results/h200/bench.json.gz" in text


def test_a_section_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        alone(str(sections.SECTIONS / "provenance.py"), ["--nonsense"])
    assert left.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_results_of_one_own_gpu_alone_make_a_page(tmp_path: Path) -> None:
    made = make(tmp_path / "results", lambda number: 50.0 + 3.5 * number)
    (tmp_path / "iterations").symlink_to(ROOT / "iterations")
    text = page(report_data.collect(made.folder), tmp_path).decode()
    assert "NVIDIA H200" in text
    assert "Not judged yet: " in text
    assert len(data_of(text)["records"]) > 16


def test_nothing_measured_makes_a_page(tmp_path: Path) -> None:
    for name in ("published", "locks"):
        shutil.copytree(RESULTS / name, tmp_path / "results" / name)
    text = page(report_data.collect(tmp_path / "results"), tmp_path).decode()
    assert "Nothing was measured by this project yet" in text
    assert "A100, published" in text


@pytest.mark.parametrize("there", [True, False])
def test_open_shows_the_page_or_says_where_it_lies(
    there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: asked.append(address) or there)  # type: ignore[func-returns-value]  # appends
    report.open_page(INDEX)
    assert asked == [INDEX.as_uri()]
    assert capsys.readouterr().err == ("" if there else "no browser here; copy and open results/report/index.html\n")


def test_intervals_and_verdicts_are_those_of_the_tables(ladder: report_data.Ladder, committed: str) -> None:
    """Of every step on the headline machine."""
    (table,) = re.findall(r'<table id="t-progression-fp16-own".*?</table>', committed, re.DOTALL)
    rows = [[re.sub(r"<[^>]+>", "", cell) for cell in row.split("<td")] for row in table.split("<tr>")[3:]]
    shown = [[cell.partition(">")[2] for cell in row[3:6]] for row in rows]
    found = [headline(row) for row in ladder.rows(ladder.machines[0], "fp16")]
    wanted = [one and [f"{one.pct:.1f}", f"{one.pct_low:.1f} to {one.pct_high:.1f}", one.verdict] for one in found]
    assert len(shown) == len(ladder.iterations)
    assert [cells if one else None for cells, one in zip(shown, wanted, strict=True)] == wanted
    assert sum(one is not None for one in wanted) >= 19
