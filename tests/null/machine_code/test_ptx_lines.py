"""PTX lines of machine code: of kept cubins, by hand, and what is refused where a cubin is damaged."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest

from flashladder.errors import FlashladderError
from flashladder.machine_code.cubin import PtxLines, read_ptx_lines
from flashladder.machine_code.sass import parse

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
