"""nvdisasm and ptxas as installed: the small kernel of tests/data still reads and compiles as it is kept there.

Run: pytest tests/nvcc/test_sass_nvcc.py  (2 s)
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.build.compile import tools_of
from flashladder.build.store import cubin_entry, fill_all, ptx_entry
from flashladder.errors import FlashladderError
from flashladder.ladder.iteration import load_iteration
from flashladder.machine_code.cubin import read_cubin, text_sha256
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.machine_code.sass import count, disassemble, disassemble_many, opcode_counts, parse
from flashladder.toolchain.wheels import find_toolchain
from tests.typed import command

pytestmark = pytest.mark.nvcc

DATA = Path(__file__).parent.parent / "data"


def test_nvdisasm_prints_what_the_reader_was_tested_with() -> None:
    kept = parse((DATA / "tiny.sm_80.sass").read_text(encoding="utf-8"))
    assert [str(i) for i in disassemble(DATA / "tiny.sm_80.cubin").instructions] == [str(i) for i in kept.instructions]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_counts_of_a_cubin(arch: str) -> None:
    cubin = DATA / f"tiny.{arch}.cubin"
    whole, loop = opcode_counts(cubin), count(main_loop(disassemble(cubin)))
    assert (whole["HMMA"], loop["HMMA"], whole["LDG"], loop["LDG"]) == (2, 2, 2, 1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_read_together_are_those_read_one_by_one(arch: str) -> None:
    cubin = DATA / f"tiny.{arch}.cubin"
    text, one = read_cubin(cubin).text, disassemble(cubin, lines=False)
    for many in disassemble_many([text, text, text], arch, find_toolchain().nvdisasm):
        assert [(i.address, i.predicate, i.opcode) for i in many.instructions] == [
            (i.address, i.predicate, i.opcode) for i in one.instructions
        ]
        assert [i.address for i in main_loop(many)] == [i.address for i in main_loop(one)]
        assert len(main_loop(many)) > 10
        operands = [(i.operands, j.operands) for i, j in zip(many.instructions, one.instructions, strict=True)]
        assert all(a == b or ("`(.L_" in a and "`(.L_" in b) for a, b in operands)


def test_code_that_nvdisasm_reads_otherwise_is_refused(tmp_path: Path) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\necho '        /*0000*/                   NOP ;'\n", encoding="utf-8")
    tool.chmod(0o755)
    assert len(disassemble_many([bytes(16)], "sm_80", tool)) == 1
    with pytest.raises(FlashladderError, match="nvdisasm read other code: expected 2 instructions, found 1"):
        disassemble_many([bytes(32)], "sm_80", tool)
    assert disassemble_many([], "sm_80", tool) == []


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_toolchain_makes_the_kept_machine_code(arch: str, tmp_path: Path) -> None:
    tools = tools_of()
    unit = ptx_entry((DATA / "tiny.cu").read_text(encoding="utf-8"), DATA, [], tools, tmp_path)
    entry = cubin_entry(unit, arch, tools, tmp_path)
    fill_all([entry])
    assert text_sha256(entry.cubin) == text_sha256(DATA / f"tiny.{arch}.cubin")
    assert ptx_sha256(read_ptx(entry.ptx)) == ptx_sha256(read_ptx(DATA / "tiny.ptx"))


@pytest.mark.parametrize(
    ("words", "arch", "key"),
    [
        (["8"], "sm_80", "a100"),
        (["8", "--arch", "sm_90"], "sm_90", "a100"),
        (["8", "--config", "h100"], "sm_80", "h200"),
    ],
)
def test_counts_say_of_which_kernel_they_are(
    words: list[str], arch: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("sass", *words, "--counts") == 0
    title, _, header, total, *_ = capsys.readouterr().out.splitlines()
    assert title == f"iteration 8, {arch}: {load_iteration(8).configs[key].brief()}, fp16"
    assert header.split() == ["opcode", "whole", "kernel", "main", "loop"]
    assert command("sass", *words) == 0
    assert capsys.readouterr().out.splitlines()[0] == title
    assert total.startswith("total")


def test_counts_of_a_file_say_of_which_kernel_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("sass", str(DATA / "tiny.sm_90.cubin"), "--counts") == 0
    title, _, header, *_ = capsys.readouterr().out.splitlines()
    assert title == "flash_fwd_kernel, sm_90"
    assert header.split()[-2:] == ["main", "loop"]


def test_what_is_no_cubin_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "kernel.cubin").write_bytes(b"nothing")
    with pytest.raises(FlashladderError, match="nvdisasm failed"):
        disassemble(tmp_path / "kernel.cubin")
