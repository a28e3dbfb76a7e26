"""Runs a slice of the grid: pending basic blocks in priority order, all lanes that stand at one block together.

See `control` for the rule that makes divergent lanes meet again, `barriers` for blocks of threads that wait.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flashladder.emulator.machine.barriers import Barriers
from flashladder.emulator.machine.compiled import Operation, compile_block, guard_mask
from flashladder.emulator.machine.control import BARRIERS, Block, Flow, word
from flashladder.emulator.machine.state import Machine, Step
from flashladder.emulator.run.undefined import Interruption, Undefined
from flashladder.emulator.table import machine as row
from flashladder.emulator.values import BoolArray

Progress = Callable[[int], None]  # told how many warp instructions have just been executed


@row("bra{,.uni}", "goes to a label; lanes that diverge meet again at the immediate post-dominator", kind="control")
@row("{ret,exit}{,.uni}", "ends the thread", kind="control")
@row("{trap,brkpt}", "stops the emulation with an error of kind trap", kind="control")
@row("bar.{sync,arrive}", "CTA barrier a with an optional thread count b", kind="control")
@row(
    "barrier{,.cta}.{sync,arrive}{,.aligned}",
    "CTA barrier; without .aligned lanes may arrive one by one",
    kind="control",
)
@row("bar.red.{popc.u32,and.pred,or.pred}", "CTA barrier that counts or combines a predicate", kind="control")
@row(
    "barrier{,.cta}.red.{popc,and,or}{,.aligned}.{u32,pred}",
    "CTA barrier that counts or combines a predicate",
    kind="control",
)
def control(step: Step) -> None:
    """Rows of the instructions that `Engine` and `Barriers` carry out themselves."""
    step.fail("unsupported", "a control instruction inside a basic block")


class Engine:
    """One slice of the grid on its way through the program."""

    def __init__(
        self,
        machine: Machine,
        flow: Flow,
        max_instructions: int,
        progress: Progress | None,
        *,
        track_undefined: bool = True,
    ) -> None:
        self.machine = machine
        machine.undefined = Undefined(machine) if track_undefined else None
        self.flow = flow
        self.max_instructions = max_instructions
        self.progress = progress
        self.barriers = Barriers(machine)
        self.pending: dict[int, BoolArray | None] = {}
        self._compiled: dict[int, list[Operation]] = {}
        self._terminators: dict[int, Step] = {}

    def run(self) -> None:
        """Runs until every thread has exited.

        Raises:
            EmulationError: whatever the program does wrong, a deadlock, or a spent instruction budget.
        """
        if not self.flow.blocks:
            return
        self._arrive(0, None if self.machine.exists.all() else self.machine.exists)
        with np.errstate(all="ignore"):
            while self.pending:
                index = min(self.pending)
                self._visit(self.flow.blocks[index], self.pending.pop(index))
                if not self.pending:
                    self.barriers.deadlock()

    def _arrive(self, index: int | None, mask: BoolArray | None) -> None:
        """Lanes reach a block (None: the end of the program)."""
        if index is None:
            self._exit(mask)
            return
        if index in self.pending:
            other = self.pending[index]
            if other is None or mask is None:
                self.pending[index] = None
                return
            mask = other | mask
        if mask is not None and mask.all():
            mask = None
        self.pending[index] = mask

    def _exit(self, mask: BoolArray | None) -> None:
        gone = self.machine.exists if mask is None else mask
        self.machine.live = self.machine.live & ~gone
        for index, lanes in self.barriers.after_exit():
            self._go_on(index, lanes)

    def _visit(self, block: Block, mask: BoolArray | None) -> None:
        machine = self.machine
        for observer in machine.observers:
            observer.block(block, mask)
        operations = self._compiled.get(block.index)
        if operations is None:
            operations = self._compiled[block.index] = compile_block(machine, block)
        self._run(operations, mask)
        machine.issued += len(block.instructions)
        if self.progress is not None:
            self.progress(len(block.instructions) * machine.shape[0] * machine.shape[1])
        if machine.issued > self.max_instructions:
            self._over_budget(block, mask)
        if machine.undefined is None or not machine.undefined.tracking:
            self._leave(block, mask)
            return
        machine.undefined.leave(block.terminator, mask)
        self._leave(block, mask)
        machine.undefined.settle()

    def _run(self, operations: list[Operation], mask: BoolArray | None) -> None:
        """Runs a block's instructions; those after the first undefined value, if there is one, with its marks."""
        machine, undefined = self.machine, self.machine.undefined
        everyone = mask is None or not (machine.live & ~mask).any()
        lanes = None if everyone else mask  # exited lanes may hold anything: no need to keep what they had
        rest = iter(operations)
        if undefined is None or not undefined.tracking:
            try:
                for operation in rest:
                    operation.run(lanes if operation.pure else mask)
                    if everyone:  # nobody is elsewhere who might still read it: memory stays small and caches warm
                        for slot, blank in operation.dying:
                            machine.registers[slot] = blank
            except Interruption as interruption:
                interruption.begin()
        if undefined is None:
            return
        for operation in rest:
            undefined.follow(operation, lanes, mask)
            if everyone:
                undefined.bury(operation)
                for slot, blank in operation.dying:
                    machine.registers[slot] = blank

    def _over_budget(self, block: Block, mask: BoolArray | None) -> None:
        step = Step(self.machine, block.instructions[-1])
        step.mask = mask
        step.fail(
            "budget",
            "the instruction budget is spent: an endless loop, or a launch larger than foreseen",
            expected=f"at most {self.max_instructions} instructions",
            found=f"{self.machine.issued}",
            hint="raise max_instructions if the program is known to end; no thread may spin until another one stores",
        )

    def _leave(self, block: Block, mask: BoolArray | None) -> None:
        """Sends the lanes of a finished block on, as its terminator says."""
        terminator = block.terminator
        if terminator is None:
            self._arrive(block.following, mask)
            return
        chosen, some = guard_mask(self.machine, terminator, mask)
        rest, others = self._others(mask, chosen, some=some)
        if others:
            self._arrive(block.following, rest)
        if not some:
            return
        first = word(terminator.opcode)
        if first == "bra":
            self._arrive(block.target, chosen)
        elif first in ("ret", "exit"):
            self._exit(chosen)
        elif first in BARRIERS:
            self._barrier(block, chosen)
        else:
            step = Step(self.machine, terminator)
            step.mask = chosen
            step.fail("trap", f"the program executed {terminator.opcode}")

    @staticmethod
    def _others(mask: BoolArray | None, chosen: BoolArray | None, *, some: bool) -> tuple[BoolArray | None, bool]:
        """Lanes of `mask` that do not follow the terminator, and whether there are any."""
        if not some:
            return mask, True
        if chosen is None or chosen is mask:
            return None, False
        rest = ~chosen if mask is None else mask & ~chosen
        return rest, bool(rest.any())

    def _barrier(self, block: Block, mask: BoolArray | None) -> None:
        step = self._terminators.get(block.index)
        if step is None or step.mask is not None:  # a step that waits at a barrier keeps its mask: take a new one
            step = Step(self.machine, block.instructions[-1])
            if mask is None:
                self._terminators[block.index] = step
        step.mask = mask
        following = len(self.flow.blocks) if block.following is None else block.following
        for index, lanes in self.barriers.reach(step, following):
            self._go_on(index, lanes)

    def _go_on(self, index: int, lanes: BoolArray | None) -> None:
        """Lanes that a barrier has let go reach the block after it (behind the last one: the end)."""
        self._arrive(index if index < len(self.flow.blocks) else None, lanes)
