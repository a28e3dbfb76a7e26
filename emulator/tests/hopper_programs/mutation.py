"""Deletes one barrier, wait, arrival, fence or commit of the Hopper programs at a time, and sees who notices.

A mutant is caught when the program stops with an error, a race is reported or a number changes, in any order of warps.
Those that change nothing the ISA guarantees are in ``equivalent.json``, by reason, kernel and which one of the opcode.

Run: ``python -m tests.hopper_programs.mutation [KERNEL ...]``; exit code 1 when a verdict is not as listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
import json
import sys

from tests.hopper_programs.program import HERE, Program, module, programs

import ptxemu
from ptxemu.machine.control import build_flow
from ptxemu.syntax.tree import Instruction

TARGETS = (
    *("bar.", "barrier.", "mbarrier.arrive", "mbarrier.expect_tx", "mbarrier.complete_tx", "mbarrier.try_wait"),
    *("mbarrier.test_wait", "mbarrier.init", "mbarrier.inval", "fence.", "wgmma.fence", "wgmma.commit", "wgmma.wait"),
    *("cp.async.bulk.commit", "cp.async.bulk.wait", "cp.async.mbarrier", "griddepcontrol", "setmaxnreg"),
)
TOLD = ("mbarrier.try_wait", "mbarrier.test_wait", "mbarrier.arrive", "barrier.cta.red")  # they write a register
SCHEDULES: tuple[str | int, ...] = ("together", "reverse", 1)
MAX_INSTRUCTIONS = 50_000  # far more than any of the programs needs
ZERO = (
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %r<2>;\nmov.b32 %r1, 0;\nret;\n}"
)


@dataclass(frozen=True)
class Mutant:
    """A kernel without one instruction; its name as in the list: ``bulk-load mbarrier.init.shared::cta.b64 1``."""

    program: Program
    instruction: Instruction
    name: str
    kernel: ptxemu.Kernel


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant; `evidence`: what gave it away; `reason`: why it is listed as equivalent."""

    mutant: Mutant
    evidence: str | None
    reason: str | None

    @property
    def as_listed(self) -> bool:
        return (self.evidence is None) == (self.reason is not None)

    def __str__(self) -> str:
        text = self.evidence or (f"equivalent: {self.reason}" if self.reason else "not caught")
        source = self.mutant.instruction.source
        place = f" ({source.chain})" if source else ""
        return f"{'' if self.as_listed else 'WRONG '}{self.mutant.name}{place}: {text}"


@cache
def listed() -> dict[str, str]:
    reasons = json.loads((HERE / "equivalent.json").read_text(encoding="utf-8")).items()
    pairs = ((f"{kernel} {each}", why) for why, group in reasons for kernel, names in group.items() for each in names)
    return dict(pairs)


def mutants_of(program: Program) -> Iterator[Mutant]:
    original = module(program.file).kernel(program.kernel)
    counts: dict[str, int] = {}
    for place, item in enumerate(original.function.body):
        if isinstance(item, Instruction) and item.opcode.startswith(TARGETS):
            counts[item.opcode] = counts.get(item.opcode, 0) + 1
            name = f"{program.file}-{program.kernel} {item.opcode} {counts[item.opcode]}"
            yield Mutant(program, item, name, _without(original, place, item))


def _without(original: ptxemu.Kernel, place: int, item: Instruction) -> ptxemu.Kernel:
    """The kernel without an instruction; a wait answers yes at once, an arrival that nobody makes has state 0."""
    body = list(original.function.body)
    answer = item.opcode.startswith(TOLD) and str(item.operands[0]) != "_" and _answer(item)
    body[place : place + 1] = [answer] if answer else []
    function = replace(original.function, body=tuple(body))
    return ptxemu.Kernel(original.module, function, build_flow(function, original.module.path))


def _answer(item: Instruction) -> Instruction | None:
    """What stands in the place of an instruction whose result is used: 1 for waits, 0 for states; None: no result."""
    zero = next(each for each in ptxemu.load(ZERO).kernel().function.body if isinstance(each, Instruction)).operands[1]
    if "wait" in item.opcode:
        return replace(item, opcode="setp.eq.u32", operands=(item.operands[0], zero, zero))
    if item.opcode.startswith("mbarrier.arrive") and len(item.operands) > 1 and "[" not in str(item.operands[0]):
        return replace(item, opcode="mov.b64", operands=(item.operands[0], zero))
    return None


def evidence_of(mutant: Mutant, schedule: str | int) -> str | None:
    hazards = ptxemu.Hazards()
    options = {"observers": (hazards,), "max_instructions": MAX_INSTRUCTIONS, "schedule": schedule}
    try:
        run = mutant.program.launch(mutant.kernel, **options)
    except ptxemu.EmulationError as error:
        return f"error: {error}"
    if hazards.reports:
        return f"race: {hazards.reports[0].render()}"
    text = mutant.program.mismatch(run)
    return f"numbers: {text}" if text else None


def judge(mutant: Mutant) -> Verdict:
    shown = (evidence_of(mutant, schedule) for schedule in SCHEDULES)
    return Verdict(mutant, next(filter(None, shown), None), listed().get(mutant.name))


def kernels() -> dict[str, Program]:
    """One program for each kernel, the first: ``bulk-load`` and so on."""
    return {f"{each.file}-{each.kernel}": each for each in reversed(list(programs().values()))}


def verdicts(names: Sequence[str] = ()) -> Iterator[Verdict]:
    """The verdict on every mutant of some kernels; of all without names."""
    for name, program in kernels().items():
        if not names or name in names:
            yield from map(judge, mutants_of(program))


def main(names: Sequence[str]) -> int:
    count = wrong = 0
    for verdict in verdicts(names):
        count, wrong = count + 1, wrong + (not verdict.as_listed)
        print(str(verdict)[:400], flush=True)
    print(f"{count} mutants, {wrong} not as listed")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
