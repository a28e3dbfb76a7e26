"""The guide's example runs as it is printed, and what the guide says of files, options and counters is so."""

from __future__ import annotations

import re

import pytest

from flashladder.paths import ROOT
from ptxemu.errors import KINDS
from ptxemu.machine.memory import RED_ZONE
from ptxemu.observe.counters import Counters
from ptxemu.observe.hazards import KINDS as RACES
from ptxemu.run.launch import MAX_INSTRUCTIONS, MEMORY_BUDGET

GUIDE = ROOT / "docs" / "emulator.md"
TEXT = GUIDE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_every_example_runs_in_the_order_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == TEXT.count("```python") == 4
    names: dict[str, object] = {}
    printed = []
    for number, example in enumerate(EXAMPLES):
        exec(compile(example, f"{GUIDE.name}, example {number}", "exec"), names)
        printed.append(capsys.readouterr().out)
    assert "Result(blocks=1, slices=1" in printed[0]
    assert "ld.shared.f32 shared Traffic(requests=32, wavefronts=32, phases=32, sectors=0)" in printed[1]
    assert re.match(r"transpose\.ptx:\d+: shared RAW \(read after write by another thread\) at 0x", printed[2])
    assert re.match(r"transpose\.ptx:\d+: 4-byte access 4 bytes past the end", printed[3])


def test_files_that_the_guide_names_are_there() -> None:
    named = re.findall(r"`((?:analysis|results|tests|flashladder)/[\w./]+)`", TEXT)
    assert len(named) >= 6
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_counters_and_kinds_that_the_guide_names_are_those_of_the_code() -> None:
    forms = re.findall(r"`((?:l1tex|smsp)__[^`]+)`", TEXT)
    names = set()
    for form in forms:
        stem, brace, tail = form.partition("{ld,st,atom}")
        names |= {f"{stem}{operation}{tail}" for operation in ("ld", "st", "atom")} if brace else {form}
    assert names == set(Counters().as_dict())
    table = TEXT[TEXT.index("| kind |") : TEXT.index("## Counters")]
    assert set(re.findall(r"`([^`]+)`", table)) - {"wgmma", "fence.proxy.async", "fence.mbarrier_init"} == set(RACES)
    assert {"budget", "deadlock", "divergent-barrier", "divergent-warp", "unsupported"} <= set(KINDS)


def test_budgets_that_the_guide_states() -> None:
    assert (MEMORY_BUDGET, MAX_INSTRUCTIONS, RED_ZONE) == (1 << 30, 5_000_000, 64 << 30)
