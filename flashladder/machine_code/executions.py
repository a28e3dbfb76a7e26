"""How often each block of a kernel runs: a walk through its machine code along the path of one warp.

The trip count of the loop over KV blocks is a kernel parameter. A few integer instructions move, change and compare it;
`run` evaluates them for given parameters. A register that any other instruction writes becomes unknown, and a branch
that depends on it is an error, never a guess. Arithmetic is modulo 2^32.

Run: ``invoke cfg 8``, ``invoke explain 19 --gpu a100``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
import operator
import re

from flashladder.errors import FlashladderError
from flashladder.machine_code.flow import Flow, Loop
from flashladder.machine_code.sass import Instruction

Values = dict[str, int]
"""Known values: 32-bit registers (``R5``, ``UR4``) as unsigned numbers, predicates (``P0``, ``UP1``) as 0 or 1."""
Constants = Mapping[int, int]
"""The known 32-bit words of constant bank 0, by their offset."""

WORD = 1 << 32
_FIXED = {"RZ": 0, "URZ": 0, "SRZ": 0, "PT": 1, "UPT": 1}
_OPERAND = re.compile(r",\s*(?![^\[]*\])")
_NAME = re.compile(r"^(?P<sign>[-~!]?)(?P<name>U?R(?:\d+|Z)|U?P(?:\d|T)|SRZ)$")
_NUMBER = re.compile(r"^(?P<sign>-?)0x(?P<digits>[0-9a-f]+)$")
_CONSTANT = re.compile(r"^(?P<sign>[-~]?)c\[0x0\]\[0x(?P<offset>[0-9a-f]+)\]$")
_REGISTER = re.compile(r"^(?P<bank>U?R)(?P<number>\d+)")
_PREDICATE = re.compile(r"^U?P\d$")
_CARRY = re.compile(r"^!?U?P[\dT]$")
_COMPARE = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip
_COMBINE = {"AND": operator.and_, "OR": operator.or_, "XOR": operator.xor}


def operands(instruction: Instruction) -> list[str]:
    """The operands of an instruction, in order."""
    return [one.strip() for one in _OPERAND.split(instruction.operands)] if instruction.operands else []


def is_vote(instruction: Instruction, texts: Sequence[str]) -> bool:
    """Whether an instruction votes for one predicate of the warp (``VOTE.ANY P4, P4``), and not for a mask of lanes."""
    kind, *modifiers = instruction.opcode.split(".")
    asks = kind in ("VOTE", "VOTEU") and not {"ANY", "ALL"}.isdisjoint(modifiers)
    return asks and len(texts) == 2 and _PREDICATE.match(texts[0]) is not None


def _value(text: str, values: Values, constants: Constants) -> int | None:
    """The value of an operand; None if it is unknown."""
    text = text.strip().removesuffix(".reuse")
    if match := _NUMBER.match(text):
        number = int(match["digits"], 16)
        return (-number if match["sign"] else number) % WORD
    if constant := _CONSTANT.match(text):
        sign, value = constant["sign"], constants.get(int(constant["offset"], 16))
    elif name := _NAME.match(text):
        sign, value = name["sign"], _FIXED.get(name["name"], values.get(name["name"]))
    else:
        return None
    if value is None or (sign == "!" and value > 1):
        return None
    return {"": value, "-": -value % WORD, "~": ~value % WORD, "!": 1 - value}[sign]


def _logic(a: int, b: int, c: int, lut: int) -> int:
    """LOP3, PLOP3: the bits of three inputs select each bit of the result from `lut`, a table of eight bits."""
    found = 0
    for row in range(8):
        if lut >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return found


_FORMULAS: Mapping[str, tuple[Callable[..., int], int]] = {
    "MOV": (lambda a: a, 1),
    "R2UR": (lambda a: a, 1),
    "IADD3": (lambda a, b, c: a + b + c, 3),
    "VIADD": (operator.add, 2),
    "IMAD": (lambda a, b, c: a * b + c, 3),  # IMAD.MOV and IMAD.SHL print the factor that makes them so
    "SEL": (lambda a, b, which: a if which else b, 3),
    "LOP3": (_logic, 4),
}
"""The formula of a result and its number of inputs; uniform instructions (``UIADD3``) use the same."""
_KNOWN = {*_FORMULAS, "LDC", "CS2R", "ISETP", "PLOP3", "VOTE", "VOTEU"}


def _results(  # noqa: PLR0911 - one return for each form of instruction
    instruction: Instruction, texts: Sequence[str], values: Values, constants: Constants, *, asked: bool
) -> Mapping[str, int | None]:
    """The results of an instruction that follow from the known values.

    A kernel votes to skip work that no lane needs: ANY finds a lane that needs it, ALL a lane that objects. If lanes
    vote on data, `asked` decides the vote.
    """
    name, *modifiers = instruction.opcode.split(".")
    kind, target = name.removeprefix("U"), _REGISTER.match(texts[0])
    if kind not in _KNOWN:
        return {}
    if kind == "LDC":
        place = _CONSTANT.match(texts[1]) if len(texts) == 2 else None
        if target is None or place is None:
            return {}
        words = range(2 if "64" in modifiers else 1)
        return {_next(target, i): constants.get(int(place["offset"], 16) + 4 * i) for i in words}
    if kind == "CS2R":  # SRZ is always zero
        zeros = range(_width(instruction) or 0)
        return {_next(target, i): 0 for i in zeros} if target and texts[1:] == ["SRZ"] else {}
    if not {"WIDE", "HI", "X", "EX", "64"}.isdisjoint(modifiers):
        return {}
    if is_vote(instruction, texts):
        lane = _value(texts[1], values, constants)
        return {texts[0]: int(asked == ("ANY" in modifiers)) if lane is None else lane}
    if kind == "IADD3":
        texts = [texts[0], *(text for text in texts[1:] if not _CARRY.match(text))]
    read = [_value(text, values, constants) for text in texts]
    if kind in ("ISETP", "PLOP3"):
        inputs = [value for value in read[2:] if value is not None]
        if len(inputs) != len(read) - 2 or len(inputs) != (3 if kind == "ISETP" else 5):
            return {}
        a, b, c, *tables = inputs
        bits = [_logic(a, b, c, table) & 1 for table in tables] if tables else _compared(modifiers, a, b, c)
        return {name: bit for name, bit in zip(texts[:2], bits, strict=False) if _PREDICATE.match(name)}
    formula, n_inputs = _FORMULAS.get(kind, (None, 0))
    known = read[1 : 1 + n_inputs]
    if formula is None or target is None or len(known) != n_inputs or None in known:
        return {}
    return {texts[0]: formula(*known) % WORD}


def _compared(modifiers: Sequence[str], left: int, right: int, other: int) -> Sequence[int]:
    """ISETP: compares two integers and combines the answer with a predicate; the second result negates the answer."""
    compare = next((_COMPARE[one] for one in modifiers if one in _COMPARE), None)
    combine = next((_COMBINE[one] for one in modifiers if one in _COMBINE), None)
    if compare is None or combine is None:
        return ()
    if "U32" not in modifiers:
        left, right = (value - WORD if value >= WORD // 2 else value for value in (left, right))
    holds = int(compare(left, right))
    return combine(holds, other), combine(1 - holds, other)


def _next(register: re.Match[str], n: int) -> str:
    """The name of the n-th register after this one."""
    return f"{register['bank']}{int(register['number']) + n}"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# These instructions only read their first operand.
_WRITE_NOTHING = _names(
    "BAR BRA BRX BRXU BREAK BSSY BSYNC CALL CCTL DEPBAR ERRBAR EXIT JMP KILL LDGDEPBAR LDGSTS MEMBAR NANOSLEEP NOP "
    "RED RET ST STG STL STS WARPSYNC YIELD"
)
_ONE_REGISTER = _names(
    "F2F F2FP F2I FADD FFMA FMNMX FMUL FSEL FSETP HADD2 HFMA2 HMUL2 I2F I2FP IABS IADD3 IMAD IMNMX ISETP LDC LEA LOP3 "
    "MOV MUFU P2R PLOP3 POPC PRMT R2P R2UR S2R S2UR SEL SGXT SHF SHFL UIADD3 UIMAD UISETP ULDC ULEA ULOP3 "
    "UMOV UPLOP3 UPRMT USEL USHF UP2UR VIADD VIMNMX VOTE VOTEU LD LDG LDL LDS"
)


def written_by(instruction: Instruction, texts: Sequence[str]) -> tuple[str, ...] | None:
    """Registers and predicates that an instruction may write, or more; None: any register or predicate."""
    kind = instruction.opcode_class
    if kind in _WRITE_NOTHING or not texts:
        return ()
    maybe = texts[1:3] if _REGISTER.match(texts[0]) else texts[:2]
    found = [text for text in maybe if _PREDICATE.match(text)]
    if kind == "R2P":
        return tuple(f"P{i}" for i in range(7))
    first = texts[1] if len(texts) > 1 and texts[0] in {*found, "PT", "UPT"} else texts[0]
    if match := _REGISTER.match(first):
        if (width := _width(instruction)) is None:
            return None
        found += [_next(match, i) for i in range(width)]
    return tuple(found)


def _width(instruction: Instruction) -> int | None:
    """The number of registers of a result; None: not known."""
    kind, *modifiers = instruction.opcode.split(".")
    if kind == "HMMA":
        return 4 if "F32" in modifiers else 2
    if kind == "LDSM":
        return 4 if "4" in modifiers else 2 if "2" in modifiers else 1
    if kind == "CS2R":
        return 1 if "32" in modifiers else 2
    if kind not in _ONE_REGISTER:
        return None
    wide = "WIDE" in modifiers or "64" in modifiers
    return 4 if "128" in modifiers else 2 if wide else 1


def advance(instruction: Instruction, values: Values, constants: Constants, *, asked: bool = False) -> int | None:
    """Executes an instruction on the known `values`; removes a result that does not follow from them.

    Returns whether its predicate lets it run; None if that is not known. `asked`: whether a lane asks for the exception
    in a vote on data.
    """
    texts, written = _parsed(instruction)
    runs = _guard(instruction, values, constants)
    if written != () and runs != 0:
        found = _results(instruction, texts, values, constants, asked=asked) if runs else {}
        for name in list(values) if written is None else written:
            values.pop(name, None)
        values.update({name: value for name, value in found.items() if value is not None})
    return runs


@lru_cache(maxsize=1 << 13)  # instructions of a kernel, which repeat in loops
def _parsed(instruction: Instruction) -> tuple[Sequence[str], tuple[str, ...] | None]:
    texts = operands(instruction)
    return texts, written_by(instruction, texts)


def _guard(instruction: Instruction, values: Values, constants: Constants) -> int | None:
    """Whether an instruction's predicate lets it run; None if that is not known."""
    return _value(instruction.predicate.removeprefix("@"), values, constants) if instruction.predicate else 1


LIMIT = 1_000_000  # blocks; a kernel of the ladder runs a few hundred


@dataclass(frozen=True)
class Executions:
    """What one warp of a kernel runs."""

    flow: Flow  # the kernel
    blocks: tuple[int, ...]  # how often each block runs
    edges: Mapping[tuple[int, int], int]  # how often control goes from one block to another
    # how often a false predicate skips each instruction, by its place in `Sass.instructions`; an instruction with an
    # unknown predicate counts as run
    off: Mapping[int, int]
    votes: frozenset[int] = frozenset()  # places of the votes on the path, whose outcome was assumed

    def counts(self, blocks: Collection[int] | None = None) -> Counter[str]:
        """Executed instructions by full opcode, without those that a false predicate skips."""
        found: Counter[str] = Counter()
        for block in range(len(self.blocks)) if blocks is None else blocks:
            for place, instruction in enumerate(self.flow.code(block), self.flow.blocks[block].begin):
                found[instruction.opcode] += self.blocks[block] - self.off.get(place, 0)
        return found

    def trips(self, loop: Loop) -> float:
        """Rounds of a loop each time it is entered; 0 if it never is."""
        rounds = self.blocks[loop.header]
        entries = rounds - sum(self.edges.get((latch, loop.header), 0) for latch in loop.latches)
        return rounds / entries if entries else 0.0


def run(flow: Flow, constants: Constants, *, asked: bool = False) -> Executions:
    """Walks through a kernel on the path of one warp; arguments and errors as of `path`."""
    off = Counter[int]()
    order = list(path(flow, constants, asked=asked, off=off))
    visits, code = Counter(order), flow.sass.instructions
    passed = (place for block in visits for place in range(flow.blocks[block].begin, flow.blocks[block].end))
    votes = frozenset(place for place in passed if is_vote(code[place], operands(code[place])))
    blocks = tuple(visits[index] for index in range(len(flow.blocks)))
    return Executions(flow, blocks, Counter(pairwise(order)), off, votes)


def path(flow: Flow, constants: Constants, *, asked: bool = False, off: Counter[int] | None = None) -> Iterator[int]:
    """The blocks of a kernel in the order in which a warp runs them.

    `constants` are the kernel's parameters, as 32-bit words of constant bank 0 by their offset there. `asked`: whether
    a lane asks for the exception in every vote on data; else no lane ever does. `off` gets the counts of
    `Executions.off`: instructions that a false predicate skips. A branch on values that `constants` do not decide, and
    a kernel that does not end, are errors.
    """
    off = Counter() if off is None else off
    code, values = flow.sass.instructions, Values()
    block: int | None = 0
    for _ in range(LIMIT):
        if block is None:
            return
        yield block
        for place in range(flow.blocks[block].begin, flow.blocks[block].end):
            off[place] += advance(code[place], values, constants, asked=asked) == 0
        block = _next_block(flow, block, values, constants)
    raise FlashladderError("the kernel does not end", expected=f"an end within {LIMIT:,} blocks")


def _next_block(flow: Flow, block: int, values: Values, constants: Constants) -> int | None:
    """The block that runs after this one; None at the end of the kernel."""
    leaving = {edge.kind: edge.target for edge in flow.edges[block]}
    last, following = flow.code(block)[-1], leaving.get("falls")
    if not flow.sass.moves_control(last) or "diverges" in leaving:
        return following
    if "calls" in leaving or len(flow.edges[block]) > 2:
        found = "a call, or a branch to one of many places"
    else:
        known = [_guard(last, values, constants), *(_value(one, values, constants) for one in operands(last)[:-1])]
        if 0 in known:
            return following
        if None not in known:
            return leaving.get("jumps", leaving.get("branches"))
        found = "a predicate that the kernel's parameters do not decide"
    where, expected = f"address {last.address:#x}, {last}", "one that all threads take alike"
    raise FlashladderError("which way a branch goes is not known", where=where, expected=expected, found=found)
