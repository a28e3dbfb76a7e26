"""Deletes one barrier, wait, arrival, fence or commit of the Hopper programs at a time, and sees who notices.

A mutant is caught when the program stops with an error, a race is reported or a number changes, in any order of warps.
Those that change nothing the ISA guarantees are in ``equivalent.json``, by reason, kernel and which one of the opcode.

Run: ``python -m tests.hopper_programs.mutation [KERNEL ...]``; exit code 1 when a verdict is not as listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
import json
import sys

from tests.hopper_programs.program import HERE, Program, module, programs

import ptxemu
from ptxemu import Instruction

SCHEDULES: tuple[str | int, ...] = ("together", "reverse", 1)
MAX_INSTRUCTIONS = 50_000  # far more than any of the programs needs


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
    """Every mutant of a program's kernel."""
    for one in ptxemu.mutants(module(program.file).kernel(program.kernel)):
        name = f"{program.file}-{program.kernel} {one.instruction.opcode} {one.nth}"
        yield Mutant(program, one.instruction, name, one.kernel)


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
