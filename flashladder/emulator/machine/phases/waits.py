"""Threads that wait on an mbarrier: they stand still until its phase completes, instead of spinning.

``mbarrier.try_wait`` and ``test_wait`` may answer true or, at any time before the phase is complete, false. Here they
answer true once it is, and false only when no thread of the slice can go on otherwise and nothing asynchronous is left
that could: a program may look at one barrier and do something else. When `ROUNDS` such answers in a row have
changed nothing, all further ones would not either: that is a deadlock.

A thread whose phase has completed looks again when its turn comes. One that comes too late, after the next phase has
completed as well, waits on, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from flashladder.emulator.machine.cluster_barrier import ClusterBarrier
from flashladder.emulator.machine.phases.mbarrier_targets import targets_of
from flashladder.emulator.machine.register_pool import RegisterPool
from flashladder.emulator.machine.state import Machine, Step
from flashladder.emulator.machine.warpgroup.warpgroup_fence import WarpgroupFence
from flashladder.emulator.syntax.tree import Register
from flashladder.emulator.values import Array, BoolArray, constant

ROUNDS = 8  # times that every waiting thread is told false before the program counts as dead


@dataclass(eq=False)
class Suspended:
    """Threads that wait at one instruction.

    Attributes:
        step: the instruction; its mask are the lanes.
        block: index of the basic block that holds it alone.
        following: index of the one in which they go on.
        torn: whether lanes of their warps are elsewhere.
    """

    step: Step
    block: int
    following: int
    torn: bool


@dataclass
class Waits:
    """Who waits on mbarriers in a slice."""

    machine: Machine
    suspended: list[Suspended] = field(default_factory=list)
    _seen: int = 0  # the machine's progress when everybody was asked last
    _rounds: int = 0
    _progress: int = -1  # the machine's progress when the last round began

    def __post_init__(self) -> None:
        """Nobody has come to a ``wgmma.fence`` yet."""
        self.fence = WarpgroupFence(self.machine)

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

    def reach(self, step: Step, block: int, following: int) -> BoolArray | None:
        """Lanes of `step.mask` come to a wait; returns those that may go on, whose result is written, if any."""
        lanes = step.lanes()
        done = self._done(step)
        rest = lanes & ~done
        if rest.any():
            waiting = Step(self.machine, step.instruction)
            waiting.mask = rest
            apart = self.machine.live & ~rest & np.logical_or.reduce(rest, axis=2, keepdims=True)
            self.suspended.append(Suspended(waiting, block, following, torn=bool(apart.any())))
        if not done.any():
            return None
        self._go_on(step, done)
        return done

    def woken(self) -> list[tuple[int, BoolArray]]:
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
        self.suspended = [each for each in self.suspended if each not in found]
        return found

    def place(self, step: Step) -> ClusterBarrier | RegisterPool | WarpgroupFence | None:
        """What a wait that has no answer waits for; None: an mbarrier."""
        opcode = step.instruction.opcode
        if opcode.startswith("mbarrier"):
            return None
        if opcode.startswith("wgmma"):
            return self.fence
        return self.machine.register_pool if opcode.startswith("setmaxnreg") else self.machine.cluster_barrier

    def _done(self, step: Step) -> BoolArray:
        """Lanes of `step.mask` whose phase is complete, of the full shape."""
        if (place := self.place(step)) is not None:
            return place.completed(step)
        mbarriers = self.machine.mbarriers
        targets = targets_of(step, step.address(1), own=True)
        parity = state = None
        if ".parity" in step.instruction.opcode:
            parity = self.machine.full(step.source(2, "u32"))[targets.lanes].astype(np.int64)
            self._check_parity(step)
        else:
            state = self.machine.full(step.source(2, "b64"))[targets.lanes]
        done = np.zeros(self.machine.shape, np.bool_)
        done[targets.lanes] = mbarriers.completed(step, targets, parity, state)
        return done

    @staticmethod
    def _check_parity(step: Step) -> None:
        parity: Array = step.source(2, "u32")
        wrong = step.lanes() & (parity > 1)
        if wrong.any():
            found = int(step.machine.full(parity)[wrong][0])
            hint = "the parity of a phase is its number's lowest bit: and.b32 with 1, or % 2"
            step.fail("mbarrier", "parity of a phase", lanes=wrong, expected="0 or 1", found=found, hint=hint)

    def _go_on(self, step: Step, lanes: BoolArray) -> None:
        """Lanes leave the wait for good."""
        if (place := self.place(step)) is not None:
            place.leave(step, lanes)
            return
        self._answer(step, lanes, answer=True)
        if self.machine.observers:
            targets = targets_of(step, step.address(1), lanes)
            for observer in self.machine.observers:
                observer.mbarrier(step, targets, "wait")

    @staticmethod
    def _answer(step: Step, lanes: BoolArray, *, answer: bool) -> None:
        if isinstance(step.instruction.operands[0], Register):
            told = Step(step.machine, step.instruction)
            told.mask = lanes
            told.write(0, constant(answer, "pred"))
