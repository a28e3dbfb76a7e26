"""How results follow from operands, for the few integer instructions that decide branches.

32-bit arithmetic is modulo 2^32, as the machine's. Nothing to run here; `flashladder.machine_code.flow.uniform` asks
for the rule of each instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import operator
import re

from flashladder.machine_code.flow.values import CONSTANT, PREDICATE, REGISTER, WORD, Reader, Values
from flashladder.machine_code.sass import Instruction

Found = Mapping[str, int]
Rule = Callable[[Values], Found]

_COMPARE = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip
_COMBINE = {"AND": operator.and_, "OR": operator.or_, "XOR": operator.xor}
_CARRY = re.compile(r"^!?U?P[\dT]$")


def is_vote(instruction: Instruction, texts: Sequence[str]) -> bool:
    """Whether it gives a predicate that all lanes agree on: ``VOTE.ANY P4, P4``; not a mask of lanes."""
    kind, *modifiers = instruction.opcode.split(".")
    asks = kind in ("VOTE", "VOTEU") and not {"ANY", "ALL"}.isdisjoint(modifiers)
    return asks and len(texts) == 2 and PREDICATE.match(texts[0]) is not None


def rule_of(
    instruction: Instruction, texts: Sequence[str], reader: Reader, width: int | None, *, asked: bool
) -> Rule | None:
    """How the results follow from the operands; None where this file does not know. `asked`: see `_vote`."""
    modifiers = set(instruction.opcode.split(".")[1:])
    kind = instruction.opcode.partition(".")[0].removeprefix("U")
    if kind == "LDC":
        return _constant_load(texts, reader, 2 if "64" in modifiers else 1)
    if kind == "CS2R":
        return _zeros(texts, width or 0)
    if modifiers & {"WIDE", "HI", "X", "EX", "64"}:
        return None
    if is_vote(instruction, texts):
        return _vote(modifiers, texts, reader, asked=asked)
    if kind == "ISETP":
        return _comparison(instruction, texts, reader)
    return _predicate_table(texts, reader) if kind == "PLOP3" else _arithmetic(kind, texts, reader)


def _arithmetic(kind: str, texts: Sequence[str], reader: Reader) -> Rule | None:
    if kind not in _FORMULAS or not REGISTER.match(texts[0]):
        return None
    formula, n_inputs = _FORMULAS[kind]
    read = [text for text in texts[1:] if not (kind == "IADD3" and _CARRY.match(text))]
    inputs = [reader.value(text) for text in read[:n_inputs]]
    if len(inputs) != n_inputs:
        return None

    def rule(values: Values) -> Found:
        known = [one(values) for one in inputs]
        numbers = [number for number in known if number is not None]
        return {texts[0]: formula(numbers) % WORD} if len(numbers) == n_inputs else {}

    return rule


def _multiply_add(numbers: list[int]) -> int:
    return numbers[0] * numbers[1] + numbers[2]


def _select(numbers: list[int]) -> int:
    return numbers[0] if numbers[2] else numbers[1]


def _logic(numbers: list[int]) -> int:
    """LOP3: each bit of the result is looked up by the bits of three inputs in a table of eight."""
    a, b, c, lut = numbers
    found = 0
    for row in range(8):
        if lut >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return found


_FORMULAS: Mapping[str, tuple[Callable[[list[int]], int], int]] = {
    "MOV": (sum, 1),
    "R2UR": (sum, 1),
    "IADD3": (sum, 3),
    "VIADD": (sum, 2),
    "IMAD": (_multiply_add, 3),  # IMAD.MOV and IMAD.SHL print the factor that makes them so
    "SEL": (_select, 3),
    "LOP3": (_logic, 4),
}
"""How a register follows from so many inputs; the uniform ones alike."""


def _comparison(instruction: Instruction, texts: Sequence[str], reader: Reader) -> Rule | None:
    """ISETP: two integers compared, the answer combined with a predicate; the second result has the opposite answer."""
    modifiers = instruction.opcode.split(".")[1:]
    compare = next((_COMPARE[one] for one in modifiers if one in _COMPARE), None)
    combine = next((_COMBINE[one] for one in modifiers if one in _COMBINE), None)
    if compare is None or combine is None or len(texts) != 5:
        return None
    left, right, other = (reader.value(text) for text in texts[2:])
    signed = "U32" not in modifiers

    def rule(values: Values) -> Found:
        a, b, c = left(values), right(values), other(values)
        if a is None or b is None or c is None:
            return {}
        if signed:
            a, b = (x - WORD if x >= WORD // 2 else x for x in (a, b))
        holds = int(compare(a, b))
        return _predicates(texts, (combine(holds, c), combine(1 - holds, c)))

    return rule


def _predicate_table(texts: Sequence[str], reader: Reader) -> Rule | None:
    """PLOP3: two functions of three predicates, each by a table of eight."""
    if len(texts) != 7:
        return None
    inputs, tables = [reader.value(text) for text in texts[2:5]], [reader.value(text)({}) for text in texts[5:]]

    def rule(values: Values) -> Found:
        known = [one(values) for one in inputs]
        row = sum(bit << (2 - i) for i, bit in enumerate(known) if bit is not None)
        if None in known or None in tables:
            return {}
        return _predicates(texts, tuple((lut or 0) >> row & 1 for lut in tables))

    return rule


def _vote(modifiers: set[str], texts: Sequence[str], reader: Reader, *, asked: bool) -> Rule:
    """VOTE: what the lanes say together. Where they vote on data, whether some lane asks for the exception.

    A kernel votes to leave work out that no lane needs: ANY finds a lane that does, ALL a lane that objects.
    """
    lane, otherwise = reader.value(texts[1]), int(asked == ("ANY" in modifiers))

    def rule(values: Values) -> Found:
        known = lane(values)
        return {texts[0]: otherwise if known is None else known}

    return rule


def _predicates(texts: Sequence[str], bits: Sequence[int]) -> Found:
    return {name: bit for name, bit in zip(texts[:2], bits, strict=True) if PREDICATE.match(name)}


def _zeros(texts: Sequence[str], width: int) -> Rule | None:
    """CS2R of the register that is always zero; of another special register nothing is known."""
    target = REGISTER.match(texts[0])
    if target is None or texts[1:] != ["SRZ"]:
        return None
    found = {f"R{int(target['number']) + i}": 0 for i in range(width)}
    return lambda _: found


def _constant_load(texts: Sequence[str], reader: Reader, n_words: int) -> Rule | None:
    target, place = REGISTER.match(texts[0]), CONSTANT.match(texts[1]) if len(texts) == 2 else None
    if target is None or place is None:
        return None
    words = {
        f"{target['bank']}{int(target['number']) + i}": reader.constants.get(int(place["offset"], 16) + 4 * i)
        for i in range(n_words)
    }
    known = {name: word for name, word in words.items() if word is not None}
    return lambda _: known
