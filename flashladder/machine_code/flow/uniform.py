"""What registers hold that is the same in every thread: the few instructions that decide how often a loop runs.

Why: the trip count of the loop over KV blocks is a kernel parameter, moved, added to and compared by a handful of
integer instructions. These are evaluated; a register that anything else writes is not known any more, and a branch by
it is an error, never a guess.

`flashladder.machine_code.flow.executions` runs kernels with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flashladder.machine_code.flow.formulas import Rule, rule_of
from flashladder.machine_code.flow.values import (
    PREDICATE,
    REGISTER,
    VARIABLE,
    Constants,
    Reader,
    Reading,
    Values,
    operands,
)
from flashladder.machine_code.sass import Instruction

__all__ = ["Constants", "Step", "deciding", "operands", "step_of", "written_by"]


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
