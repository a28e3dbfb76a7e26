"""Runs a slice of the grid: pending basic blocks in priority order, all lanes that stand at one block together.

See `machine.control` for the rule by which divergent lanes meet again, `machine.waits` for threads that wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ptxemu.errors import EmulationError
from ptxemu.machine.barriers import Barriers
from ptxemu.machine.compiled import Operation, compile_block, guard_mask
from ptxemu.machine.control import BARRIERS, Block, Flow, waits, word
from ptxemu.machine.core import Machine, Step
from ptxemu.machine.register_pool import WARPGROUP
from ptxemu.machine.state import FullMachine, FullStep
from ptxemu.machine.waits import Waits, refuse
from ptxemu.run.undefined import Interruption, Undefined
from ptxemu.syntax.tree import Instruction
from ptxemu.table import ROWS
from ptxemu.table import machine as row
from ptxemu.values import Array, BoolArray

FIRST_LOOK = 10_000  # instructions after which endless loops are looked for; then after twice as many, and so on
NEXT_LOOK = 1_000  # instructions until the next look, once threads have been found spinning
ROUND = 64  # basic blocks that may run before such a loop is where it was
# Beginnings of opcodes that change nothing but registers; what an atomic changes in memory is counted.
HARMLESS = (*("bra", "ld", "mov", "atom", "vote", "match", "redux", "shfl", "activemask", "bar.warp"),
            *("membar", "fence", "prefetch", "nanosleep"))  # fmt: skip
Pending: TypeAlias = dict[int, "BoolArray | None"]
REVERSE, ELECT_LAST = "reverse", "elect-last"  # the last warp first; all together, but the last lane is elected
EARLY = 0.25  # how often something asynchronous finishes before it has to, where the order is by chance


class Schedule:
    """All lanes that stand at the first of the pending basic blocks run together."""

    def take(self, pending: Pending) -> tuple[int, BoolArray | None]:
        """The next basic block and its lanes, which are removed from `pending`."""
        index = min(pending)
        return index, pending.pop(index)

    def early(self) -> bool:
        """Whether something asynchronous finishes now, although nobody needs it yet."""
        return False


class OneByOne(Schedule):
    """One warp or warpgroup at a time, at the first basic block where it stands; `seed` None: the last one first."""

    def __init__(self, machine: Machine, flow: Flow, seed: int | None) -> None:
        self.machine = machine
        opcodes = {each.opcode for block in flow.blocks for each in block.instructions}
        self.unit = WARPGROUP if any(opcode.startswith(("wgmma", "setmaxnreg")) for opcode in opcodes) else 1
        self._random = None if seed is None else np.random.default_rng(seed)
        self.by_chance = seed is not None

    def take(self, pending: Pending) -> tuple[int, BoolArray | None]:
        """One unit's lanes of the first block in which it has any."""
        warps = np.zeros(self.machine.shape[:2], np.bool_)
        for mask in pending.values():
            lanes = self.machine.live if mask is None else mask
            warps |= np.logical_or.reduce(lanes, axis=2)
        could = np.argwhere(warps)
        block, warp = could[-1 if self._random is None else self._random.integers(len(could))]
        unit = np.zeros((*self.machine.shape[:2], 1), np.bool_)
        first = int(warp) // self.unit * self.unit
        unit[block, first : first + self.unit] = True
        for index in sorted(pending):
            mask = pending[index]
            lanes = self.machine.live if mask is None else mask
            mine = lanes & unit
            if mine.any():
                rest = lanes & ~unit
                del pending[index]
                if rest.any():
                    pending[index] = rest
                return index, mine
        raise AssertionError(pending)  # the unit was chosen because it has lanes

    def early(self) -> bool:
        """Now and then, where the order is by chance."""
        return self._random is not None and bool(self._random.random() < EARLY)


def schedule_of(wanted: str | int, machine: Machine, flow: Flow) -> Schedule:
    """The schedule that a launch asks for: a word or a seed. Fails: (arguments) anything else."""
    if wanted in ("together", ELECT_LAST):
        return Schedule()
    if wanted == REVERSE:
        return OneByOne(machine, flow, None)
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted >= 0:
        return OneByOne(machine, flow, wanted)
    expected = "'together', 'reverse', 'elect-last' or a seed, a whole number from 0"
    raise EmulationError("arguments", "schedule of a launch", path=machine.path, expected=expected, found=repr(wanted))


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
def control(step: FullStep) -> None:
    """Rows of the instructions that `Engine` and `Barriers` carry out themselves."""
    step.fail("unsupported", "a control instruction inside a basic block")


@dataclass(frozen=True, eq=False)
class Spinning:
    """Lanes that came back to the values that they had, while nobody stored anything: they wait for others.

    Attributes:
        step: the last instruction of their round.
        block: where they go on.
        lanes: those; None: everybody.
        changes: how often memory may have changed by then.
    """

    step: Step
    block: int
    lanes: BoolArray | None
    changes: tuple[int, int]


def _harmless(instruction: Instruction) -> bool:
    """Whether it may be executed again and again without a change of anything but registers."""
    return instruction.opcode.startswith(HARMLESS) or ROWS[instruction.opcode].kind == "lane"


def _same_bits(one: Array | None, two: Array | None) -> bool:
    """Whether two values (masks, None: everybody) are alike; -0 and 0 are not, and NaN is."""
    if one is two or one is None or two is None:
        return one is two
    return one.shape == two.shape and one.tobytes() == two.tobytes()


class Engine:
    """One slice of the grid on its way through the program."""

    def __init__(
        self,
        machine: FullMachine,
        flow: Flow,
        max_instructions: int,
        progress: Progress | None,
        *,
        track_undefined: bool = True,
        schedule: str | int = "together",
    ) -> None:
        self.machine = machine
        self.undefined = Undefined(machine) if track_undefined else None
        machine.undefined = self.undefined.born if self.undefined else None
        self.flow = flow
        self.schedule = schedule_of(schedule, machine, flow)
        machine.elects_last = schedule == ELECT_LAST
        self.max_instructions = max_instructions
        self._next_look = min(FIRST_LOOK, max_instructions)  # instructions
        self._seen: tuple[list[object], list[Array | None]] | None = None  # what `_look` saw first, and what is left
        self._rounds = 0
        self._spinning: list[Spinning] = []
        self._stores = 0  # basic blocks that ran and may change memory
        self._stored: dict[int, bool] = {}  # by basic block
        self.progress = progress
        self.barriers = Barriers(machine, machine.observers)
        self.waits = Waits(machine, flow.unheard, flow.retried)
        self.pending: dict[int, BoolArray | None] = {}
        self._compiled: dict[int, list[Operation]] = {}
        self._terminators: dict[int, Step] = {}

    def run(self) -> None:
        """Runs until every thread has exited.

        Fails: whatever the program does wrong, a deadlock, or a spent instruction budget.
        """
        if not self.flow.blocks:
            return
        self._arrive(0, None if self.machine.exists.all() else self.machine.exists)
        with np.errstate(all="ignore"):
            while (chosen := self._take()) or self._unblock():
                if chosen is None:
                    continue
                self._run_block(self.flow.blocks[chosen[0]], chosen[1])
                if self.schedule.early():
                    self.machine.deferred.advance()
                if self.waits.suspended:
                    self._wake()
        self.machine.bulk.finish()
        self.machine.mbarriers.finish()  # errors of what a correct program does not leave behind
        self.machine.register_pool.finish()
        self.machine.warpgroups.same_order.finish()

    def _take(self) -> tuple[int, BoolArray | None] | None:
        """The next basic block and its lanes; None when nobody can go on."""
        if self.waits.suspended and self.pending:
            free, held = self.waits.parted(self.pending)
            if held:
                chosen = self.schedule.take(free) if free else None
                self.pending = held
                for index, lanes in free.items():
                    self._arrive(index, lanes)
                return chosen
        return self.schedule.take(self.pending) if self.pending else None

    def _unblock(self) -> bool:
        """When no thread can go on: lets something asynchronous finish, then waits time out; False: all have exited.

        Fails: a deadlock.
        """
        if self._look_again(self._changes):
            return True
        while self.machine.deferred.advance():
            if self._wake() or self._spinning:
                self._look_again(None)
                return True
        timed_out = self.waits.timed_out()
        for waiting in timed_out:
            self._leave_wait(self.flow.blocks[waiting.block], waiting.step.lanes())
        if not timed_out and self.pending:  # lanes that would wait for others of their warp, who may wait for them
            index, mask = self.schedule.take(self.pending)
            try:
                self._run_block(self.flow.blocks[index], mask)
            except EmulationError as error:
                if error.kind in ("divergent-warp", "divergent-barrier"):  # they need those who wait
                    refuse(self.waits, self.barriers)
                raise
            self._wake()
            return True  # even if those have exited: others wait
        if not timed_out and self._spinning:
            what = "endless loop: all values are as they were a round before, and nobody else can store anything"
            hint = "who stores what this loop reads, and what does it wait for?"
            self._spinning[0].step.fail("endless-loop", what, hint=hint)
        if not timed_out:
            refuse(self.waits, self.barriers)
        return bool(timed_out or self.pending)

    @property
    def _changes(self) -> tuple[int, int]:
        """How often memory may have changed."""
        return self._stores, self.machine.swaps

    def _look_again(self, changes: tuple[int, int] | None) -> bool:
        """Spinning lanes go on if what they read may have changed since they were set aside; whether there are any."""
        stale = [one for one in self._spinning if one.changes != changes]
        self._spinning = [one for one in self._spinning if one.changes == changes]
        for one in stale:
            self._arrive(one.block, one.lanes)
        return bool(stale)

    def _wake(self) -> bool:
        """Lanes whose wait is over look again; whether there are any."""
        ready = self.waits.ready()
        for index, lanes in ready:
            self._arrive(index, lanes)
        return bool(ready)

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

    def _exit(self, mask: BoolArray | None, by: Instruction | None = None) -> None:
        gone = self.machine.exists if mask is None else mask
        self.machine.live = self.machine.live & ~gone
        self.machine.arrivals += 1
        for observer in self.machine.observers:
            observer.exited(gone, by)
        for index, lanes in self.barriers.after_exit():
            self._arrive(index, lanes)

    def _run_block(self, block: Block, mask: BoolArray | None) -> None:
        machine = self.machine
        if block.terminator is None or not waits(block.terminator.opcode):  # a wait counts when it is over
            for observer in machine.observers:
                observer.block(block, mask)
        operations = self._compiled.get(block.index)
        if operations is None:
            operations = self._compiled[block.index] = compile_block(machine, block)
        self._run(operations, mask)
        machine.issued += len(block.instructions)
        if self.progress is not None:
            self.progress(len(block.instructions) * machine.shape[0] * machine.shape[1])
        changes = self._stored.get(block.index)
        if changes is None:
            changes = self._stored[block.index] = not all(map(_harmless, block.instructions))
        self._stores += changes
        if machine.issued > self._next_look and self._look(block, mask):
            return
        if self.undefined is None or not self.undefined.tracking:
            self._leave(block, mask)
            return
        self.undefined.leave(block.terminator, mask)
        self._leave(block, mask)
        self.undefined.settle()

    def _look(self, block: Block, mask: BoolArray | None) -> bool:
        """Compares with what was there some basic blocks ago: from the same state on, the same happens again.

        Then the lanes are set aside, and others run until something has changed; whether they were.

        Fails: (budget) more instructions than allowed.
        """
        if not block.instructions:  # a latch
            return False
        machine, step = self.machine, Step(self.machine, block.instructions[-1])
        step.mask = mask
        if machine.issued > self.max_instructions:
            what = "the instruction budget is spent: an endless loop, or a launch larger than foreseen"
            hint = "raise --max-instructions (max_instructions) if the program is known to end"
            expected = f"at most {self.max_instructions} instructions"
            step.fail("budget", what, expected=expected, found=machine.issued, hint=hint)
        places = [(block.index, mask), *sorted(self.pending.items())]
        numbers: list[object] = [machine.swaps, *(index for index, _ in places)]
        values = [*(lanes for _, lanes in places), *machine.registers]
        marked = self.undefined is not None and self.undefined.tracking
        chance = isinstance(self.schedule, OneByOne) and self.schedule.by_chance
        if marked or chance or self._stored[block.index]:
            self._rounds = 0
        elif self._seen is None:
            self._seen, self._next_look, self._rounds = (numbers, values), 0, ROUND  # look at each block from now on
        elif numbers == self._seen[0] and all(map(_same_bits, values, self._seen[1])):
            others, self.pending = self.pending, {}
            self._leave(block, mask)
            self._spinning += [Spinning(step, *place, self._changes) for place in self.pending.items()]
            self.pending = others
            self._seen, self._next_look = None, min(self.max_instructions, machine.issued + NEXT_LOOK)
            return True
        self._rounds -= 1
        if self._rounds < 0:
            self._seen, self._next_look = None, min(self.max_instructions, 2 * machine.issued)
        return False

    def _run(self, operations: list[Operation], mask: BoolArray | None) -> None:
        """Runs a block's instructions; those after the first undefined value, if there is one, with its marks."""
        machine, undefined = self.machine, self.undefined
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
                undefined.forget(operation.dead)
                for slot, blank in operation.dying:
                    machine.registers[slot] = blank

    def _leave(self, block: Block, mask: BoolArray | None) -> None:
        """Sends the lanes of a finished block on, as its terminator says."""
        terminator = block.terminator
        if terminator is None:
            self._arrive(block.following, mask)
            return
        chosen, some = guard_mask(self.machine, terminator, mask)
        if not some:
            self._arrive(block.following, mask)
            return
        if chosen is not None and chosen is not mask:  # lanes that do not follow the terminator
            rest = ~chosen if mask is None else mask & ~chosen
            if rest.any():
                self._arrive(block.following, rest)
        first = word(terminator.opcode)
        if first == "bra":
            self._arrive(block.target, chosen)
        elif first in ("ret", "exit"):
            self._exit(chosen, terminator)
        elif waits(terminator.opcode):
            self._wait(block, chosen)
        elif first in BARRIERS:
            self._barrier(block, chosen)
        else:
            step = Step(self.machine, terminator)
            step.mask = chosen
            step.fail("trap", f"the program executed {terminator.opcode}")

    def _barrier(self, block: Block, mask: BoolArray | None) -> None:
        step = self._terminators.get(block.index)
        if step is None or step.mask is not None:  # a step that waits at a barrier keeps its mask: take a new one
            step = Step(self.machine, block.instructions[-1])
            if mask is None:
                self._terminators[block.index] = step
        step.mask = mask
        for index, lanes in self.barriers.reach(step, block.following):
            self._arrive(index, lanes)

    def _wait(self, block: Block, mask: BoolArray | None) -> None:
        step = Step(self.machine, block.instructions[-1])
        step.mask = mask
        done = self.waits.reach(step, block)
        if done is not None:
            self._leave_wait(block, done)

    def _leave_wait(self, block: Block, lanes: BoolArray) -> None:
        """A wait has an answer for these lanes: now it counts as executed, and they go on."""
        for observer in self.machine.observers:
            observer.block(block, lanes)
        self._arrive(block.following, lanes)
