"""What registers hold that is the same in every thread: the few instructions that decide how often a loop runs.

Why: the trip count of the loop over KV blocks is a kernel parameter, moved, added to and compared by a handful of
integer instructions. These are evaluated; a register that anything else writes is not known any more, and a branch by
it is an error, never a guess. 32-bit arithmetic is modulo 2^32, as the machine's.

`flashladder.machine_code.flow.executions` runs kernels with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
import operator
import re

from flashladder.machine_code.sass import Instruction

Values = dict[str, int]
"""What is known: 32-bit registers (``R5``, ``UR4``) as unsigned numbers, predicates (``P0``, ``UP1``) as 0 or 1."""
Constants = Mapping[int, int]
"""32-bit words of constant bank 0 by their offset, as far as they are known."""
Step = Callable[[Values], None]

WORD = 1 << 32
_FIXED = {"RZ": 0, "URZ": 0, "SRZ": 0, "PT": 1, "UPT": 1}
_OPERAND = re.compile(r",\s*(?![^\[]*\])")
_NAME = re.compile(r"^(?P<sign>[-~!]?)(?P<name>U?R(?:\d+|Z)|U?P(?:\d|T)|SRZ)$")
_NUMBER = re.compile(r"^(?P<sign>-?)0x(?P<digits>[0-9a-f]+)$")
_CONSTANT = re.compile(r"^(?P<sign>[-~]?)c\[0x0\]\[0x(?P<offset>[0-9a-f]+)\]$")
_REGISTER = re.compile(r"^(?P<bank>U?R)(?P<number>\d+)")
_PREDICATE = re.compile(r"^U?P\d$")
_CARRY = re.compile(r"^!?U?P[\dT]$")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMPARE = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip
_COMBINE = {"AND": operator.and_, "OR": operator.or_, "XOR": operator.xor}
# First operands of these are read, not written.
_WRITE_NOTHING = _names(
    "BAR BRA BRX BRXU BREAK BSSY BSYNC CALL CCTL DEPBAR ERRBAR EXIT JMP KILL LDGDEPBAR LDGSTS MEMBAR NANOSLEEP NOP "
    "RED RET ST STG STL STS WARPSYNC YIELD"
)
_ONE_REGISTER = _names(
    "F2F F2FP F2I FADD FFMA FMNMX FMUL FSEL FSETP HADD2 HFMA2 HMUL2 I2F I2FP IABS IADD3 IMAD IMNMX ISETP LDC LEA LOP3 "
    "MOV MUFU P2R PLOP3 POPC PRMT R2P R2UR S2R S2UR SEL SGXT SHF SHFL UIADD3 UIMAD UISETP ULDC ULEA ULOP3 "
    "UMOV UPLOP3 UPRMT USEL USHF UP2UR VIADD VIMNMX VOTE VOTEU LD LDG LDL LDS"
)


@dataclass(frozen=True)
class Reader:
    """Operands of one kernel's instructions, with its constants."""

    constants: Constants

    def value(self, text: str) -> Callable[[Values], int | None]:
        """What an operand holds, given what is known; None is unknown."""
        text = text.strip().removesuffix(".reuse")
        if match := _NUMBER.match(text):
            number = int(match["digits"], 16)
            return partial(_always, (-number if match["sign"] else number) % WORD)
        if match := _CONSTANT.match(text):
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


def step_of(instruction: Instruction, constants: Constants) -> Step | None:
    """What an instruction does to what is known; None where it writes no register and no predicate."""
    texts = operands(instruction)
    written = _written(instruction, texts)
    rule = _rule(instruction, texts, Reader(constants)) if written is None or written else None
    guard = Reader(constants).value(instruction.predicate.removeprefix("@")) if instruction.predicate else None
    if rule is None and written == ():
        return None

    def step(values: Values) -> None:
        runs = 1 if guard is None else guard(values)
        if runs == 0:
            return
        found = rule(values) if rule is not None and runs else {}
        if written is None:
            values.clear()
        else:
            for name in written:
                values.pop(name, None)
        values.update(found)

    return step


def _written(instruction: Instruction, texts: Sequence[str]) -> tuple[str, ...] | None:
    """Registers and predicates that an instruction may write, perhaps more than it does; None: any."""
    kind = instruction.opcode_class
    if kind in _WRITE_NOTHING or not texts:
        return ()
    maybe = texts[1:3] if _REGISTER.match(texts[0]) else texts[:2]
    found = [text for text in maybe if _PREDICATE.match(text)]
    if kind == "R2P":
        return (*(f"P{i}" for i in range(7)),)
    first = texts[1] if len(texts) > 1 and texts[0] in {*found, "PT", "UPT"} else texts[0]
    if match := _REGISTER.match(first):
        if (width := _width(instruction)) is None:
            return None
        found += [f"{match['bank']}{int(match['number']) + i}" for i in range(width)]
    return tuple(found)


def _width(instruction: Instruction) -> int | None:
    """Registers of a result; None: not known."""
    modifiers = instruction.opcode.split(".")
    kind = instruction.opcode_class.partition(".")[0]
    if kind in {"HMMA", "LDSM"}:
        return 4
    if kind == "CS2R":
        return 1 if "32" in modifiers else 2
    if kind not in _ONE_REGISTER:
        return None
    wide = "WIDE" in modifiers or "64" in modifiers
    return 4 if "128" in modifiers else 2 if wide else 1


Found = Mapping[str, int]
Rule = Callable[[Values], Found]


def _rule(instruction: Instruction, texts: Sequence[str], reader: Reader) -> Rule | None:
    """How the results follow from the operands; None where this file does not know."""
    modifiers = set(instruction.opcode.split(".")[1:])
    kind = instruction.opcode.partition(".")[0].removeprefix("U")
    if kind == "LDC":
        return _constant_load(texts, reader, 2 if "64" in modifiers else 1)
    if kind == "CS2R":
        return _zeros(texts, _width(instruction) or 0)
    if modifiers & {"WIDE", "HI", "X", "EX", "64"}:
        return None
    if kind == "ISETP":
        return _comparison(instruction, texts, reader)
    if kind == "PLOP3":
        return _predicate_table(texts, reader)
    return _arithmetic(kind, texts, reader)


def _arithmetic(kind: str, texts: Sequence[str], reader: Reader) -> Rule | None:
    if kind not in _FORMULAS or not _REGISTER.match(texts[0]):
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


def _predicates(texts: Sequence[str], bits: Sequence[int]) -> Found:
    return {name: bit for name, bit in zip(texts[:2], bits, strict=True) if _PREDICATE.match(name)}


def _zeros(texts: Sequence[str], width: int) -> Rule | None:
    """CS2R of the register that is always zero; of another special register nothing is known."""
    target = _REGISTER.match(texts[0])
    if target is None or texts[1:] != ["SRZ"]:
        return None
    found = {f"R{int(target['number']) + i}": 0 for i in range(width)}
    return lambda _: found


def _constant_load(texts: Sequence[str], reader: Reader, n_words: int) -> Rule | None:
    target, place = _REGISTER.match(texts[0]), _CONSTANT.match(texts[1]) if len(texts) == 2 else None
    if target is None or place is None:
        return None
    words = {
        f"{target['bank']}{int(target['number']) + i}": reader.constants.get(int(place["offset"], 16) + 4 * i)
        for i in range(n_words)
    }
    known = {name: word for name, word in words.items() if word is not None}
    return lambda _: known
