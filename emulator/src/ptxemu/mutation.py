"""Mutation of a kernel: each barrier, wait, arrival, fence and commit is removed alone.

Why: a kernel whose synchronisation can go without a race, an error or another result has too much of it, or was tried
with a launch that does not need it. A race detector that never reports a mutant proves nothing.

    for mutant in mutants(kernel):
        mutant.kernel.launch(grid, block, args, observers=(hazards := Hazards(),))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ptxemu.run.launch import Kernel
from ptxemu.syntax.tree import Immediate, Instruction, Label

SYNCHRONISATION = (
    *("bar", "barrier", "fence", "membar", "setmaxnreg", "griddepcontrol"),
    *("mbarrier.init", "mbarrier.inval", "mbarrier.arrive", "mbarrier.arrive_drop", "mbarrier.expect_tx"),
    *("mbarrier.complete_tx", "mbarrier.try_wait", "mbarrier.test_wait"),
    *("cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all", "cp.async.mbarrier"),
    *("cp.async.bulk.commit_group", "cp.async.bulk.wait_group"),
    *("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"),
)
"""Opcodes that are removed, or how they begin."""


@dataclass(frozen=True)
class Mutant:
    """A kernel without one instruction.

    Attributes:
        original: the whole kernel.
        place: of the instruction in ``original.function.body``.
        instruction: what is removed.
        nth: which of the instructions with its opcode it is, from 1.
    """

    original: Kernel
    place: int
    instruction: Instruction
    nth: int

    @property
    def kernel(self) -> Kernel:
        """The mutant, ready to be launched; built anew each time.

        The answer of a wait is used by a branch, so a wait is replaced by "yes"; the state that an arrival returns
        is replaced by 0, the answer of a ``bar.red`` by what the thread itself brings.
        """
        body, answer = list(self.original.function.body), _answer(self.instruction)
        body[self.place : self.place + 1] = [] if answer is None else [answer]
        return self.original.with_body(body)


def mutants(kernel: Kernel) -> Iterator[Mutant]:
    """Every mutant of a kernel, in the order of its body."""
    counts: dict[str, int] = {}
    for place, item in enumerate(kernel.function.body):
        if isinstance(item, Label) or not is_synchronisation(item):
            continue
        counts[item.opcode] = counts.get(item.opcode, 0) + 1
        yield Mutant(kernel, place, item, counts[item.opcode])


def is_synchronisation(instruction: Instruction) -> bool:
    """Whether an instruction is one of `SYNCHRONISATION`."""
    return any(f"{instruction.opcode}.".startswith(f"{kind}.") for kind in SYNCHRONISATION)


def _answer(item: Instruction) -> Instruction | None:
    """What stands in the place of an instruction whose result is used; None: nothing."""
    first = str(item.operands[0]) if item.operands else "_"
    if ".red" in item.opcode:
        opcode, ones = ("mov.pred", ()) if item.opcode.endswith(".pred") else ("selp.u32", (Immediate(1), Immediate(0)))
        return replace(item, opcode=opcode, operands=(item.operands[0], *ones, item.operands[-1]))
    if not item.opcode.startswith("mbarrier.") or first == "_" or first.startswith("["):
        return None
    if "wait" in item.opcode:
        return replace(item, opcode="setp.eq.u32", operands=(item.operands[0], Immediate(0), Immediate(0)))
    return replace(item, opcode="mov.b64", operands=(item.operands[0], Immediate(0)))
