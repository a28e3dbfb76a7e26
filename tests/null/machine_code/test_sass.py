"""Cubins, their SASS listings and the classes of opcodes."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.lock.schema import read_lock
from flashladder.machine_code.cubin import PtxLines, read_cubin, read_ptx_lines
from flashladder.machine_code.opcodes import kind_of, known_opcodes, unknown
from flashladder.machine_code.sass import Control, Instruction, Sass, control_of, decoded, parse, run_nvdisasm
from flashladder.paths import ROOT
import ptxemu.isa  # noqa: F401 - fills the table of instructions
from ptxemu.machine.control import ENDS
from ptxemu.table import ROWS
from tests.typed import error_line


def code(*rows: str) -> Sass:
    """A kernel from rows such as ``.L_x_0:`` or ``@P0 EXIT``."""
    lines, address = ['.section .text.flash_fwd_kernel,"ax",@progbits'], 0
    for row in rows:
        if row.endswith(":"):
            lines.append(row)
        else:
            lines.append(f"        /*{address:04x}*/   {row} ;")
            address += 16
    return parse("\n".join(lines))


DATA = Path(__file__).parents[2] / "data"
LISTING = DATA / "tiny.sm_80.sass"


def test_other_functions_of_the_cubin_are_not_counted() -> None:
    helper = '\t.section .text.helper,"ax",@progbits\n        /*0000*/   FMUL R0, R1, R2 ;\n'
    text = LISTING.read_text(encoding="utf-8")
    assert parse(helper + text).counts() == parse(text + helper).counts() == parse(text).counts()


def test_refuses_another_kernel_by_naming_those_it_found() -> None:
    with pytest.raises(FlashladderError, match=r"expected \.text\.other, found flash_fwd_kernel"):
        parse(LISTING.read_text(encoding="utf-8"), "other")
    with pytest.raises(FlashladderError, match=r"expected \.text\.other, found \.text\.flash_fwd_kernel"):
        read_cubin(DATA / "tiny.sm_80.cubin", "other")
    with pytest.raises(FlashladderError, match=r"line 2: unknown line of nvdisasm"):
        parse('.section .text.flash_fwd_kernel,"ax"\n   /*0000*/   ??? ;')


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ("/*0230*/", "a gap in nvdisasm's listing: expected 0230"),
        ("/*0470*/", "listing is cut: expected .L_x_5"),
        ("\n.L_x_5:", "listing is cut"),
        ("\n.L_x_3:", "a branch to nowhere in nvdisasm's listing: found 0330 @!P0 BRA"),
    ],
)
def test_a_listing_that_lost_a_line_is_refused(lost: str, says: str) -> None:
    text = LISTING.read_text(encoding="utf-8")
    begin = text.index(lost)
    assert says in error_line(parse, text[:begin] + text[text.index("\n", begin + 1) + 1 :])


def test_says_that_nvdisasm_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernel.cubin").write_bytes(b"")
    tools = SimpleNamespace(nvdisasm=tmp_path / "nvdisasm")
    monkeypatch.setattr("flashladder.machine_code.sass.find_toolchain", lambda: tools)
    assert "could not run nvdisasm" in error_line(run_nvdisasm, tmp_path / "kernel.cubin")


def encoding(low: int, high: int) -> bytes:
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def control(stall: int, *, yields: bool = False, **given: Any) -> Control:
    return Control(**{"stall": stall, "yields": yields, "write": None, "read": None, "waits": (), "reuse": (), **given})


@pytest.mark.parametrize(
    ("high", "expected", "text"),
    [
        (0x000E220000002100, control(1, write=0), "B------:R-:W0:-:S01"),
        (0x000FC80000000A00, control(4, yields=True), "B------:R-:W-:Y:S04"),
        (0x004FD600078E3CFF, control(11, yields=True, waits=(2,)), "B--2---:R-:W-:Y:S11"),
        (0x0011E80000004800, control(4, read=0, waits=(0,)), "B0-----:R0:W-:-:S04"),
        (0x000FE20000000000 | 0x21 << 52, control(1, waits=(0, 5)), "B0----5:R-:W-:-:S01"),
        (0x000FE20000000000 | 3 << 58, control(1, reuse=(0, 1)), "B------:R-:W-:-:S01"),
    ],
)  # fmt: skip
def test_the_bits_of_an_encoding(high: int, expected: Control, text: str) -> None:
    """High words as nvdisasm -hex prints them for tiny.sm_80.cubin with -lineinfo; the last two are made up."""
    found = control_of(encoding(0x7624, high))
    assert found == expected
    assert str(found) == text


def test_code_of_other_instructions_is_refused() -> None:
    plain = encoding(0, 0x000FE400078E00FF)
    one = Instruction(0, "", "FFMA", "R0, R1.reuse, R2, R3")
    assert "address 0000: the control code does not fit its instruction" in error_line(decoded, plain, [one], "sm_80")
    with pytest.raises(FlashladderError, match="not an instruction: expected 16 bytes, found 0"):
        decoded(plain, [Instruction(16, "", "EXIT", "")], "sm_80")
    with pytest.raises(FlashladderError, match="control codes are not known: expected sm_70 to sm_90, found sm_100a"):
        decoded(plain, [], "sm_100a")


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
    [("lop3", "sass", "LOP3"), ("STGG.E.128", "sass", "STG.E.128"), ("register", "sass", "registers"),
     ("setpp.gt.s32", "ptx", "setp.gt.s32")],
)  # fmt: skip
def test_a_misspelt_name_is_answered_with_the_closest(name: str, language: str, meant: str) -> None:
    wrong = unknown(name, language)
    assert wrong is not None
    assert wrong[1] == f"did you mean {meant!r}?"
    assert unknown(meant, language) is None


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("HGMMA", "tensor"), ("FMNMX", "fp32"), ("HFMA2", "other"), ("IMAD", "integer"), ("IMAD.MOV.U32", "moves"),
        ("ISETP", "integer"), ("LDC", "uniform"), ("STG", "global"), ("BAR", "barriers"), ("QQQ", "other"),
    ],
)  # fmt: skip
def test_kinds_say_what_an_instruction_is_for(opcode: str, kind: str) -> None:
    assert kind_of(opcode) == kind


def test_only_the_code_counts(tmp_path: Path) -> None:
    raw, path = (DATA / "tiny.sm_80.cubin").read_bytes(), tmp_path / "kernel.cubin"
    code = read_cubin(DATA / "tiny.sm_80.cubin").text
    path.write_bytes(raw.replace(b"ptxas", b"PTXAS", 1))  # the compiler's name in a note section
    assert read_cubin(path).text_sha256 == sha256(code)
    path.write_bytes(raw.replace(code[:16], code[:4] + bytes([code[4] ^ 1]) + code[5:16], 1))
    assert read_cubin(path).text_sha256 != sha256(code)


def test_refuses_what_is_no_cubin(tmp_path: Path) -> None:
    assert "no such cubin" in error_line(read_cubin, tmp_path / "kernel.cubin")
    with pytest.raises(FlashladderError, match=r"the cubin does not say .* expected \.nv_debug_line_sass"):
        read_ptx_lines(DATA / "tiny.sm_80.cubin")
    host = bytearray((DATA / "tiny.sm_80.cubin").read_bytes())
    host[18:20] = (62).to_bytes(2, "little")  # e_machine: x86-64
    for name, content in {"text": b"// PTX", "cut": b"\x7fELF\x02\x01", "empty": b"", "host": bytes(host)}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FlashladderError, match=r"not a cubin.*expected 64-bit ELF for CUDA"):
            read_cubin(tmp_path / name)


PTX = (DATA / "tiny.ptx").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("made", ["sm_80", "sm_90", "cuda13_3.sm_80", "cuda13_3.sm_90"])
def test_the_text_that_the_cubin_keeps_is_the_file_line_for_line(made: str) -> None:
    """``ptxas -arch=sm_XX -lineinfo tiny.ptx`` of CUDA 13.0 and 13.3; sm_90 has the other form of relocations."""
    lines = read_ptx_lines(DATA / f"tiny.lines.{made}.cubin")
    assert {PTX[line - 1].split()[0].partition(".")[0] for _, line in lines.starts} >= {"mma", "bar", "st", "ld"}
    kept = [(number, line.strip()) for number, line in enumerate(lines.text) if line.strip()]
    assert len(kept) > 60
    assert all(PTX[number].strip() == line for number, line in kept)
    if made == "sm_80":
        opcodes = {"HMMA": ("mma.sync",), "LDG": ("ld.global",), "STS": ("st.shared",), "BAR": ("bar.sync",),
                   "STG": ("st.global",), "LOP3": ("xor", "and"), "EXIT": ("ret", "@%p")}  # fmt: skip
        made_from: dict[str, set[int | None]] = {}
        for one in parse(LISTING.read_text(encoding="utf-8")).instructions:
            if prefix := opcodes.get(one.opcode_class):
                number = lines.at(one.address)
                assert PTX[(number or 0) - 1].strip().startswith(prefix), one
                made_from.setdefault(one.opcode_class, set()).add(number)
        assert made_from.keys() == opcodes.keys()
        assert len(made_from["HMMA"]) == 2


def test_between_two_starts_the_earlier_one_holds_and_line_0_is_none() -> None:
    lines = PtxLines(((0, 5), (32, 0), (64, 9)), 96, ("",) * 9)
    assert [lines.at(address) for address in range(0, 112, 16)] == [5, 5, None, None, 9, 9, None]
