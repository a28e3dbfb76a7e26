"""docs/add-an-iteration.md, executed: one more iteration from two new files, and every command knows it.

Why: a ladder that grows by editing the pipeline does not grow. All in a copy of the checkout, which shares the store.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest

from flashladder.paths import ROOT
from tests import pages
from tests.nvcc import checkouts

pytestmark = pytest.mark.nvcc

PAGE = ROOT / "docs" / "add-an-iteration.md"
STEPS = list(pages.steps(PAGE))


def test_ten_steps_make_an_iteration(tmp_path: Path) -> None:
    """One test, as each step builds on those before it."""
    root = checkouts.copied(tmp_path / "checkout")
    before = locked(root)
    for step in STEPS:
        pages.run(step, root, checkouts.environment(root, ROOT))
    assert "build-iteration-29 -> An epilogue of its own" in checkouts.ran(root, ROOT, "-m", "nox", "-l").stdout
    require_callable(root)
    after = locked(root)
    assert hashes(after["29"]) == hashes(before["19"])
    row = next(
        line for line in (root / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| 29 ")
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "An epilogue of its own"
    assert set(cells[2:]) == {"–"}, "not measured, not published"
    table = (root / "results" / "report" / "progression.md").read_text(encoding="utf-8")
    row = next(line for line in table.splitlines() if line.startswith("| 29 "))
    assert [cell.strip() for cell in row.strip("|").split("|")][-2:] == ["255", "8"]  # the H200's, as iteration 19


def test_the_page_has_ten_steps_that_are_executed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [f"\n**{number}. " in text for number in range(1, 12)] == [True] * 10 + [False]
    assert len(STEPS) == text.count("\n$ ") + 1


def locked(root: Path) -> dict[str, dict[str, dict[str, dict[str, str]]]]:
    """The iterations of a lock."""
    found: dict[str, dict[str, dict[str, dict[str, str]]]] = json.loads(
        (root / "results" / "locks" / "sm_80.json").read_text(encoding="utf-8")
    )["iterations"]
    return found


def hashes(iteration: dict[str, dict[str, dict[str, str]]]) -> dict[str, str]:
    return {name: one["text_sha256"] for name, one in iteration["kernels"].items()}


def require_callable(root: Path) -> None:
    """The wheel that step 8 built knows its operator."""
    (wheel,) = (root / "build" / "iteration_29" / "sm_80").glob("flashladder_29-*.whl")
    site = root / "site"
    shutil.unpack_archive(wheel, site, "zip")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch, flashladder\n"
        "q = torch.zeros(1, 128, 16, 128, dtype=torch.float16, device='meta')\n"
        "print(flashladder.forward(q, q, q, iteration=29).shape)\n"
        "try: torch.ops.flashladder_29.forward(*[torch.zeros_like(q, device='cpu')] * 3)\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(site)], env=os.environ | checkouts.environment(root, ROOT),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("torch.Size([1, 128, 16, 128])\n")
    assert "flashladder_29: q: expected a CUDA tensor" in done.stdout
