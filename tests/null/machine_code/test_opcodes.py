"""Names that claims may use, a hint for a misspelt one, and the kind of each opcode."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.lock.schema import read_lock
from flashladder.machine_code.opcodes import kind_of, known_opcodes, unknown
from flashladder.paths import ROOT
import ptxemu.isa  # noqa: F401 - fills the table of instructions
from ptxemu.machine.control import ENDS
from ptxemu.table import ROWS


def test_the_list_holds_every_opcode_of_the_locks() -> None:
    found = {
        name.partition(".")[0]
        for arch in LOCK_ARCHES
        for lock in read_lock(arch).iterations.values()
        for kernel in lock.kernels.values()
        for name in kernel.counts
    } - {"total"}
    assert len(found) > 40
    assert found <= known_opcodes("sass")


def test_the_ptx_opcodes_are_those_that_the_emulator_runs() -> None:
    assert known_opcodes("ptx") == {form.partition(".")[0] for form in ROWS} | {*ENDS}


def test_a_build_reads_iterations_without_the_emulator() -> None:
    """Its environment has neither the bfloat16 that the emulator needs nor the time to import it."""
    code = "import sys; from flashladder.ladder.iteration import load_all; load_all(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "flashladder.ladder.iteration" in loaded
    assert not {"ptxemu", "ml_dtypes", "torch", "numpy"} & loaded


@pytest.mark.parametrize(
    ("name", "language", "meant"),
    [
        ("IADDD3", "sass", "IADD3"),
        ("lop3", "sass", "LOP3"),
        ("STGG.E.128", "sass", "STG.E.128"),
        ("register", "sass", "registers"),
        ("setpp.gt.s32", "ptx", "setp.gt.s32"),
        ("ldmatri", "ptx", "ldmatrix"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_closest(name: str, language: str, meant: str) -> None:
    wrong = unknown(name, language)
    assert wrong is not None
    assert wrong[1] == f"did you mean {meant!r}?"
    assert unknown(meant, language) is None


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("HMMA", "tensor"), ("HGMMA", "tensor"), ("FFMA", "fp32"), ("FMNMX", "fp32"), ("HFMA2", "other"),
        ("MUFU", "mufu"), ("F2FP", "convert"), ("IMAD", "integer"), ("IMAD.MOV.U32", "moves"), ("MOV", "moves"),
        ("CS2R", "moves"), ("ISETP", "integer"), ("SHFL", "shuffle"), ("ULDC", "uniform"), ("LDC", "uniform"),
        ("LDSM", "ldsm"), ("LDS", "shared"), ("STS", "shared"), ("LDGSTS", "copies"), ("DEPBAR", "copies"),
        ("STG", "global"), ("STL", "local"), ("BAR", "barriers"), ("EXIT", "control"), ("NOP", "other"),
        ("QQQ", "other"),
    ],
)  # fmt: skip
def test_kinds_say_what_an_instruction_is_for(opcode: str, kind: str) -> None:
    assert kind_of(opcode) == kind
