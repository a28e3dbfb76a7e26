"""What an instruction keeps about itself: computed once, and no part of what it is.

Run: pytest tests/null/emulator/test_kept.py
"""

from __future__ import annotations

from dataclasses import replace

from ptxemu.machine.control import uses_and_defines
from ptxemu.syntax.tree import Instruction, Register, kept


def test_a_fact_is_found_once_for_each_instruction() -> None:
    asked = []

    @kept
    def length(instruction: Instruction) -> int:
        asked.append(instruction.opcode)
        return len(instruction.opcode)

    one, other = Instruction("bar.sync"), Instruction("ret")
    assert [length(one), length(other), length(one)] == [8, 3, 8]
    assert asked == ["bar.sync", "ret"]


def test_what_is_kept_is_neither_compared_nor_carried_to_a_changed_instruction() -> None:
    move = Instruction("mov.b32", (Register("%r1"), Register("%r2")))
    assert uses_and_defines(move) == (("%r2",), ("%r1",))
    assert move == Instruction("mov.b32", move.operands)
    changed = replace(move, operands=(Register("%r3"), Register("%r4")))
    assert uses_and_defines(changed) == (("%r4",), ("%r3",))
