"""Threads that wait until something is complete (an mbarrier's phase, a cluster's barrier, registers), and deadlocks.

``mbarrier.try_wait`` and ``test_wait`` may answer true or, at any time before the phase is complete, false. Here they
answer true once it is, and false only when no thread of the slice can go on otherwise and nothing asynchronous is left
that could: a program may look at one barrier and do something else. When `ROUNDS` such answers in a row have changed
nothing, all further ones would not either: that is a deadlock.

A poll whose answer nobody looks at is told false at once: it waits for nothing, and orders nothing.

A thread whose phase has completed looks again when its turn comes. One that comes too late, after the next phase has
completed as well, waits on, as on a GPU.

The report of a deadlock describes the first block that stands still, with the other blocks of its cluster, and counts
the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ptxemu.machine.barriers import Barriers, ClusterBarrier
from ptxemu.machine.control import Block
from ptxemu.machine.core import Machine, Step
from ptxemu.machine.mbarriers import Mbarrier
from ptxemu.machine.register_pool import RegisterPool
from ptxemu.machine.state import FullMachine
from ptxemu.machine.warpgroups import WarpgroupFence
from ptxemu.syntax.tree import Register
from ptxemu.values import Array, BoolArray, constant

ROUNDS = 8  # times that every waiting thread is told false before the program counts as dead


@dataclass(eq=False)
class Suspended:
    """Threads that wait at one instruction.

    Attributes:
        step: the instruction; its mask are the lanes.
        block: index of the basic block that holds it alone.
        torn: whether lanes of their warps are elsewhere.
    """

    step: Step
    block: int
    torn: bool


@dataclass
class Waits:
    """Who waits on mbarriers in a slice."""

    machine: FullMachine
    unheard: frozenset[int] = frozenset()  # `Flow.unheard`
    retried: frozenset[int] = frozenset()  # `Flow.retried`
    suspended: list[Suspended] = field(default_factory=list)
    _seen: int = 0  # the machine's progress when everybody was asked last
    _rounds: int = 0
    _progress: int = -1  # the machine's progress when the last round began

    def parted(
        self, pending: Mapping[int, BoolArray | None]
    ) -> tuple[dict[int, BoolArray | None], dict[int, BoolArray | None]]:
        """Lanes by basic block as those who may go on and those who wait for others of their warp.

        Lanes of a warp that parted meet again: those who are further on in the order wait until the others, one of whom
        waits for a phase, have caught up. Where nobody else can go on they run ahead all the same.
        """
        free, held = dict(pending), dict[int, "BoolArray | None"]()
        for each in self.suspended:
            if not each.torn:
                continue
            warps = np.logical_or.reduce(each.step.lanes(), axis=2, keepdims=True)
            for index in [index for index in free if index > each.block]:
                mask = free[index]
                lanes = self.machine.live if mask is None else mask
                late = lanes & warps
                if late.any():
                    before = held.get(index)
                    held[index] = late if before is None else before | late
                    rest = lanes & ~warps
                    free[index] = rest
                    if not rest.any():
                        del free[index]
        return free, held

    def reach(self, step: Step, block: Block) -> BoolArray | None:
        """Lanes of `step.mask` come to a wait; returns those that may go on, whose result is written, if any."""
        lanes = step.lanes()
        done = self._done(step)
        if id(step.instruction) in self.unheard:
            self._answer(step, lanes, answer=False)
            return lanes
        rest = lanes & ~done
        if rest.any():
            waiting = step.of(rest)
            apart = self.machine.live & ~rest & np.logical_or.reduce(rest, axis=2, keepdims=True)
            self.suspended.append(Suspended(waiting, block.index, torn=bool(apart.any())))
        if not done.any():
            return None
        self._go_on(step, done)
        return done

    def ready(self) -> list[tuple[int, BoolArray]]:
        """(basic block, lanes) of those who have to look again because their phase is complete."""
        progress = self.machine.progress()
        if not self.suspended or self._seen == progress:
            return []
        self._seen = progress
        found: list[tuple[int, BoolArray]] = []
        kept: list[Suspended] = []
        for each in self.suspended:
            done = self._done(each.step)
            if done.any():
                found.append((each.block, done))
                each.step.mask = each.step.lanes() & ~done
            if each.step.mask is not None and each.step.mask.any():
                kept.append(each)
        self.suspended = kept
        return found

    def timed_out(self) -> list[Suspended]:
        """All who wait on mbarriers, told false; none when that has been in vain."""
        progress = self.machine.progress()
        if progress != self._progress:
            self._progress, self._rounds = progress, 0
        found = [each for each in self.suspended if self.place(each.step) is None]
        if not found or self._rounds == ROUNDS:
            return []
        self._rounds += 1
        for each in found:
            self._answer(each.step, each.step.lanes(), answer=False)
            for observer in self.machine.observers:
                observer.polled(each.step)
        self.suspended = [each for each in self.suspended if each not in found]
        return found

    def place(self, step: Step) -> ClusterBarrier | RegisterPool | WarpgroupFence | None:
        """What a wait that has no answer waits for; None: an mbarrier."""
        opcode = step.instruction.opcode
        if opcode.startswith("mbarrier"):
            return None
        if opcode.startswith("wgmma"):
            return self.machine.fence
        return self.machine.register_pool if opcode.startswith("setmaxnreg") else self.machine.cluster_barrier

    def _done(self, step: Step) -> BoolArray:
        """Lanes of `step.mask` whose phase is complete, of the full shape."""
        if (place := self.place(step)) is not None:
            return place.completed(step)
        mbarriers = self.machine.mbarriers
        targets = mbarriers.targets(step, step.address(1), own=True)
        parity = state = None
        if ".parity" in step.instruction.opcode:
            given = step.source(2, "u32")
            hint = "the parity of a phase is its number's lowest bit: and.b32 with 1, or % 2"
            step.refuse(given > 1, "mbarrier", "parity of a phase", expected="0 or 1", found=given, hint=hint)
            parity = self.machine.full(given)[targets.lanes].astype(np.int64)
        else:
            state = self.machine.full(step.source(2, "b64"))[targets.lanes]
        done = np.zeros(self.machine.shape, np.bool_)
        done[targets.lanes] = mbarriers.completed(step, targets, parity, state)
        return done

    def _go_on(self, step: Step, lanes: BoolArray) -> None:
        """Lanes leave the wait for good."""
        if (place := self.place(step)) is not None:
            place.leave(step, lanes)
            return
        self._answer(step, lanes, answer=True)
        if self.machine.observers:
            targets = self.machine.mbarriers.targets(step, step.address(1), lanes)
            for observer in self.machine.observers:
                observer.mbarrier(step, targets, "wait")
                if id(step.instruction) not in self.retried:
                    observer.polled(step)

    @staticmethod
    def _answer(step: Step, lanes: BoolArray, *, answer: bool) -> None:
        if isinstance(step.instruction.operands[0], Register):
            step.of(lanes).write(0, constant(answer, "pred"))


SITUATIONS = {
    "mbarrier": "threads wait for a phase of an mbarrier that never completes",
    "barrier": "threads wait at the cluster's barrier for others that never reach it",
    "setmaxnreg": "warps wait for registers that nobody gives back",
    "wgmma": "warps wait at wgmma.fence for others of their warpgroup",
}
HINTS = {
    "mbarrier": "a phase needs all arrivals and bytes that the mbarrier expects: check counts, parity and who arrives",
    "barrier": "every thread of the cluster that has not exited has to come to barrier.cluster.arrive",
    "wgmma": "all four warps of a warpgroup execute the same wgmma.fence; none may have exited",
    "setmaxnreg": "setmaxnreg.dec of other warpgroups has to give back what setmaxnreg.inc takes",
}


def refuse(waits: Waits, barriers: Barriers) -> None:
    """Raises the error of threads that wait although nothing can move any more.

    Fails: "deadlock", unless nobody waits.
    """
    if not waits.suspended:
        barriers.deadlock()
        return
    machine = waits.machine
    waiting = np.zeros(machine.shape, np.bool_)
    for each in waits.suspended:
        waiting |= each.step.lanes()
    stuck = np.flatnonzero(waiting.any(axis=(1, 2)))
    size = machine.cluster_size
    first = int(stuck[0]) - int(stuck[0]) % size
    blocks = np.arange(first, first + size)
    stories = [story for each in waits.suspended for story in _stories(waits, each, blocks)]
    stories += [story for block in blocks for story in barriers.stories(int(block))]
    gone = int((machine.exists[blocks] & ~machine.live[blocks]).sum())
    stories += [f"threads that have exited: {gone}"] if gone else []
    everybody = waiting | barriers.waiting_lanes()
    everybody[blocks] = False
    more = int(everybody.any(axis=(1, 2)).sum())
    stories += [f"other blocks that stand still: {more}"] if more else []
    chosen = next(each.step for each in waits.suspended if each.step.lanes()[blocks].any())
    kind = chosen.instruction.opcode.partition(".")[0]
    lanes, found = chosen.lanes() & machine.only(blocks), "; ".join(stories)
    chosen.fail("deadlock", SITUATIONS[kind], lanes=lanes, found=found, hint=HINTS[kind])


def _stories(waits: Waits, waiting: Suspended, blocks: Array) -> list[str]:
    """What the threads of some blocks wait for at one instruction, one sentence for each thing waited for."""
    machine, lanes = waits.machine, waiting.step.lanes() & waits.machine.only(blocks)
    if not lanes.any():
        return []
    step = waiting.step.of(lanes)
    if (place := waits.place(step)) is not None:
        return [f"{_who(machine, np.nonzero(lanes))} at {step.instruction.place}: {place.story(step)}"]
    targets, found = machine.mbarriers.targets(step, step.address(1)), []
    parity = machine.full(step.source(2, "u32")) if ".parity" in step.instruction.opcode else None
    for offset, entries in targets.by_offset():
        for block in np.unique(targets.blocks[entries]):
            mine = entries[targets.blocks[entries] == block]
            who = tuple(axis[mine] for axis in targets.lanes)
            phase = "the phase of a state"
            if parity is not None:
                phase = f"parity {', '.join(str(int(each)) for each in np.unique(parity[who]))}"
            counts = _counts(machine.mbarriers.at[offset], int(block))
            found.append(f"{_who(machine, who)} at {step.instruction.place}: mbarrier {offset:#x}, {phase}; {counts}")
    return found


def _counts(slot: Mbarrier, block: int) -> str:
    """Where the mbarrier of a block stands, and who has arrived."""
    phase = int(slot.phase[block])
    text = (
        f"it is in phase {phase}, {max(0, int(slot.pending[block]))} of {int(slot.expected[block])} arrivals and "
        f"{int(slot.bytes[block])} bytes outstanding"
    )
    now, before = slot.arrived(block, phase), slot.arrived(block, phase - 1)
    text += f", arrived so far: {now or 'nobody'}"
    return text + (f", in the phase before: {before}" if before and before != now else "")


def _who(machine: Machine, lanes: tuple[Array, ...]) -> str:
    """Warps by their blocks: ``warps 4 to 7 of block (0, 0, 0)``."""
    text = []
    for block in np.unique(lanes[0]):
        warps = np.unique(lanes[1][lanes[0] == block])
        numbers = ", ".join(str(int(each)) for each in warps)
        if warps.size > 1 and warps[-1] - warps[0] == warps.size - 1:
            numbers = f"{int(warps[0])} to {int(warps[-1])}"
        text.append(f"warp{'s' if warps.size > 1 else ''} {numbers} of block {machine.block_index(block)}")
    return ", ".join(text)
