"""The reader of cubins and of their PTX lines, on small ones (made from tests/data/tiny.cu), whole and damaged."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest

from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.machine_code.cubin import PtxLines, read_cubin, read_ptx_lines, text_sha256
from flashladder.machine_code.sass import parse

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(("arch", "registers", "size"), [("sm_80", 21, 0x480), ("sm_90", 24, 0x500)])
def test_reads_architecture_registers_and_code(arch: str, registers: int, size: int) -> None:
    cubin = read_cubin(DATA / f"tiny.{arch}.cubin")
    assert (cubin.kernel, cubin.arch, cubin.registers, cubin.frame_bytes) == ("flash_fwd_kernel", arch, registers, 0)
    assert len(cubin.text) == size
    assert cubin.text_sha256 == sha256(cubin.text) == text_sha256(DATA / f"tiny.{arch}.cubin")


def test_only_the_code_counts(tmp_path: Path) -> None:
    raw = bytearray((DATA / "tiny.sm_80.cubin").read_bytes())
    code = read_cubin(DATA / "tiny.sm_80.cubin").text
    start = raw.index(code)
    same, other = tmp_path / "same.cubin", tmp_path / "other.cubin"
    note = raw.index(b"ptxas")  # the compiler's name in a note section
    same.write_bytes(raw[:note] + b"PTXAS" + raw[note + 5 :])
    other.write_bytes(raw[: start + 4] + bytes([raw[start + 4] ^ 1]) + raw[start + 5 :])
    assert text_sha256(same) == sha256(code)
    assert text_sha256(other) != sha256(code)


def test_refuses_another_kernel_by_naming_those_it_found() -> None:
    with pytest.raises(FlashladderError, match=r"expected \.text\.other, found \.text\.flash_fwd_kernel"):
        read_cubin(DATA / "tiny.sm_80.cubin", "other")


def test_refuses_what_is_no_cubin(tmp_path: Path) -> None:
    with pytest.raises(FlashladderError, match="no such cubin"):
        read_cubin(tmp_path / "kernel.cubin")
    for name, content in {"text": b"// PTX", "cut": b"\x7fELF\x02\x01", "empty": b""}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(FlashladderError, match="not a cubin"):
            read_cubin(path)


def test_refuses_an_elf_file_for_the_host(tmp_path: Path) -> None:
    raw = bytearray((DATA / "tiny.sm_80.cubin").read_bytes())
    raw[18:20] = (62).to_bytes(2, "little")  # e_machine: x86-64
    (tmp_path / "program").write_bytes(raw)
    with pytest.raises(FlashladderError, match="expected 64-bit ELF for CUDA"):
        read_cubin(tmp_path / "program")


DATA = Path(__file__).parents[2] / "data"
PTX = (DATA / "tiny.ptx").read_text(encoding="utf-8").splitlines()
WHOLE = (DATA / "tiny.lines.sm_80.cubin").read_bytes()


def line_of(lines: PtxLines, address: int) -> str:
    number = lines.at(address)
    assert number is not None
    return PTX[number - 1].strip()


def test_each_instruction_names_the_line_of_ptx_that_it_was_made_from() -> None:
    lines = read_ptx_lines(DATA / "tiny.lines.sm_80.cubin")
    sass = parse((DATA / "tiny.sm_80.sass").read_text(encoding="utf-8"))
    opcodes = {"HMMA": "mma.sync", "LDG": "ld.global", "STS": "st.shared", "BAR": "bar.sync", "STG": "st.global",
               "LOP3": "xor and", "EXIT": "ret @%p"}  # fmt: skip
    seen = set()
    for one in sass.instructions:
        if one.opcode_class in opcodes:
            assert line_of(lines, one.address).startswith(tuple(opcodes[one.opcode_class].split())), one
            seen.add(one.opcode_class)
    assert seen == set(opcodes)
    mma = [lines.at(one.address) for one in sass.instructions if one.opcode_class == "HMMA"]
    assert len(set(mma)) == 2


@pytest.mark.parametrize("made", ["sm_80", "sm_90", "cuda13_3.sm_80", "cuda13_3.sm_90"])
def test_the_text_that_the_cubin_keeps_is_the_file_line_for_line(made: str) -> None:
    """``ptxas -arch=sm_XX -lineinfo tiny.ptx`` of CUDA 13.0 and 13.3; sm_90 has the other form of relocations."""
    lines = read_ptx_lines(DATA / f"tiny.lines.{made}.cubin")
    assert {PTX[line - 1].split()[0].partition(".")[0] for _, line in lines.starts} >= {"mma", "bar", "st", "ld"}
    kept = [(number, line.strip()) for number, line in enumerate(lines.text) if line.strip()]
    assert len(kept) > 60
    assert all(PTX[number].strip() == line for number, line in kept)
    assert lines.at(0) is not None
    assert lines.at(lines.end) is None
    assert lines.at(-16) is None


def test_between_two_starts_the_earlier_one_holds_and_line_0_is_none() -> None:
    lines = PtxLines(((0, 5), (32, 0), (64, 9)), 96, ("",) * 9)
    assert [lines.at(address) for address in range(0, 112, 16)] == [5, 5, None, None, 9, 9, None]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tiny.sm_80.cubin", "the cubin does not say which PTX its code came from: expected .nv_debug_line_sass"),
        ("tiny.ptx", "not a cubin"),
        ("nosuch.cubin", "no such cubin"),
    ],
)
def test_what_has_no_lines_is_one_line(path: str, message: str) -> None:
    with pytest.raises(FlashladderError, match=message) as caught:
        read_ptx_lines(DATA / path)
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255))
@example(at=0, value=0)
@example(at=WHOLE.index(b".nv_debug_line_sass"), value=0)
def test_a_damaged_cubin_is_one_line_or_lines_within_the_text(
    at: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.cubin"
    path.write_bytes(WHOLE[:at] + bytes([value]) + WHOLE[at + 1 :])
    try:
        lines = read_ptx_lines(path)
    except FlashladderError as error:
        assert "\n" not in str(error)  # noqa: PT017  # either is right
    else:
        assert all(0 <= line <= len(lines.text) for _, line in lines.starts)
