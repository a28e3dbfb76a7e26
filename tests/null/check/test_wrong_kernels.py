"""The table of wrong kernels, without a compiler: every mistake can still be made, and what the page says of it.

tests/broken/test_wrong_kernels.py makes them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from flashladder.ladder.config import DTYPES
from flashladder.ladder.iteration import included_files, load_all, load_iteration, translation_unit
from flashladder.paths import KERNELS, ROOT
from tests.broken import wrong_page
from tests.broken.wrong_kernels import (
    EVIDENCE,
    LAUNCH,
    Edit,
    WrongKernel,
    config_of,
    read_all,
    standard_cases,
)

REQUIRED = {
    "v_with_k_strides",
    "k_and_v_with_q_strides",
    "row_offset_32_bit_in_a_tile",
    "maximum_starts_at_0",
    "division_biased",
    "reciprocal_biased",
    "q_without_syncwarp",
}


@pytest.mark.parametrize("wrong", read_all(), ids=str)
def test_the_mistake_can_be_made_in_a_file_that_the_iteration_is_composed_of(wrong: WrongKernel) -> None:
    iteration, config = load_iteration(wrong.iteration), config_of(wrong.iteration, wrong.dtype)
    included = {path.relative_to(ROOT).as_posix() for path in included_files(translation_unit(iteration, config))}
    for file, text in wrong.sources().items():
        assert file in included | set(LAUNCH)
        assert text != (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("wrong", read_all(), ids=str)
def test_the_case_is_one_that_everybody_runs(wrong: WrongKernel) -> None:
    assert wrong.case in standard_cases(wrong.iteration, wrong.dtype)
    assert wrong.evidence in EVIDENCE


def test_the_set_is_wide() -> None:
    entries = read_all()
    assert not [name for name, count in Counter(wrong.name for wrong in entries).items() if count > 1]
    assert {wrong.name for wrong in entries} >= REQUIRED
    assert len(entries) >= 48
    assert {wrong.iteration for wrong in entries} == {iteration.number for iteration in load_all()}
    assert {wrong.evidence for wrong in entries} == set(EVIDENCE)
    assert {wrong.dtype for wrong in entries} == set(DTYPES)


TYPES_ONLY = {  # no instruction comes of them
    *("kernels/ampere/contracts.cuh", "kernels/hopper/contracts.cuh", "kernels/ptx/value_types.cuh"),
}


def test_a_mistake_is_made_in_every_source_of_the_kernels() -> None:
    changed = {edit.file for wrong in read_all() for edit in wrong.edits}
    sources = {path.relative_to(ROOT).as_posix() for path in KERNELS.rglob("*.cuh")} | set(LAUNCH)
    assert changed == sources - TYPES_ONLY


def test_the_page_counts_them() -> None:
    text = (ROOT / "docs" / "without-a-gpu.md").read_text(encoding="utf-8")
    assert f"[{len(read_all())} wrong kernels](wrong-kernels.md)" in " ".join(text.split())


@pytest.mark.parametrize("text", ["", "a b", "a a"])
def test_a_text_that_does_not_stand_there_once_is_refused(text: str) -> None:
    edit = Edit(file="kernels/ampere/cta.cuh", old="a", new="b")
    if text.count("a") == 1:
        assert edit.apply(text) == "b b"
        return
    with pytest.raises(ValueError, match="expected the text to be replaced once"):
        edit.apply(text)


def test_the_committed_page_is_current() -> None:
    assert wrong_page.main(["--check"]) == 0


def test_a_stale_page_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wrong_page, "PAGE", tmp_path / "wrong-kernels.md")
    for prepare in (lambda: None, lambda: wrong_page.PAGE.write_text("# Wrong\n", encoding="utf-8")):
        prepare()
        with pytest.raises(SystemExit) as caught:
            wrong_page.main(["--check"])
        assert caught.value.code == 1
        assert "wrong-kernels.md: stale list of wrong kernels" in capsys.readouterr().err
    wrong_page.main([])
    assert wrong_page.main(["--check"]) == 0
    page = wrong_page.PAGE.read_text(encoding="utf-8")
    for wrong in read_all():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{wrong.name}` |"))
        assert f"| {wrong.case} |" in line
