"""Barriers of a CTA and of a cluster: who has arrived, who goes on, and barriers that cannot complete.

``bar.sync a{, b}``, ``barrier{.cta}.sync{.aligned} a{, b}``, ``bar.arrive a, b``, ``bar.red``: sixteen barriers per
block; without a thread count all threads of the block take part. A barrier counts arrivals: a warp may arrive and then
wait at the same one. Warps arrive as 32 threads, the last one of a block too, whose size need not be a multiple of 32.
Warps and blocks may name different barriers in one instruction (a register as the number). The ISA counts all threads
of the block: one that has exited never arrives. GPUs from sm_70 on wait for those that are left;
`Machine.exited_arrive` does as they do.

``barrier.cluster``: every thread of the cluster arrives, then waits; one that has exited counts as arrived. A second
arrival without a wait between, or a wait without an arrival, is an error: the ISA leaves both undefined.

Source: PTX ISA 9.0, 9.7.13.1 (bar, barrier), 9.7.13.4 (barrier.cluster).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from ptxemu.machine.core import Machine, Step
from ptxemu.machine.observer import Observer
from ptxemu.values import WARP, Array, BoolArray, constant

N_BARRIERS = 16
Released: TypeAlias = tuple[int | None, BoolArray | None]  # where lanes go on: a basic block (None: the end)
EXITED = "; one that exited never does, unless --exited-arrive (exited_arrive=True) asks for what GPUs from sm_70 on do"


@dataclass
class Waiting:
    """Threads that wait at one barrier instruction until its barrier completes."""

    step: Step
    lanes: BoolArray  # full shape
    following: int | None  # index of the basic block in which they go on; None: the program ends
    predicate: BoolArray | None  # of bar.red


@dataclass
class Barriers:
    """The named barriers of all blocks of a slice."""

    machine: Machine
    observers: Sequence[Observer] = ()
    waiting: dict[int, list[Waiting]] = field(default_factory=dict)
    arrived: dict[int, BoolArray] = field(default_factory=dict)  # threads that signalled with bar.arrive, full shape
    expected: dict[int, Array] = field(default_factory=dict)  # threads that complete it, per block; 0: nobody came yet
    counted: set[int] = field(default_factory=set)  # barriers whose last arrival named a thread count
    twice: dict[int, Array] = field(default_factory=dict)  # how many of its threads came again, per block

    def reach(self, step: Step, following: int | None) -> list[Released]:
        """Threads of `step.mask` arrive; returns (basic block, lanes) for everybody who may go on now."""
        self._check_alignment(step)
        self.machine.arrivals += 1
        number, count = self._operands(step)
        if number.size == 1 and count.size == 1:
            return self._meet(step, following, int(number.item()), int(count.item()))
        active = step.lanes()
        numbers, counts = step.machine.full(number), step.machine.full(count)
        released: list[Released] = []
        for pair in np.unique(np.stack([numbers[active], counts[active]]), axis=1).T:
            part = step.of(active & (numbers == pair[0]) & (counts == pair[1]))
            self._check_alignment(part)
            released += self._meet(part, following, int(pair[0]), int(pair[1]))
        return released

    def _meet(self, step: Step, following: int | None, number: int, count: int) -> list[Released]:
        """Threads arrive at one barrier; `count` 0 stands for all threads of the block."""
        opcode = step.instruction.opcode
        if not 0 <= number < N_BARRIERS:
            step.fail("unsupported", "no such barrier", expected=f"0 to {N_BARRIERS - 1}", found=number)
        if step.mask is None and not self.waiting and not self.arrived and ".sync" in opcode and count == 0:
            for observer in self.observers:
                observer.barrier(step, number, step.lanes())
            return [(following, None)]
        lanes = step.lanes().copy()
        self._expect(step, number, count, lanes)
        signalled = self.arrived.get(number)
        if signalled is not None and ".arrive" in opcode:
            what = f"a thread that has arrived at barrier {number} arrives again before the barrier is complete"
            step.refuse(signalled & lanes, "divergent-barrier", what)
        elif signalled is not None:  # it waits now: the barrier counts arrivals, not threads
            self.twice[number] = self.twice.get(number, 0) + self._threads(signalled & lanes)
        if ".arrive" in opcode:
            self.arrived[number] = lanes if signalled is None else signalled | lanes
            for observer in self.observers:
                observer.barrier_arrive(step, number, lanes)
            return [(following, step.mask), *self._release(step, number)]
        predicate = step.source(len(step.instruction.operands) - 1, "pred") if ".red" in opcode else None
        self.waiting.setdefault(number, []).append(Waiting(step, lanes, following, predicate))
        return self._release(step, number)

    @staticmethod
    def _operands(step: Step) -> tuple[Array, Array]:
        """Barrier number and thread count (0: all threads of the block), which may differ between warps and blocks."""
        reduces = ".red" in step.instruction.opcode
        end = len(step.instruction.operands) - (1 if reduces else 0)
        values = [step.source(index, "u32") for index in range(1 if reduces else 0, end)]
        number, count = [*values, constant(0, "u32"), constant(0, "u32")][:2]
        if len(values) > 1:
            wrong = (count % WARP != 0) | (count == 0)
            step.refuse(wrong, "unsupported", "thread count of a barrier", expected="a multiple of 32", found=count)
        return number, count

    def _check_alignment(self, step: Step) -> None:
        """An aligned barrier needs the whole warp: lanes elsewhere, or exited, make it undefined."""
        if step.instruction.opcode.startswith("barrier") and ".aligned" not in step.instruction.opcode:
            return
        if step.mask is None:
            return
        lanes = step.lanes()
        needed = self.machine.live if self.machine.exited_arrive else self.machine.exists
        missing = needed & ~lanes & lanes.any(axis=2, keepdims=True)
        if missing.any():
            gone = missing & ~self.machine.live
            b, w, i = (int(axis) for axis in np.argwhere(missing)[0])
            state = "has exited" if gone[b, w, i] else "took another path"
            what = f"barrier reached by part of a warp: lane {i} of warp {w} {state}"
            hint = "every thread of a warp must reach an aligned barrier together: move it out of the branch"
            hint += EXITED if gone[b, w, i] else ""
            step.fail("divergent-barrier", what, lanes=lanes & self.machine.only(b, w), hint=hint)

    def _expect(self, step: Step, number: int, count: int, lanes: BoolArray) -> None:
        threads = count or WARP * self.machine.shape[1]
        known = self.expected.setdefault(number, np.zeros(self.machine.shape[0], dtype=np.int64))
        here = lanes.any(axis=(1, 2))
        other = here & (known != 0) & (known != threads)
        if other.any():
            what, least = f"barrier {number} with another thread count than those who wait at it", int(known[other][0])
            lanes = lanes & other[:, None, None]
            step.fail("divergent-barrier", what, lanes=lanes, expected=least, found=threads)
        known[here] = threads
        (self.counted.add if count else self.counted.discard)(number)

    def _everyone(self, number: int) -> BoolArray:
        """The threads that have come to a barrier and wait, or have signalled it."""
        lanes = self.arrived.get(number, np.zeros(self.machine.shape, np.bool_)).copy()
        for group in self.waiting.get(number, []):
            lanes |= group.lanes
        return lanes

    def _release(self, step: Step, number: int) -> list[Released]:
        """Blocks whose barrier is complete: their threads go on, the barrier starts afresh."""
        groups = self.waiting.get(number, [])
        everyone, absent = self._everyone(number), np.zeros(self.machine.shape, np.bool_)
        if self.machine.exited_arrive and number not in self.counted:  # exited threads count as arrived
            absent = self.machine.exists & ~self.machine.live
        arrived, expected = self._came(number, everyone | absent), self.expected[number]
        too_many = (expected > 0) & (arrived > expected)
        if too_many.any():
            most, found = int(expected[too_many][0]), int(arrived[too_many][0])
            lanes = everyone & too_many[:, None, None]
            what = f"more threads at barrier {number} than it takes"
            step.fail("divergent-barrier", what, lanes=lanes, expected=most, found=found)
        done = (expected > 0) & (arrived == expected)
        if not done.any():
            return []
        chosen = done[:, None, None]
        expected[done] = 0
        if number in self.twice:
            self.twice[number][done] = 0
        released = [(group, group.lanes & chosen) for group in groups if (group.lanes & chosen).any()]
        going = np.zeros(self.machine.shape, np.bool_)
        for group, lanes in released:
            self._reduce(group, groups, lanes, everyone)
            going |= lanes
        for observer in self.observers:
            if (absent & chosen).any():
                observer.barrier_arrive(step, number, absent & chosen)
            observer.barrier(step, number, going)
        self._forget(number, chosen)
        return [(group.following, lanes) for group, lanes in released]

    def after_exit(self) -> list[Released]:
        """Threads have exited: who may go on now because nobody else is left to wait for."""
        if not self.machine.exited_arrive:
            return []
        return [each for n in list(self.waiting) for each in self._release(self.waiting[n][0].step, n)]

    def _came(self, number: int, lanes: BoolArray) -> Array:
        """How many arrivals of these lanes a barrier has counted, (blocks,)."""
        return self._threads(lanes) + self.twice.get(number, 0)

    def _threads(self, lanes: BoolArray) -> Array:
        """How many threads of each block have arrived, (blocks,): a complete warp counts 32 even if it has fewer."""
        whole = (lanes | ~self.machine.exists).all(axis=2) & lanes.any(axis=2)
        return np.asarray(np.where(whole, WARP, lanes.sum(axis=2)).sum(axis=1))

    def _reduce(self, group: Waiting, groups: list[Waiting], lanes: BoolArray, everyone: BoolArray) -> None:
        """Gives lanes that go on the result of ``bar.red`` over all groups."""
        if group.predicate is None:
            return
        true = np.zeros(self.machine.shape, np.bool_)
        for other in groups:
            if other.predicate is not None:
                true |= other.lanes & other.predicate
        count, total = (mask.sum(axis=(1, 2), keepdims=True) for mask in (true, everyone))
        opcode = group.step.instruction.opcode
        both: Array = count == total if ".and" in opcode else count > 0
        group.step.mask = lanes
        group.step.write(0, count.astype(np.uint32) if ".popc" in opcode else both)

    def _forget(self, number: int, chosen: BoolArray) -> None:
        """Threads of these blocks no longer wait at a barrier, nor have they arrived."""
        left = [replace(group, lanes=group.lanes & ~chosen) for group in self.waiting.pop(number, [])]
        if kept := [group for group in left if group.lanes.any()]:
            self.waiting[number] = kept
        if number in self.arrived and (rest := self.arrived.pop(number) & ~chosen).any():
            self.arrived[number] = rest

    def deadlock(self) -> None:
        """Raises the error of threads that wait while nobody is left who could arrive."""
        if not self.waiting:
            return
        number, (group, *_) = next(iter(self.waiting.items()))
        b = int(np.argwhere(group.lanes)[0][0])
        exited = int((self.machine.exists[b] & ~self.machine.live[b]).sum())
        elsewhere = [
            f"{int(self._threads(each.lanes)[b])} at barrier {other} (line {each.step.instruction.line})"
            for other, groups in self.waiting.items()
            for each in groups
            if other != number and each.lanes[b].any()
        ]
        arrived = int(self._came(number, self._everyone(number))[b])
        group.step.mask = group.lanes
        what, threads = f"threads wait at barrier {number} for others that never reach it", self.expected[number][b]
        found = ", ".join([f"{arrived} arrived, {exited} exited", *elsewhere])
        hint = "every thread that the barrier counts has to come to it" + (EXITED if exited else "")
        group.step.fail("deadlock", what, expected=f"{int(threads)} threads", found=found, hint=hint)

    def waiting_lanes(self) -> BoolArray:
        """The threads that wait at any barrier, of the full shape."""
        lanes = np.zeros(self.machine.shape, np.bool_)
        for group in (group for groups in self.waiting.values() for group in groups):
            lanes |= group.lanes
        return lanes

    def stories(self, block: int) -> list[str]:
        """What threads of a block wait for, a sentence for each barrier and instruction."""
        found = []
        for number, groups in self.waiting.items():
            expected, came = int(self.expected[number][block]), int(self._came(number, self._everyone(number))[block])
            found += [
                f"{int(self._threads(group.lanes)[block])} threads of block {self.machine.block_index(block)} at "
                f"{group.step.instruction.place}: barrier {number}, {came} of {expected} threads have arrived"
                for group in groups
                if group.lanes[block].any()
            ]
        return found


class ClusterBarrier:
    """The barrier of each cluster of a slice.

    Attributes:
        arrivals, waits: how often each thread has arrived and gone on, full shape.
        phases: how often each cluster's barrier was complete, (clusters,).
    """

    def __init__(self, machine: Machine, observers: Sequence[Observer]) -> None:
        self.machine, self.observers = machine, observers
        self.arrivals = np.zeros(machine.shape, np.int64)
        self.waits = np.zeros(machine.shape, np.int64)
        self.phases = np.zeros(machine.shape[0] // machine.cluster_size, np.int64)

    def arrive(self, step: Step) -> None:
        """``barrier.cluster.arrive``. Fails: "divergent-barrier": a second arrival without a wait."""
        lanes, what = step.lanes(), "a second arrival at the cluster's barrier without a wait"
        step.refuse(self.arrivals != self.waits, "divergent-barrier", what)
        self.arrivals[lanes] += 1
        self.machine.arrivals += 1
        for observer in self.observers:
            observer.cluster_arrived(step, lanes, ordered=".relaxed" not in step.instruction.opcode)
        self.settle()

    def settle(self) -> None:
        """Completes the barriers at which every thread that has not exited has arrived."""
        came = self.arrivals > self._of_threads()
        missing = self.machine.live & ~came
        clusters = len(self.phases)
        done = np.logical_or.reduce(came.reshape(clusters, -1), axis=1)
        done &= ~np.logical_or.reduce(missing.reshape(clusters, -1), axis=1)
        if done.any():
            self.phases[done] += 1
            for observer in self.observers:
                observer.cluster_completed(done)

    def completed(self, step: Step) -> BoolArray:
        """Lanes of the step, of the full shape, that may go on.

        Fails: "divergent-barrier": a wait without an arrival.
        """
        what = "a thread waits at the cluster's barrier without having arrived"
        step.refuse(self.arrivals == self.waits, "divergent-barrier", what, hint="barrier.cluster.arrive comes first")
        self.settle()
        return np.asarray(step.lanes() & (self._of_threads() >= self.arrivals))

    def leave(self, step: Step, lanes: BoolArray) -> None:
        """These lanes go on."""
        self.waits[lanes] += 1
        for observer in self.observers:
            observer.cluster_waited(step, lanes)

    def _of_threads(self) -> Array:
        return np.repeat(self.phases, self.machine.cluster_size).reshape(-1, 1, 1)

    def story(self, step: Step) -> str:
        """Who is missing, for the report of a deadlock."""
        block = int(np.argwhere(step.lanes())[0][0])
        size = self.machine.cluster_size
        first = block - block % size
        missing = self.machine.live & (self.arrivals <= self._of_threads())
        absent = [
            f"{int(missing[peer].sum())} of block {self.machine.block_index(peer)}"
            for peer in range(first, first + size)
            if missing[peer].any()
        ]
        return f"the cluster's barrier, threads that have not arrived: {', '.join(absent) or 'none'}"
