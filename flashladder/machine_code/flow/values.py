"""Operands of machine code as numbers: registers, predicates, constants and immediates, as far as they are known.

Nothing to run here; `flashladder.machine_code.flow.uniform` reads instructions with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
import re

from flashladder.machine_code.sass import Instruction

Values = dict[str, int]
"""What is known: 32-bit registers (``R5``, ``UR4``) as unsigned numbers, predicates (``P0``, ``UP1``) as 0 or 1."""
Constants = Mapping[int, int]
"""32-bit words of constant bank 0 by their offset, as far as they are known."""
Reading = Callable[[Values], "int | None"]

WORD = 1 << 32
_FIXED = {"RZ": 0, "URZ": 0, "SRZ": 0, "PT": 1, "UPT": 1}
_OPERAND = re.compile(r",\s*(?![^\[]*\])")
_NAME = re.compile(r"^(?P<sign>[-~!]?)(?P<name>U?R(?:\d+|Z)|U?P(?:\d|T)|SRZ)$")
_NUMBER = re.compile(r"^(?P<sign>-?)0x(?P<digits>[0-9a-f]+)$")
CONSTANT = re.compile(r"^(?P<sign>[-~]?)c\[0x0\]\[0x(?P<offset>[0-9a-f]+)\]$")
VARIABLE = re.compile(r"\bU?(?:R\d+|P\d)\b")
REGISTER = re.compile(r"^(?P<bank>U?R)(?P<number>\d+)")
PREDICATE = re.compile(r"^U?P\d$")


@dataclass(frozen=True)
class Reader:
    """Operands of one kernel's instructions, with its constants."""

    constants: Constants

    def value(self, text: str) -> Reading:
        """What an operand holds, given what is known; None is unknown."""
        text = text.strip().removesuffix(".reuse")
        if match := _NUMBER.match(text):
            number = int(match["digits"], 16)
            return partial(_always, (-number if match["sign"] else number) % WORD)
        if match := CONSTANT.match(text):
            return partial(_always, _signed_off(match["sign"], self.constants.get(int(match["offset"], 16))))
        if match := _NAME.match(text):
            name, sign = match["name"], match["sign"]
            if name in _FIXED:
                return partial(_always, _signed_off(sign, _FIXED[name]))
            return lambda values: _signed_off(sign, values.get(name))
        return partial(_always, None)


def _always(value: int | None, _: Values) -> int | None:
    return value


def _signed_off(sign: str, value: int | None) -> int | None:
    if value is None or not sign:
        return value
    return {"-": -value % WORD, "~": ~value % WORD, "!": 1 - value}[sign] if sign != "!" or value < 2 else None


def operands(instruction: Instruction) -> list[str]:
    """The operands of an instruction, in order."""
    return [one.strip() for one in _OPERAND.split(instruction.operands)] if instruction.operands else []
