"""The table of wrong kernels, without a compiler: every mistake can still be made, and what the page says of it.

tests/broken/test_wrong_kernels.py makes them.
"""

from __future__ import annotations

import pytest

from flashladder.ladder.iteration import included_files, load_iteration, translation_unit
from flashladder.paths import KERNELS, ROOT
from tests.broken import wrong_page
from tests.broken.wrong_kernels import (
    EVIDENCE,
    LAUNCH,
    WrongKernel,
    config_of,
    read_all,
    standard_cases,
)


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


TYPES_ONLY = {  # no instruction comes of them
    *("kernels/ampere/contracts.cuh", "kernels/hopper/contracts.cuh", "kernels/ptx/value_types.cuh"),
}


def test_a_mistake_is_made_in_every_source_of_the_kernels() -> None:
    changed = {edit.file for wrong in read_all() for edit in wrong.edits}
    sources = {path.relative_to(ROOT).as_posix() for path in KERNELS.rglob("*.cuh")} | set(LAUNCH)
    assert changed == sources - TYPES_ONLY


def test_the_committed_page_is_current() -> None:
    assert wrong_page.main(["--check"]) == 0
