"""The order of loads and tensor instructions, in listings short enough to follow by hand."""

from __future__ import annotations

import pytest

from flashladder.machine_code.order import hmma_after_ldsm, mma_before_use
from flashladder.machine_code.sass import Instruction

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2}, {%r1, %r2}, {%r3, %r4}, {%f1, %f2}"
OTHER = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f3, %f4}, {%r5, %r6}, {%r7, %r8}, {%f3, %f4}"
LEFT = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r9]"
RIGHT = "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r3, %r4}, [%r9]"
UNREAD = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r10, %r11}, [%r9]"


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([LEFT, RIGHT, MMA], 0),
        ([LEFT, OTHER, RIGHT, MMA], 1),
        ([LEFT, RIGHT, OTHER, OTHER, MMA], 4),
        ([LEFT, RIGHT, MMA, OTHER, MMA], 0),  # the first reader counts
        ([LEFT, LEFT, OTHER, MMA], 1),  # the second load replaces the first, which nobody reads
        ([UNREAD, OTHER], 0),
    ],
)
def test_mma_between_a_load_and_its_first_reader(statements: list[str], expected: int) -> None:
    text = "".join(f"\t{statement};\n" for statement in statements)
    assert (
        mma_before_use(f".version 8.0\n.target sm_80\n.entry k() {{\n.reg .b32 %r<12>;\n{text}ret;\n}}\n") == expected
    )


@pytest.mark.parametrize(("order", "expected"), [("LH", 1), ("HL", 0), ("LLHH", 4), ("LHLH", 3), ("HHLL", 0), ("", 0)])
def test_hmma_after_each_ldsm(order: str, expected: int) -> None:
    opcodes = {"L": "LDSM.16.M88.4", "H": "HMMA.16816.F32"}
    code = [Instruction(16 * i, "", opcodes[letter], "R0, [R1]") for i, letter in enumerate(order)]
    code.append(Instruction(999, "", "MOV", "R0, R1"))
    assert hmma_after_ldsm(code) == expected
