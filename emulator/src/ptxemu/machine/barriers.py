"""Barriers of a CTA and of a cluster: who has arrived, who goes on, and barriers that cannot complete.

``bar.sync a{, b}``, ``barrier{.cta}.sync{.aligned} a{, b}``, ``bar.arrive a, b``, ``bar.red``: PTX ISA 9.0, 9.7.13.1.
Sixteen barriers per block; without a thread count all threads of the block take part. Warps arrive as 32 threads, the
last one of a block too, whose size need not be a multiple of 32. Warps and blocks may name different barriers in one
instruction (a register as the number), as warps with different tasks do.

The ISA counts all threads of the block, and so does the emulator: one that has exited never arrives. GPUs from sm_70 on
wait for those that are left; `Machine.exited_arrive` does as they do.

Every thread of the cluster arrives, then waits; one that has exited counts as arrived. A thread that arrives twice
without a wait between, or waits without having arrived, is an error: the ISA leaves both undefined.
Source: PTX ISA 9.0, 9.7.13.4 (barrier.cluster).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ptxemu.machine.core import Machine, Step
from ptxemu.machine.observer import Observer
from ptxemu.values import WARP, Array, BoolArray, constant

N_BARRIERS = 16
EXITED = "; one that exited never does, unless launch(exited_arrive=True) asks for what GPUs from sm_70 on do"


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
    observers: Sequence[Observer] = ()
    waiting: dict[int, list[Waiting]] = field(default_factory=dict)
    arrived: dict[int, BoolArray] = field(default_factory=dict)  # threads that signalled with bar.arrive, full shape
    expected: dict[int, Array] = field(default_factory=dict)  # threads that complete it, per block; 0: nobody came yet
    counted: set[int] = field(default_factory=set)  # barriers whose last arrival named a thread count

    def reach(self, step: Step, following: int) -> list[tuple[int, BoolArray | None]]:
        """Threads of `step.mask` arrive; returns (basic block, lanes) for everybody who may go on now."""
        self._check_alignment(step)
        self.machine.arrivals += 1
        number, count = self._operands(step)
        if number.size == 1 and count.size == 1:
            return self._meet(step, following, int(number.item()), int(count.item()))
        active = step.lanes()
        numbers, counts = step.machine.full(number), step.machine.full(count)
        released: list[tuple[int, BoolArray | None]] = []
        for pair in np.unique(np.stack([numbers[active], counts[active]]), axis=1).T:
            part = step.of(active & (numbers == pair[0]) & (counts == pair[1]))
            self._check_alignment(part)
            released += self._meet(part, following, int(pair[0]), int(pair[1]))
        return released

    def _meet(self, step: Step, following: int, number: int, count: int) -> list[tuple[int, BoolArray | None]]:
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
        if signalled is not None and (signalled & lanes).any():
            step.fail(
                "divergent-barrier",
                f"a thread that has arrived at barrier {number} comes again before the barrier is complete",
                lanes=signalled & lanes,
            )
        if ".arrive" in opcode:
            self.arrived[number] = lanes if signalled is None else signalled | lanes
            for observer in self.observers:
                observer.barrier_arrive(step, number, lanes)
            return [(following, step.mask), *self._release(step, number)]
        self.waiting.setdefault(number, []).append(Waiting(step, lanes, following, self._predicate(step)))
        return self._release(step, number)

    @staticmethod
    def _operands(step: Step) -> tuple[Array, Array]:
        """Barrier number and thread count (0: all threads of the block), which may differ between warps and blocks."""
        reduces = ".red" in step.instruction.opcode
        end = len(step.instruction.operands) - (1 if reduces else 0)
        values = [step.source(index, "u32") for index in range(1 if reduces else 0, end)]
        if len(values) == 1 or not values:
            return values[0] if values else constant(0, "u32"), constant(0, "u32")
        wrong = (values[1] % WARP != 0) | (values[1] == 0)
        lanes = step.lanes() & wrong
        if lanes.any():
            found = int(step.machine.full(values[1])[lanes][0])
            step.fail("unsupported", "thread count of a barrier", expected="a multiple of 32", lanes=wrong, found=found)
        return values[0], values[1]

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
        needed = self.machine.live if self.machine.exited_arrive else self.machine.exists
        missing = needed & ~lanes & lanes.any(axis=2, keepdims=True)
        if missing.any():
            gone = missing & ~self.machine.live
            b, w, i = (int(axis) for axis in np.argwhere(missing)[0])
            state = "has exited" if gone[b, w, i] else "took another path"
            step.fail(
                "divergent-barrier",
                f"barrier reached by part of a warp: lane {i} of warp {w} {state}",
                lanes=_one_warp(lanes, b, w),
                hint="every thread of a warp must reach an aligned barrier together: move it out of the branch"
                + (EXITED if gone[b, w, i] else ""),
            )

    def _expect(self, step: Step, number: int, count: int, lanes: BoolArray) -> None:
        threads = count or WARP * self.machine.shape[1]
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
        (self.counted.add if count else self.counted.discard)(number)

    def _release(self, step: Step, number: int) -> list[tuple[int, BoolArray | None]]:
        """Blocks whose barrier is complete: their threads go on, the barrier starts afresh."""
        groups = self.waiting.get(number, [])
        signalled = self.arrived.get(number)
        everyone = np.zeros(self.machine.shape, np.bool_) if signalled is None else signalled.copy()
        for group in groups:
            everyone |= group.lanes
        absent = self._absent(number)
        arrived = self._threads(everyone | absent)
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
        released = [self._resume(group, groups, chosen, everyone) for group in groups if (group.lanes & chosen).any()]
        going = np.zeros(self.machine.shape, np.bool_)
        for _, lanes in released:
            going |= lanes
        for observer in self.observers:
            if (absent & chosen).any():
                observer.barrier_arrive(step, number, absent & chosen)
            observer.barrier(step, number, going)
        self._forget(number, chosen)
        return [(block, lanes) for block, lanes in released]

    def _absent(self, number: int) -> BoolArray:
        """Exited threads that count as arrived: none, unless GPUs are to be followed and the barrier is the block's."""
        if not self.machine.exited_arrive or number in self.counted:
            return np.zeros(self.machine.shape, np.bool_)
        return self.machine.exists & ~self.machine.live

    def after_exit(self) -> list[tuple[int, BoolArray | None]]:
        """Threads have exited: who may go on now because nobody else is left to wait for."""
        if not self.machine.exited_arrive:
            return []
        return [
            released
            for number in list(self.waiting)
            for released in self._release(self.waiting[number][0].step, number)
        ]

    def _threads(self, lanes: BoolArray) -> Array:
        """How many threads of each block have arrived, (blocks,): a complete warp counts 32 even if it has fewer."""
        whole = (lanes | ~self.machine.exists).all(axis=2) & lanes.any(axis=2)
        threads: Array = np.where(whole, WARP, lanes.sum(axis=2)).sum(axis=1)
        return threads

    def _resume(
        self, group: Waiting, groups: list[Waiting], chosen: BoolArray, everyone: BoolArray
    ) -> tuple[int, BoolArray]:
        """Where a group goes on, and which of its lanes; gives them the result of ``bar.red`` over all groups."""
        lanes = group.lanes & chosen
        if group.predicate is not None:
            true = np.zeros(self.machine.shape, np.bool_)
            for other in groups:
                if other.predicate is not None:
                    true |= other.lanes & other.predicate
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

    def deadlock(self) -> None:
        """Raises the error of threads that wait while nobody is left who could arrive."""
        if not self.waiting:
            return
        number, groups = next(iter(self.waiting.items()))
        group = groups[0]
        b = int(np.argwhere(group.lanes)[0][0])
        arrived = self.arrived.get(number, np.zeros(self.machine.shape, np.bool_)).copy()
        for other in groups:
            arrived |= other.lanes
        group.step.mask = group.lanes
        exited = int((self.machine.exists[b] & ~self.machine.live[b]).sum())
        group.step.fail(
            "deadlock",
            f"threads wait at barrier {number} for others that never reach it",
            expected=f"{int(self.expected[number][b])} threads",
            found=", ".join(
                [f"{int(self._threads(arrived)[b])} arrived, {exited} exited", *self._elsewhere(number, b)]
            ),
            hint="every thread that the barrier counts has to come to it" + (EXITED if exited else ""),
        )

    def stories(self, block: int) -> list[str]:
        """What threads of a block wait for, a sentence for each barrier and instruction."""
        found = []
        for number, groups in self.waiting.items():
            everyone = self.arrived.get(number, np.zeros(self.machine.shape, np.bool_)).copy()
            for group in groups:
                everyone |= group.lanes
            expected, came = int(self.expected[number][block]), int(self._threads(everyone)[block])
            found += [
                f"{int(self._threads(group.lanes)[block])} threads of block {self.machine.block_index(block)} at "
                f"{group.step.instruction.place}: barrier {number}, {came} of {expected} threads have arrived"
                for group in groups
                if group.lanes[block].any()
            ]
        return found

    def _elsewhere(self, number: int, block: int) -> list[str]:
        """Who of a block waits at other barriers, for messages."""
        return [
            f"{int(self._threads(group.lanes)[block])} at barrier {other} (line {group.step.instruction.line})"
            for other, groups in self.waiting.items()
            for group in groups
            if other != number and group.lanes[block].any()
        ]


def _one_warp(lanes: BoolArray, block: int, warp: int) -> BoolArray:
    """The part of a full-shape mask that lies in one warp."""
    part = np.zeros_like(lanes)
    part[block, warp] = lanes[block, warp]
    return part


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
        """``barrier.cluster.arrive``.

        Raises:
            EmulationError: "divergent-barrier": a second arrival without a wait.
        """
        lanes = step.lanes()
        again = lanes & (self.arrivals != self.waits)
        if again.any():
            step.fail("divergent-barrier", "a second arrival at the cluster's barrier without a wait", lanes=again)
        self.arrivals[lanes] += 1
        self.machine.arrivals += 1
        ordered = ".relaxed" not in step.instruction.opcode
        for observer in self.observers:
            observer.cluster_arrived(step, lanes, ordered=ordered)
        self.settle()

    def settle(self) -> None:
        """Completes the barriers at which every thread that has not exited has arrived."""
        missing = self.machine.live & (self.arrivals <= self._of_threads())
        came = self.arrivals > self._of_threads()
        clusters = len(self.phases)
        done = np.logical_and(came.reshape(clusters, -1).any(axis=1), ~missing.reshape(clusters, -1).any(axis=1))
        if not done.any():
            return
        self.phases[done] += 1
        for observer in self.observers:
            observer.cluster_completed(done)

    def completed(self, step: Step) -> BoolArray:
        """Lanes of the step, of the full shape, that may go on.

        Raises:
            EmulationError: "divergent-barrier": a wait without an arrival.
        """
        lanes = step.lanes()
        alone = lanes & (self.arrivals == self.waits)
        if alone.any():
            what = "a thread waits at the cluster's barrier without having arrived"
            step.fail("divergent-barrier", what, lanes=alone, hint="barrier.cluster.arrive comes first")
        self.settle()
        done: BoolArray = lanes & (self._of_threads() >= self.arrivals)
        return done

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
