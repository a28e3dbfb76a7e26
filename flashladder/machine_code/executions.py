"""How often each block of a kernel runs: a walk through its machine code as one warp takes it.

The trip count of the loop over KV blocks is a kernel parameter, moved, added to and compared by a handful of integer
instructions. `run` evaluates these for given parameters. A register that any other instruction writes becomes unknown,
and a branch that depends on it is an error, never a guess. Arithmetic is modulo 2^32.

Run: ``invoke cfg 8``, ``invoke explain 19 --gpu a100``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
import operator
import re

from flashladder.errors import FlashladderError
from flashladder.machine_code.flow import Flow, Loop
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


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


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
class Step:
    """What an instruction does to what is known.

    Attributes:
        written: registers and predicates that it may write; None: any.
        read: those that it looks at.
        guard: its predicate; None where it has none.
        rule: how results follow; None where that is not known.
    """

    written: tuple[str, ...] | None
    read: frozenset[str]
    guard: Reading | None
    rule: Rule | None

    def __call__(self, values: Values) -> None:
        """Changes `values` as the instruction does: results that are not known are forgotten."""
        runs = 1 if self.guard is None else self.guard(values)
        if runs == 0:
            return
        found = self.rule(values) if self.rule is not None and runs else {}
        if self.written is None:
            values.clear()
        else:
            for name in self.written:
                values.pop(name, None)
        values.update(found)


def step_of(instruction: Instruction, constants: Constants, *, asked: bool = False) -> Step | None:
    """What an instruction does to what is known; None where it writes no register and no predicate.

    Args:
        instruction: any.
        constants: the kernel's parameters.
        asked: whether some lane asks for the exception in a vote on data.
    """
    texts = operands(instruction)
    written = written_by(instruction, texts)
    if written == ():
        return None
    reader = Reader(constants)
    guard = reader.value(instruction.predicate.removeprefix("@")) if instruction.predicate else None
    read = frozenset(VARIABLE.findall(instruction.predicate + " " + instruction.operands))
    return Step(written, read, guard, rule_of(instruction, texts, reader, _width(instruction), asked=asked))


def deciding(steps: Sequence[Step], predicates: Iterable[str]) -> frozenset[str]:
    """Registers and predicates on whose contents `predicates` may depend, through whichever of the steps."""
    found = {name for text in predicates for name in VARIABLE.findall(text)}
    while True:
        more = {
            name
            for step in steps
            if step.rule is not None and not found.isdisjoint(step.written or ())
            for name in step.read
        }
        if more <= found:
            return frozenset(found)
        found |= more


def written_by(instruction: Instruction, texts: Sequence[str]) -> tuple[str, ...] | None:
    """Registers and predicates that an instruction may write, perhaps more than it does; None: any."""
    kind = instruction.opcode_class
    if kind in _WRITE_NOTHING or not texts:
        return ()
    maybe = texts[1:3] if REGISTER.match(texts[0]) else texts[:2]
    found = [text for text in maybe if PREDICATE.match(text)]
    if kind == "R2P":
        return (*(f"P{i}" for i in range(7)),)
    first = texts[1] if len(texts) > 1 and texts[0] in {*found, "PT", "UPT"} else texts[0]
    if match := REGISTER.match(first):
        if (width := _width(instruction)) is None:
            return None
        found += [f"{match['bank']}{int(match['number']) + i}" for i in range(width)]
    return tuple(found)


def _width(instruction: Instruction) -> int | None:
    """Registers of a result; None: not known."""
    modifiers = instruction.opcode.split(".")
    kind = instruction.opcode_class.partition(".")[0]
    if kind == "HMMA":
        return 4 if "F32" in modifiers else 2
    if kind == "LDSM":
        return int(modifiers[-1]) if modifiers[-1] in ("2", "4") else 1
    if kind == "CS2R":
        return 1 if "32" in modifiers else 2
    if kind not in _ONE_REGISTER:
        return None
    wide = "WIDE" in modifiers or "64" in modifiers
    return 4 if "128" in modifiers else 2 if wide else 1


LIMIT = 1_000_000  # blocks; a kernel of the ladder runs a few hundred


@dataclass(frozen=True)
class Executions:
    """What one warp of a kernel runs.

    Attributes:
        flow: the kernel.
        blocks: how often each block runs.
        edges: how often control goes from one block to another.
        off: how often each instruction is passed with a predicate that is false, by its place in `Sass.instructions`.
        unknown: places of instructions whose predicate is not known; they are taken to run.
        votes: places of votes that were passed: what they say was taken for granted.
    """

    flow: Flow
    blocks: tuple[int, ...]
    edges: Mapping[tuple[int, int], int]
    off: Mapping[int, int]
    unknown: frozenset[int]
    votes: frozenset[int] = frozenset()

    def of(self, block: int) -> Iterator[tuple[Instruction, int]]:
        """Each instruction of a block with how often it takes effect."""
        begin = self.flow.blocks[block].begin
        for place, instruction in enumerate(self.flow.code(block), begin):
            yield instruction, self.blocks[block] - self.off.get(place, 0)

    def counts(self, blocks: Collection[int] | None = None) -> Counter[str]:
        """Executed instructions by their full opcode, without those that their predicate switches off."""
        found: Counter[str] = Counter()
        for block in self.flow.indices if blocks is None else blocks:
            for instruction, times in self.of(block):
                found[instruction.opcode] += times
        return found

    def trips(self, loop: Loop) -> Fraction:
        """Rounds of a loop for each time that it is entered; 0 where it never is."""
        rounds = self.blocks[loop.header]
        entries = rounds - sum(self.edges.get((latch, loop.header), 0) for latch in loop.latches)
        return Fraction(rounds, entries) if entries else Fraction(0)


def run(flow: Flow, constants: Constants, limit: int = LIMIT, *, asked: bool = False) -> Executions:
    """Walks through a kernel as one warp does.

    Args:
        flow: the kernel.
        constants: the kernel's parameters, as 32-bit words of constant bank 0 by their offset there.
        limit: blocks after which it is taken never to end.
        asked: whether some lane asks for the exception in every vote on data; else none ever does.

    Raises:
        FlashladderError: a branch depends on what `constants` do not decide, or the kernel does not end.
    """
    walk = _Walk(flow, constants, asked=asked)
    for _ in walk.blocks(limit):
        pass
    blocks = tuple(walk.visits[index] for index in flow.indices)
    return Executions(flow, blocks, walk.passed, walk.off, frozenset(walk.unknown), frozenset(walk.votes(blocks)))


def path(flow: Flow, constants: Constants, limit: int = LIMIT, *, asked: bool = False) -> Iterator[int]:
    """The blocks of a kernel in the order in which a warp runs them; arguments and errors as of `run`."""
    yield from _Walk(flow, constants, asked=asked).blocks(limit)


class _Walk:
    """A warp on its way: what is known to it, and where it has been."""

    def __init__(self, flow: Flow, constants: Constants, *, asked: bool) -> None:
        self.flow, self.constants = flow, constants
        self.values: Values = {}
        self.visits: Counter[int] = Counter()
        self.passed: Counter[tuple[int, int]] = Counter()
        self.off: Counter[int] = Counter()
        self.unknown: set[int] = set()
        self.steps = {
            place: step
            for place, one in enumerate(flow.sass.instructions)
            if (step := step_of(one, constants, asked=asked))
        }
        predicates = (
            f"{one.predicate} {one.operands if one.opcode_class == 'BRA' else ''}" for one in flow.sass.instructions
        )
        self.needed = deciding(list(self.steps.values()), predicates)
        self._read: dict[int, list[tuple[int, Reading | None, Step | None]]] = {}

    def blocks(self, limit: int) -> Iterator[int]:
        """Runs the kernel; its blocks in order."""
        block: int | None = 0
        for _ in range(limit):
            if block is None:
                return
            yield block
            block = self.through(block)
        raise FlashladderError("the kernel does not end", expected=f"an end within {limit:,} blocks")

    def votes(self, visits: Sequence[int]) -> Iterator[int]:
        """Places of votes, in blocks that run."""
        for block in self.flow.indices:
            for place, one in enumerate(self.flow.code(block), self.flow.blocks[block].begin):
                if visits[block] and is_vote(one, operands(one)):
                    yield place

    def through(self, block: int) -> int | None:
        """Runs a block; the next one, None at the end."""
        self.visits[block] += 1
        if block not in self._read:
            self._read[block] = list(self._steps(block))
        for place, guard, step in self._read[block]:
            if guard is not None and (runs := guard(self.values)) != 1:
                self.off[place] += runs == 0
                if runs is None:
                    self.unknown.add(place)
            if step is not None:
                step(self.values)
        target = self._next(block)
        if target is not None:
            self.passed[block, target] += 1
        return target

    def _steps(self, block: int) -> Iterator[tuple[int, Reading | None, Step | None]]:
        """What a block's instructions do to what decides a predicate, those that do nothing left out."""
        reader = Reader(self.constants)
        for place, instruction in enumerate(self.flow.code(block), self.flow.blocks[block].begin):
            guard = reader.value(instruction.predicate.removeprefix("@")) if instruction.predicate else None
            step = self.steps.get(place)
            if step is not None and step.written is not None and self.needed.isdisjoint(step.written):
                step = None
            if guard is not None or step is not None:
                yield place, guard, step

    def _next(self, block: int) -> int | None:
        """Where control goes behind a block; None where it ends."""
        leaving = {edge.kind: edge.target for edge in self.flow.edges_of(block)}
        last = self.flow.code(block)[-1]
        behind = leaving.get("falls")
        away = leaving.get("jumps", leaving.get("branches"))
        if not self.flow.sass.moves_control(last) or "diverges" in leaving:
            return behind
        if "calls" in leaving or len(self.flow.edges_of(block)) > 2:
            raise self._lost(last, "a call, or a branch to one of many places")
        reader = Reader(self.constants)
        texts = [last.predicate.removeprefix("@"), *operands(last)[:-1]]
        known = [reader.value(text)(self.values) for text in texts if text]
        if 0 in known:
            return behind
        if None in known:
            raise self._lost(last, "a predicate that the kernel's parameters do not decide")
        return away

    @staticmethod
    def _lost(branch: Instruction, found: str) -> FlashladderError:
        where = f"address {branch.address:#x}, {branch}"
        return FlashladderError(
            "which way a branch goes is not known", where=where, expected="one that all threads take alike", found=found
        )
