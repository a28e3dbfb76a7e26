"""The reader of machine code: classes, counts, source lines, loops, tables, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.sass import Sass, count, opcode_class, parse, run_nvdisasm
from tests.null.sass_fixture import code

LISTING = Path(__file__).parents[2] / "data" / "tiny.sm_80.sass"


@pytest.fixture(scope="module")
def tiny() -> Sass:
    return parse(LISTING.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("IADD3", "IADD3"),
        ("LDSM.16.M88.4", "LDSM"),
        ("IMAD.MOV.U32", "IMAD.MOV.U32"),
        ("IMAD.MOV", "IMAD"),
        ("IMAD.WIDE.U32", "IMAD"),
        ("MOV", "MOV"),
    ],
)
def test_class_is_the_opcode_up_to_its_first_dot_except_register_moves(opcode: str, expected: str) -> None:
    assert opcode_class(opcode) == expected


def test_main_loop_is_the_loop_with_hmma(tiny: Sass) -> None:
    loop = main_loop(tiny)
    assert (loop[0].address, loop[-1].address) == (0x210, 0x330)
    counts = count(loop)
    expected = {"total": 19, "HMMA": 2, "MOV": 3, "IMAD.MOV.U32": 2, "IADD3": 3, "LDG": 1, "LDS": 1, "UIADD3": 2}
    assert {name: counts[name] for name in expected} == expected


def test_out_of_line_code_that_jumps_back_belongs_to_the_loop_but_what_lies_between_does_not() -> None:
    sass = code(
        "MOV R0, RZ",
        ".L_x_0:",
        "HMMA.16816.F32 R0, R1, R2, R3",
        "BRA.DIV ~URZ, `(.L_x_2)",
        ".L_x_1:",
        "@P0 BRA `(.L_x_0)",
        "STG.E [R4.64], R0",
        "EXIT",
        ".L_x_2:",
        "SHFL.BFLY PT, R0, R1, 0x1, 0x1f",
        "BRA `(.L_x_1)",
    )
    assert [i.opcode_class for i in main_loop(sass)] == ["HMMA", "BRA", "BRA", "SHFL", "BRA"]


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


def test_of_a_loop_over_tiles_the_one_over_blocks_is_the_main_loop() -> None:
    sass = code(*TILES)
    assert [one.address for one in main_loop(sass)] == [0x10, 0x20, 0x30]


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
