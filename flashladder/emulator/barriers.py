"""CTA barriers: who has arrived, when a block's threads go on, and the errors of barriers that cannot complete.

``bar.sync a{, b}``, ``barrier{.cta}.sync{.aligned} a{, b}``, ``bar.arrive a, b``, ``bar.red``: PTX ISA 9.0, 9.7.13.1.
Sixteen barriers per block; without a thread count all threads of the block take part. Threads that exited never
arrive here: what hardware lets pass by accident of an implementation, the ISA does not promise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flashladder.emulator.machine import Machine, Step
from flashladder.emulator.syntax import Instruction
from flashladder.emulator.values import WARP, Array, BoolArray

N_BARRIERS = 16


@dataclass
class Waiting:
    """Threads that wait at one barrier instruction until its barrier completes."""

    step: Step
    lanes: BoolArray  # full shape
    following: int  # index of the basic block in which they go on
    predicate: BoolArray | None  # of bar.red


@dataclass
class Barriers:
    """The named barriers of all blocks of a slice."""

    machine: Machine
    waiting: dict[int, list[Waiting]] = field(default_factory=dict)
    arrived: dict[int, BoolArray] = field(default_factory=dict)  # threads that signalled with bar.arrive, full shape
    expected: dict[int, Array] = field(default_factory=dict)  # threads that complete it, per block; 0: nobody came yet

    def reach(self, step: Step, following: int) -> list[tuple[int, BoolArray | None]]:
        """Threads of `step.mask` arrive; returns (basic block, lanes) for everybody who may go on now."""
        opcode = step.instruction.opcode
        number, count = self._operands(step)
        self._check_alignment(step)
        if step.mask is None and not self.waiting and not self.arrived and ".sync" in opcode and count is None:
            for observer in self.machine.observers:
                observer.barrier(step, step.lanes())
            return [(following, None)]
        lanes = step.lanes().copy()
        self._expect(step, number, count, lanes)
        if ".arrive" in opcode:
            self.arrived[number] = self.arrived.get(number, np.zeros(self.machine.shape, np.bool_)) | lanes
            for observer in self.machine.observers:
                observer.barrier_arrive(step, number, lanes)
            return [(following, step.mask), *self._release(step, number)]
        predicate = self._predicate(step)
        self.waiting.setdefault(number, []).append(Waiting(step, lanes, following, predicate))
        return self._release(step, number)

    def _operands(self, step: Step) -> tuple[int, int | None]:
        """Barrier number and thread count (None: all threads of the block)."""
        operands = step.instruction.operands
        first = 1 if ".red" in step.instruction.opcode else 0
        last = len(operands) - (1 if first else 0)
        numbers = [self._uniform(step, index) for index in range(first, last)]
        if not numbers:
            return 0, None
        if not 0 <= numbers[0] < N_BARRIERS:
            step.fail("unsupported", "no such barrier", expected=f"0 to {N_BARRIERS - 1}", found=numbers[0])
        if len(numbers) > 1 and (numbers[1] % WARP or numbers[1] <= 0):
            step.fail("unsupported", "thread count of a barrier", expected="a multiple of 32", found=numbers[1])
        return numbers[0], numbers[1] if len(numbers) > 1 else None

    @staticmethod
    def _uniform(step: Step, index: int) -> int:
        value = step.machine.full(step.source(index, "u32"))[step.lanes()]
        if (value != value[0]).any():
            step.fail("unsupported", "a barrier number or count that differs between threads")
        return int(value[0])

    def _predicate(self, step: Step) -> BoolArray | None:
        if ".red" not in step.instruction.opcode:
            return None
        return self.machine.full(step.source(len(step.instruction.operands) - 1, "pred"))

    def _check_alignment(self, step: Step) -> None:
        """An aligned barrier needs the whole warp: lanes elsewhere, or exited, make it undefined."""
        if step.instruction.opcode.startswith("barrier") and ".aligned" not in step.instruction.opcode:
            return
        if step.mask is None:
            return
        lanes = step.lanes()
        missing = self.machine.exists & ~lanes & lanes.any(axis=2, keepdims=True)
        if missing.any():
            gone = missing & ~self.machine.live
            b, w, i = (int(axis) for axis in np.argwhere(missing)[0])
            state = "had exited" if gone[b, w, i] else "is elsewhere"
            step.fail(
                "divergent-barrier",
                f"barrier reached by part of a warp: lane {i} of warp {w} {state}",
                lanes=lanes & (np.arange(self.machine.shape[0])[:, None, None] == b),
                hint="every thread of a warp must reach an aligned barrier together",
            )

    def _expect(self, step: Step, number: int, count: int | None, lanes: BoolArray) -> None:
        threads = int(self.machine.exists[0].sum()) if count is None else count
        known = self.expected.setdefault(number, np.zeros(self.machine.shape[0], dtype=np.int64))
        here = lanes.any(axis=(1, 2))
        other = here & (known != 0) & (known != threads)
        if other.any():
            step.fail(
                "divergent-barrier",
                f"barrier {number} with another thread count than those who wait at it",
                lanes=lanes & other[:, None, None],
                expected=int(known[other][0]),
                found=threads,
            )
        known[here] = threads

    def _release(self, step: Step, number: int) -> list[tuple[int, BoolArray | None]]:
        """Blocks whose barrier is complete: their threads go on, the barrier starts afresh."""
        groups = self.waiting.get(number, [])
        signalled = self.arrived.get(number)
        everyone = np.zeros(self.machine.shape, np.bool_) if signalled is None else signalled.copy()
        for group in groups:
            everyone |= group.lanes
        arrived = everyone.sum(axis=(1, 2))
        expected = self.expected[number]
        too_many = (expected > 0) & (arrived > expected)
        if too_many.any():
            step.fail(
                "divergent-barrier",
                f"more threads at barrier {number} than it takes",
                lanes=everyone & too_many[:, None, None],
                expected=int(expected[too_many][0]),
                found=int(arrived[too_many][0]),
            )
        done = (expected > 0) & (arrived == expected)
        if not done.any():
            return []
        chosen = done[:, None, None]
        expected[done] = 0
        released = [self._resume(group, chosen, everyone) for group in groups if (group.lanes & chosen).any()]
        going = np.zeros(self.machine.shape, np.bool_)
        for _, lanes in released:
            going |= lanes
        for observer in self.machine.observers:
            observer.barrier(step, going)
        self._forget(number, chosen)
        return [(block, lanes) for block, lanes in released]

    def _resume(self, group: Waiting, chosen: BoolArray, everyone: BoolArray) -> tuple[int, BoolArray]:
        lanes = group.lanes & chosen
        if group.predicate is not None:
            members = [
                other for other in self.waiting.get(self._operands(group.step)[0], []) if other.predicate is not None
            ]
            true = np.zeros(self.machine.shape, np.bool_)
            for other in members:
                true |= other.lanes & (other.predicate if other.predicate is not None else False)
            count = true.sum(axis=(1, 2), keepdims=True)
            total = everyone.sum(axis=(1, 2), keepdims=True)
            opcode = group.step.instruction.opcode
            result: Array = count.astype(np.uint32)
            if ".and" in opcode:
                result = count == total
            elif ".or" in opcode:
                result = count > 0
            group.step.mask = lanes
            group.step.write(0, result)
        return group.following, lanes

    def _forget(self, number: int, chosen: BoolArray) -> None:
        kept = []
        for group in self.waiting.pop(number, []):
            rest = group.lanes & ~chosen
            if rest.any():
                kept.append(Waiting(group.step, rest, group.following, group.predicate))
        if kept:
            self.waiting[number] = kept
        if number in self.arrived:
            rest = self.arrived.pop(number) & ~chosen
            if rest.any():
                self.arrived[number] = rest

    def blocked(self) -> Waiting | None:
        """Somebody who waits, None when nobody does."""
        for groups in self.waiting.values():
            for group in groups:
                return group
        return None

    def deadlock(self) -> None:
        """Raises the error of threads that wait while nobody is left who could arrive."""
        group = self.blocked()
        if group is None:
            return
        number, _ = self._operands(group.step)
        b = int(np.argwhere(group.lanes)[0][0])
        arrived = sum(int(other.lanes[b].sum()) for other in self.waiting[number])
        arrived += int(self.arrived[number][b].sum()) if number in self.arrived else 0
        group.step.mask = group.lanes
        exited = int((self.machine.exists[b] & ~self.machine.live[b]).sum())
        group.step.fail(
            "deadlock",
            f"threads wait at barrier {number} for others that never reach it",
            expected=f"{int(self.expected[number][b])} threads",
            found=f"{arrived} arrived, {exited} exited",
        )


def barrier_instruction(instruction: Instruction) -> bool:
    """Whether an instruction is a CTA barrier (``bar.warp.sync`` is not)."""
    return instruction.opcode.startswith(("bar.", "barrier.")) and not instruction.opcode.startswith("bar.warp")
