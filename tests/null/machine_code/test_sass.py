"""The reader of machine code: counts, source lines, loops, control codes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.sass import (
    Control,
    Instruction,
    Sass,
    control_of,
    count,
    decoded,
    parse,
    run_nvdisasm,
)
from tests.null.sass_fixture import code

LISTING = Path(__file__).parents[2] / "data" / "tiny.sm_80.sass"


@pytest.fixture(scope="module")
def tiny() -> Sass:
    return parse(LISTING.read_text(encoding="utf-8"))


def test_main_loop_is_the_loop_with_hmma(tiny: Sass) -> None:
    loop = main_loop(tiny)
    assert (loop[0].address, loop[-1].address) == (0x210, 0x330)
    counts = count(loop)
    expected = {"total": 19, "HMMA": 2, "MOV": 3, "IMAD.MOV.U32": 2, "IADD3": 3, "LDG": 1, "LDS": 1, "UIADD3": 2}
    assert {name: counts[name] for name in expected} == expected


TILES = (  # a loop over tiles, of which the one over blocks has more products
    ".L_x_0:",
    "HGMMA.64x128x16.F32 R0, gdesc[UR8], !UPT, gsb0",
    ".L_x_1:",
    "HGMMA.64x128x16.F32 R0, gdesc[UR8], R0",
    "HGMMA.64x128x16.F32 R0, gdesc[UR8], R0, gsb0",
    "@P0 BRA `(.L_x_1)",
    "STSM.16.M88.4 [R0], R4",
    "@P1 BRA `(.L_x_0)",
    "EXIT",
)


def test_a_block_out_of_line_belongs_to_the_inner_loop() -> None:
    """A wait that was not over at the first try: it jumps back into the loop over blocks."""
    retry = [".L_x_2:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P2, [UR4], R7", "@P2 BRA `(.L_x_3)", "BRA `(.L_x_2)"]
    rows = [*TILES[:4], "@!P2 BRA `(.L_x_2)", ".L_x_3:", *TILES[4:], *retry]
    assert [one.opcode_class for one in main_loop(code(*rows))] == [
        "HGMMA",
        "BRA",
        "HGMMA",
        "BRA",
        "SYNCS",
        "BRA",
        "BRA",
    ]


def test_instructions_carry_their_source_line(tiny: Sass) -> None:
    first = tiny.instructions[0]
    assert (first.file, first.line) == ("tests/data/tiny.cu", 5)
    mma = next(i for i in tiny.instructions if i.opcode_class == "HMMA")
    assert mma.line == 23


def test_other_functions_of_the_cubin_are_not_counted(tiny: Sass) -> None:
    helper = '\t.section .text.helper,"ax",@progbits\n        /*0000*/   FMUL R0, R1, R2 ;\n'
    text = LISTING.read_text(encoding="utf-8")
    assert parse(helper + text).counts() == parse(text + helper).counts() == tiny.counts()


def test_refuses_another_kernel_by_naming_those_it_found() -> None:
    with pytest.raises(FlashladderError, match=r"expected \.text\.other, found flash_fwd_kernel"):
        parse(LISTING.read_text(encoding="utf-8"), "other")


def test_refuses_a_line_that_it_does_not_understand() -> None:
    with pytest.raises(FlashladderError, match=r"line 2: unknown line of nvdisasm"):
        parse('.section .text.flash_fwd_kernel,"ax"\n   /*0000*/   ??? ;')


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ("/*0230*/", r"a gap in nvdisasm's listing: expected 0230, found /\*0240\*/"),
        ("/*0470*/", r"\.text\.flash_fwd_kernel: nvdisasm's listing is cut: expected \.L_x_5 at its end"),
        ("\n.L_x_5:", r"nvdisasm's listing is cut"),
        ("\n.L_x_3:", r"a branch to nowhere in nvdisasm's listing: found 0330 @!P0 BRA `\(\.L_x_3\)"),
    ],
)
def test_a_listing_that_lost_a_line_is_refused(lost: str, says: str) -> None:
    text = LISTING.read_text(encoding="utf-8")
    begin = text.index(lost)
    with pytest.raises(FlashladderError, match=says):
        parse(text[:begin] + text[text.index("\n", begin + 1) + 1 :])


def test_says_that_nvdisasm_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "kernel.cubin").write_bytes(b"")
    with pytest.raises(FlashladderError, match="could not run nvdisasm"):
        run_nvdisasm(tmp_path / "kernel.cubin", tmp_path / "nvdisasm")


DATA = Path(__file__).parents[2] / "data"


def encoding(low: int, high: int) -> bytes:
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def control(stall: int, *, yields: bool = False, **given: Any) -> Control:
    return Control(**{"stall": stall, "yields": yields, "write": None, "read": None, "waits": (), "reuse": (), **given})


@pytest.mark.parametrize(
    ("high", "expected", "text"),
    [
        (0x000FE400078E00FF, control(2), "B------:R-:W-:-:S02"),
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
    with pytest.raises(
        FlashladderError, match=r"address 0000: the control code does not fit its instruction: expected 1"
    ):
        decoded(plain, [one], "sm_80")
    with pytest.raises(FlashladderError, match="not an instruction: expected 16 bytes, found 0"):
        decoded(plain, [Instruction(16, "", "EXIT", "")], "sm_80")
    with pytest.raises(FlashladderError, match="control codes are not known: expected sm_70 to sm_90, found sm_100a"):
        decoded(plain, [], "sm_100a")
