"""The cases of the emulator are legal PTX: NVIDIA's assembler accepts every one of them."""

from pathlib import Path

import pytest
from tests.cases.harness import collect, ptx_of
from tests.compile import NEEDS, root, tool

pytestmark = [pytest.mark.nvcc, pytest.mark.skipif(not root(), reason=NEEDS)]
CASES = collect()
TARGETS = ("sm_80", "sm_86", "sm_90", "sm_90a")


def refusals(text: str, folder: Path) -> list[str]:
    source = folder / "cases.ptx"
    source.write_text(text)
    newest = "sm_90a" if ".target sm_90a" in text else "sm_90"
    done = tool("ptxas", f"-arch={newest}", "-O1", source, "-o", folder / "cases.cubin")
    lines = text.splitlines()
    told = [line for line in done.stderr.splitlines() if "error" in line or "fatal" in line]
    numbers = [int(line.partition("line ")[2].partition(";")[0]) for line in told if "line " in line]
    return [*told, *(lines[number - 1] for number in numbers)] if done.returncode else []


@pytest.mark.parametrize("module", list(CASES))
def test_every_case_is_legal_ptx(tmp_path: Path, module: str) -> None:
    assert {case.target for case in CASES[module]} <= set(TARGETS)
    for target in TARGETS:
        chosen = [case for case in CASES[module] if case.target == target]
        assert not chosen or refusals(ptx_of(chosen), tmp_path) == []


def test_an_illegal_case_is_refused(tmp_path: Path) -> None:
    (case, *_) = next(iter(CASES.values()))
    text = ptx_of([case])
    assert refusals(text, tmp_path) == []
    told = refusals(text.replace(case.opcode, "add.s128"), tmp_path)
    assert told
    assert "add.s128" in told[-1]
