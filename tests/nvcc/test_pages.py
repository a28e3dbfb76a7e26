"""What docs/without-a-gpu.md shows of `invoke emulate` is what it prints."""

from __future__ import annotations

import re

import pytest

from flashladder.paths import ROOT
from tests.typed import command

pytestmark = pytest.mark.nvcc


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
