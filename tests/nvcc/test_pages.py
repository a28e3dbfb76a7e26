"""Pages that say what to type, executed: without a GPU, reproduce, add an iteration, another GPU."""

from __future__ import annotations

from pathlib import Path
import re

import pytest

from flashladder.lock.schema import read_lock
from flashladder.paths import ROOT
from tests import pages
from tests.typed import command


@pytest.mark.nvcc
def test_the_page_of_iteration_1_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "without-a-gpu.md").read_text(encoding="utf-8")
    shown = re.search(r"ends with\n\n```\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    assert command("emulate", "1", "--counters") == 0
    printed = capsys.readouterr().out.splitlines()
    for line in shown[1].splitlines():
        if line != "...":
            assert any(one.startswith(line.removesuffix("...").rstrip()) for one in printed), line
    ideal = re.search(r"shared_ld_ideal +([\d,]+)", shown[1])
    assert ideal is not None
    assert command("emulate", "2", "--counters") == 0
    assert re.search(rf"shared_ld_wavefronts +{ideal[1]}", capsys.readouterr().out)
    assert f"needs only the {ideal[1]} wavefronts" in " ".join(text.split())


PAGE = ROOT / "docs" / "reproduce.md"
STEPS = [step for step in pages.steps(PAGE) if isinstance(step, pages.Command)]


@pytest.mark.nvcc
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.line[:50])
def test_a_command_prints_what_the_page_says(step: pages.Command) -> None:
    assert step.expected
    pages.run(step, ROOT, {"COLUMNS": "80"})


ADD_AN_ITERATION = ROOT / "docs" / "add-an-iteration.md"
TEN_STEPS = list(pages.steps(ADD_AN_ITERATION))


@pytest.mark.nvcc
def test_ten_steps_make_an_iteration(tmp_path: Path) -> None:
    """One test, as each step builds on those before it."""
    root = pages.copied(tmp_path / "checkout")
    before = hashes(root, 19)
    for step in TEN_STEPS:
        pages.run(step, root, pages.environment(root, ROOT))
    assert "build-iteration-34 -> An epilogue of its own" in pages.ran(root, ROOT, "-m", "nox", "-l").stdout
    assert hashes(root, 34) == before
    row = next(
        line for line in (root / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| 34 ")
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "An epilogue of its own"
    assert set(cells[2:]) == {"–"}, "not measured, not published"
    table = (root / "results" / "report" / "progression.md").read_text(encoding="utf-8")
    row = next(line for line in table.splitlines() if line.startswith("| 34 "))
    assert [cell.strip() for cell in row.strip("|").split("|")][-2:] == ["255", "8"]  # the H200's, as iteration 19


def hashes(root: Path, number: int) -> dict[str, str]:
    """The locked machine code of an iteration, by configuration."""
    kernels = read_lock("sm_80", root / "results" / "locks").iterations[number].kernels
    return {name: kernel.text_sha256 for name, kernel in kernels.items()}


ANOTHER_GPU = ROOT / "docs" / "another-gpu.md"


@pytest.mark.nvcc
def test_a_file_and_a_grid_make_a_gpu(tmp_path: Path) -> None:
    root = pages.copied(tmp_path / "checkout")
    steps = list(pages.steps(ANOTHER_GPU))
    assert len(steps) == 6
    before = (root / "configs" / "schema" / "grid.json").read_text(encoding="utf-8")
    for step in steps:
        pages.run(step, root, pages.environment(root, ROOT))
    after = (root / "configs" / "schema" / "grid.json").read_text(encoding="utf-8")
    assert '"a40"' in after
    assert '"a40"' not in before
