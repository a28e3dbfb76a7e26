"""The report's section of the linked view: the committed page is the locked code, parts add up, another is refused."""

from __future__ import annotations

from functools import cache
import importlib.util
from pathlib import Path
import re
from types import ModuleType
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.iteration import load_all
from flashladder.paths import RESULTS, ROOT
from flashladder.report.data import collect
from flashladder.report.page.book import Book
from flashladder.report.page.frame import TEMPLATES as REPORT
from flashladder.report.page.frame import page
from flashladder.report.page.sections import SECTIONS, load
from flashladder.view.linked_page import TEMPLATES, frame, read_document

CODE = RESULTS / "report" / "code.html"


@cache
def section() -> ModuleType:
    spec = importlib.util.spec_from_file_location("linked_section", SECTIONS / "linked.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def document() -> dict[str, Any]:
    return read_document(CODE.read_bytes())


@pytest.fixture(scope="module")
def book() -> Book:
    return Book(collect())


def test_the_committed_page_holds_every_iteration_of_sm_80_and_is_small_enough() -> None:
    made = [str(step.number) for step in load_all() if "sm_80" in step.family.targets.arches]
    assert [one["key"] for one in document()["kernels"]] == made
    assert CODE.stat().st_size < 2_000_000


def test_its_style_and_script_are_those_of_the_templates() -> None:
    """Where this fails: python analysis/linked_page.py."""
    text = frame(CODE.read_bytes())
    for path in (REPORT / "page.css", TEMPLATES / "linked.css", TEMPLATES / "linked.js"):
        assert path.read_text(encoding="utf-8").strip() in text, path.name


def test_parts_add_up_to_the_main_loop(book: Book) -> None:
    kernels = section().of_page(book)
    for kernel in kernels:
        assert section().by_part(kernel).total() == kernel["loop"] > 500
    table = section().table(kernels)
    columns = [[cell.text.replace(",", "") for cell in column] for column in zip(*table.rows, strict=True)]
    parts = [row for row, name in enumerate(columns[0]) if row and not name.startswith("whole kernel")]
    for column in columns[1:]:
        assert sum(int(column[row]) for row in parts) == int(column[0])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["kernels/ptx/mma.cuh", "kernels/ampere/matmul.cuh", "kernels/entry.cuh"], "matmul.cuh"),
        (["kernels/ptx/math.cuh", "kernels/ampere/softmax/exp2_folded.cuh"], "softmax"),
        (["cuda/sm_30_intrinsics.hpp", "kernels/ampere/flash_fwd_tiled.cuh"], "body"),
        (["kernel.cu"], "the compilers' own"),
        ([], "the compilers' own"),
    ],
)
def test_an_instruction_counts_for_the_innermost_part_above_the_floor(files: list[str], expected: str) -> None:
    assert section().part([(number, 1) for number in range(len(files))], files) == expected


def test_a_page_of_other_machine_code_is_refused(tmp_path: Path) -> None:
    digest = document()["kernels"][0]["sha256"]["machine code"]
    (tmp_path / "results" / "report").mkdir(parents=True)
    other = CODE.read_text(encoding="utf-8").replace(digest, "0" * 64)
    (tmp_path / "results" / "report" / "code.html").write_text(other, encoding="utf-8")
    with pytest.raises(FlashladderError, match="shows another kernel of iteration 1 than is locked") as caught:
        section().of_page(Book(collect(), tmp_path))
    assert "analysis/linked_page.py" in str(caught.value)


def test_without_a_page_the_section_says_how_to_make_it(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert section().content(Book(collect(), tmp_path))["table"] is None


def test_the_section_leads_to_every_step_beside_the_page() -> None:
    text = page(collect(), sections=[load(SECTIONS / "linked.py")]).decode()
    keys = [one["key"] for one in document()["kernels"]]
    assert re.findall(r'href="code\.html#([^"]+)"', text) == keys
    assert (ROOT / "results" / "report" / "code.html").is_file()
