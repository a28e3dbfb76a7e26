"""The guides' examples run as they are printed, and what the guides say of files, kinds and counters is so."""

from __future__ import annotations

from pathlib import Path
import re

import pytest

from ptxemu.errors import KINDS
from ptxemu.machine.memory import RED_ZONE
from ptxemu.observe.counters import Counters
from ptxemu.observe.hazards import KINDS as RACES
from ptxemu.run.launch import MAX_INSTRUCTIONS, MEMORY_BUDGET

ROOT = Path(__file__).resolve().parents[2]
GUIDES = {"emulator.md": 4, "hopper-on-a-laptop.md": 6}  # examples


def guide(name: str) -> str:
    file = ROOT / "docs" / name
    if not file.is_file():
        pytest.skip(f"docs/{name} belongs to the repository, not to the package")
    return file.read_text(encoding="utf-8")


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What each example prints, in the order of the page."""
    examples = re.findall(r"^```python\n(.*?)^```$", guide(name), re.DOTALL | re.MULTILINE)
    assert len(examples) == guide(name).count("```python") == GUIDES[name]
    names: dict[str, object] = {}
    found = []
    for number, example in enumerate(examples):
        exec(compile(example, f"{name}, example {number}", "exec"), names)
        found.append(capsys.readouterr().out)
    return found


def test_examples(capsys: pytest.CaptureFixture[str]) -> None:
    first = printed("emulator.md", capsys)
    assert "Result(blocks=1, slices=1" in first[0]
    assert "ld.shared.f32 shared Traffic(requests=32, wavefronts=32, phases=32, sectors=0)" in first[1]
    assert re.match(r"transpose\.ptx:\d+: shared RAW \(read after write by another thread\) at 0x", first[2])
    assert re.match(r"transpose\.ptx:\d+: 4-byte access 4 bytes past the end", first[3])
    second = printed("hopper-on-a-laptop.md", capsys)
    assert re.search(r"sums\.ptx:\d+: shared WAR \(write after read by another thread\)", second[1])
    assert re.match(r"sums\.ptx:\d+: .*bytes outstanding", second[2])
    assert "box of a tensor map" in second[3]
    told = second[5].splitlines()
    assert len(told) == 3
    assert all("register d" in line or "before any wgmma.fence" in line for line in told)


def test_files_counters_kinds_and_budgets_that_the_guide_names() -> None:
    text = guide("emulator.md")
    named = re.findall(r"`((?:analysis|results|tests|flashladder|emulator)/[\w./]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    names = set()
    for form in re.findall(r"`((?:l1tex|smsp)__[^`]+)`", text):
        stem, brace, tail = form.partition("{ld,st,atom}")
        names |= {f"{stem}{operation}{tail}" for operation in ("ld", "st", "atom")} if brace else {form}
    assert names == set(Counters().as_dict())
    table = text[text.index("| kind |") : text.index("## Counters")]
    assert set(re.findall(r"`([^`]+)`", table)) - {"wgmma", "fence.proxy.async", "fence.mbarrier_init"} == set(RACES)
    assert {"budget", "deadlock", "divergent-barrier", "divergent-warp", "unsupported"} <= set(KINDS)
    assert (MEMORY_BUDGET, MAX_INSTRUCTIONS, RED_ZONE) == (1 << 30, 5_000_000, 64 << 30)
