"""Mutation of the Hopper programs: delete one barrier, wait, arrival, fence or commit at a time, and see who notices.

Why: a detector that never fires proves nothing. A mutant counts as caught when the program stops with an error, a race
is reported or a number changes, in the usual order of warps or in another one. Those that change nothing the ISA
guarantees are listed with their reasons in ``equivalent.yaml`` and must stay uncaught.

Run: ``python -m tests.hopper_programs.mutation [KERNEL ...]``; exit code 1 when a verdict is not as listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import sys

import numpy as np
from tests.hopper_programs.program import Program, kernel, mismatch, programs

from flashladder.yaml_text import read_yaml
import ptxemu
from ptxemu import Instruction
from tests.hopper_programs.program import Program, kernel, mismatch, programs

LIST = Path(__file__).with_name("equivalent.yaml")
SCHEDULES: tuple[str | int, ...] = ("together", "reverse", 1)
MAX_INSTRUCTIONS = 50_000  # far more than any of the programs needs


@dataclass(frozen=True)
class Mutant:
    """A kernel without one instruction: the `nth` (from 1) of this opcode."""

    program: Program
    instruction: Instruction
    nth: int
    kernel: ptxemu.Kernel

    @property
    def name(self) -> str:
        """As in the list: ``bulk-load mbarrier.init.shared::cta.b64 1``."""
        return f"{self.program.file}-{self.program.kernel} {self.instruction.opcode} {self.nth}"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant; `evidence`: what gave it away; `reason`: why it is listed as equivalent."""

    mutant: Mutant
    evidence: str | None
    reason: str | None

    @property
    def as_listed(self) -> bool:
        """Caught and not listed, or listed and not caught."""
        return (self.evidence is None) == (self.reason is not None)

    def __str__(self) -> str:
        text = self.evidence or (f"equivalent: {self.reason}" if self.reason else "not caught")
        source = self.mutant.instruction.source
        place = f" ({source.chain})" if source else ""
        return f"{'' if self.as_listed else 'WRONG '}{self.mutant.name}{place}: {text}"


@cache
def listed() -> dict[str, str]:
    """The reasons of mutants that nobody can notice, by name."""
    entries = read_yaml(LIST)
    assert isinstance(entries, dict)
    return {f"{name} {mutant}": str(reason) for reason, group in entries.items() for name, mutant in _pairs(group)}


def _pairs(group: object) -> Iterator[tuple[str, str]]:
    assert isinstance(group, dict)
    for name, mutants in group.items():
        for mutant in mutants:
            yield name, mutant


def mutants_of(program: Program) -> Iterator[Mutant]:
    """Every mutant of a program's kernel."""
    for one in ptxemu.mutants(kernel(program.file, program.kernel)):
        yield Mutant(program, one.instruction, one.nth, one.kernel)


def evidence_of(mutant: Mutant, schedule: str | int) -> str | None:
    """What one launch shows."""
    program, hazards = mutant.program, ptxemu.Hazards()
    run = program.make()
    try:
        mutant.kernel.launch(
            program.grid,
            program.threads,
            run.arguments,
            shared_bytes=program.shared_bytes,
            cluster=program.cluster if max(program.cluster) > 1 else None,
            observers=(hazards,),
            max_instructions=MAX_INSTRUCTIONS,
            schedule=schedule,
        )
    except ptxemu.EmulationError as error:
        return f"error: {error}"
    if hazards.reports:
        return f"race: {hazards.reports[0].render()}"
    texts = [mismatch(program, np.asarray(found), wanted) for found, wanted in run.results]
    return next((f"numbers: {text}" for text in texts if text), None)


def judge(mutant: Mutant) -> Verdict:
    """Runs a mutant until somebody notices."""
    shown = (evidence_of(mutant, schedule) for schedule in SCHEDULES)
    return Verdict(mutant, next((text for text in shown if text), None), listed().get(mutant.name))


def kernels() -> dict[str, Program]:
    """One program for each kernel: ``bulk-load`` and so on."""
    found: dict[str, Program] = {}
    for program in programs().values():
        found.setdefault(f"{program.file}-{program.kernel}", program)
    return found


def verdicts(names: Sequence[str] = ()) -> Iterator[Verdict]:
    """The verdict on every mutant of some kernels; of all without names."""
    for name, program in kernels().items():
        if not names or name in names:
            yield from map(judge, mutants_of(program))


def main(names: Sequence[str]) -> int:
    """Prints a line per mutant and a count."""
    found = []
    for verdict in verdicts(names):
        print(str(verdict)[:400], flush=True)
        found.append(verdict)
    wrong = sum(not verdict.as_listed for verdict in found)
    caught = sum(verdict.evidence is not None for verdict in found)
    print(f"{len(found)} mutants: {caught} caught, {len(found) - caught} not; {wrong} not as listed")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
