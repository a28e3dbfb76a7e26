"""The cases of the emulator are legal PTX: NVIDIA's assembler accepts every one of them."""

from __future__ import annotations

from pathlib import Path
import subprocess

import pytest
from tests.cases.harness import collect, ptx_of

from flashladder.errors import FlashladderError
from flashladder.toolchain.wheels import Toolchain, find_toolchain

pytestmark = pytest.mark.nvcc
CASES = collect()
TARGETS = ("sm_80", "sm_86", "sm_90", "sm_90a")


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    try:
        return find_toolchain()
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")


def refusals(toolchain: Toolchain, text: str, folder: Path) -> list[str]:
    """The assembler's errors about a module, none when it is legal."""
    source = folder / "cases.ptx"
    source.write_text(text)
    newest = "sm_90a" if ".target sm_90a" in text else "sm_90"
    command = [str(toolchain.ptxas), f"-arch={newest}", "-O1", str(source), "-o", str(folder / "cases.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = text.splitlines()
    told = [line for line in done.stderr.splitlines() if "error" in line or "fatal" in line]
    numbers = [int(line.partition("line ")[2].partition(";")[0]) for line in told if "line " in line]
    return [*told, *(lines[number - 1] for number in numbers)] if done.returncode else []


@pytest.mark.parametrize("module", list(CASES))
@pytest.mark.parametrize("target", TARGETS)
def test_every_case_is_legal_ptx(toolchain: Toolchain, tmp_path: Path, module: str, target: str) -> None:
    chosen = [case for case in CASES[module] if case.target == target]
    if chosen:
        assert refusals(toolchain, ptx_of(chosen), tmp_path) == []


def test_no_case_is_left_out() -> None:
    assert {case.target for cases in CASES.values() for case in cases} <= set(TARGETS)


def test_an_illegal_case_is_refused(toolchain: Toolchain, tmp_path: Path) -> None:
    (case, *_) = next(iter(CASES.values()))
    text = ptx_of([case])
    assert refusals(toolchain, text, tmp_path) == []
    told = refusals(toolchain, text.replace(case.opcode, "add.s128"), tmp_path)
    assert told
    assert "add.s128" in told[-1]
