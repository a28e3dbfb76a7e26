"""The examples of the guide to Hopper kernels run as they are printed."""

from __future__ import annotations

import re

import pytest

from flashladder.paths import ROOT

GUIDE = ROOT / "docs" / "hopper-on-a-laptop.md"
TEXT = GUIDE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_every_example_runs_in_the_order_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == TEXT.count("```python") == 6
    names: dict[str, object] = {}
    printed = []
    for number, example in enumerate(EXAMPLES):
        exec(compile(example, f"{GUIDE.name}, example {number}", "exec"), names)
        printed.append(capsys.readouterr().out)
    assert re.search(r"sums\.ptx:\d+: shared WAR \(write after read by another thread\)", printed[1])
    assert re.match(r"sums\.ptx:\d+: .*bytes outstanding", printed[2])
    assert "box of a tensor map" in printed[3]
    told = printed[5].splitlines()
    assert len(told) == 3
    assert all("register d" in line or "before any wgmma.fence" in line for line in told)
