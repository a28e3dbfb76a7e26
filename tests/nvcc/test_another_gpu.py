"""docs/another-gpu.md, executed in a copy of the checkout, but for what needs the card."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.paths import ROOT
from tests import pages
from tests.nvcc import checkouts

PAGE = ROOT / "docs" / "another-gpu.md"


@pytest.mark.nvcc
def test_a_file_and_a_grid_make_a_gpu(tmp_path: Path) -> None:
    root = checkouts.copied(tmp_path / "checkout")
    steps = list(pages.steps(PAGE))
    assert len(steps) == 6
    before = (root / "configs" / "schema" / "grid.json").read_text(encoding="utf-8")
    for step in steps:
        pages.run(step, root, checkouts.environment(root, ROOT))
    after = (root / "configs" / "schema" / "grid.json").read_text(encoding="utf-8")
    assert '"a40"' in after
    assert '"a40"' not in before
