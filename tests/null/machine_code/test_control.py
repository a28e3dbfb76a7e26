"""Control codes: the bits of known encodings, and listings whose reuse flags prove that the places are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.machine_code.cubin import read_cubin
from flashladder.machine_code.sass import Control, Instruction, control_of, decoded, parse

DATA = Path(__file__).parents[2] / "data"


def encoding(low: int, high: int) -> bytes:
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def code(stall: int, *, yields: bool = False, **given: Any) -> Control:
    return Control(**{"stall": stall, "yields": yields, "write": None, "read": None, "waits": (), "reuse": (), **given})


@pytest.mark.parametrize(
    ("high", "expected", "text"),
    [
        (0x000FE400078E00FF, code(2), "B------:R-:W-:-:S02"),
        (0x000E220000002100, code(1, write=0), "B------:R-:W0:-:S01"),
        (0x000FC80000000A00, code(4, yields=True), "B------:R-:W-:Y:S04"),
        (0x004FD600078E3CFF, code(11, yields=True, waits=(2,)), "B--2---:R-:W-:Y:S11"),
        (0x0011E80000004800, code(4, read=0, waits=(0,)), "B0-----:R0:W-:-:S04"),
        (0x000FE20000000000 | 0x21 << 52, code(1, waits=(0, 5)), "B0----5:R-:W-:-:S01"),
        (0x000FE20000000000 | 3 << 58, code(1, reuse=(0, 1)), "B------:R-:W-:-:S01"),
    ],
)  # fmt: skip
def test_the_bits_of_an_encoding(high: int, expected: Control, text: str) -> None:
    """High words as nvdisasm -hex prints them for tiny.sm_80.cubin with -lineinfo; the last two are made up."""
    found = control_of(encoding(0x7624, high))
    assert found == expected
    assert str(found) == text


def test_every_instruction_of_a_listing_has_its_code() -> None:
    cubin = read_cubin(DATA / "tiny.sm_80.cubin")
    sass = parse((DATA / "tiny.sm_80.sass").read_text(encoding="utf-8"))
    controls = decoded(cubin.text, sass.instructions, "sm_80")
    assert len(controls) == len(sass.instructions)
    loads = [control for one, control in zip(sass.instructions, controls, strict=True) if one.opcode_class == "LDG"]
    assert loads
    assert all(control.write is not None for control in loads)  # their latency is not fixed
    sums = [control for one, control in zip(sass.instructions, controls, strict=True) if one.opcode_class == "FFMA"]
    assert all(control.write is None and control.read is None for control in sums)


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
