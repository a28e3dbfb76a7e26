"""Asynchronous copies of threads: ``cp.async``.

On a GPU a copy usually lands long before the wait that guarantees it, so that a missing or too weak wait goes
unnoticed. Here the source is read when the copy is issued, and shared memory keeps its old bytes until the thread that
issued the copy executes a wait that covers it: ``wait_group N`` covers all groups that the thread has committed but
the N most recent ones, ``wait_all`` every copy of the thread. A copy that is never waited for never lands. A missing
wait or commit is then wrong numbers, or a read of shared memory that nobody wrote, on every run.

Groups are counted per thread, in an array that stays at one number while all threads agree.

Source: PTX ISA 9.0, 9.7.9.25.3 (cp.async, commit_group, wait_group, wait_all), 9.7.13.15.14
(cp.async.mbarrier.arrive).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptxemu.machine.core import Step
from ptxemu.machine.observer import Copy, Observer, Targets
from ptxemu.machine.shared import SharedMemory
from ptxemu.syntax.tree import Instruction
from ptxemu.values import Array, BoolArray


@dataclass
class _Flight:
    """A copy of which some lanes (`lanes`; None: all) have not landed; `first` and `last` bound the lanes' groups."""

    copy: Copy
    lanes: BoolArray | None
    first: int
    last: int


class Committed:
    """How many groups of asynchronous copies each thread has committed; `counts` stays one number while all agree."""

    def __init__(self) -> None:
        self.counts: Array = np.zeros((1, 1, 1), dtype=np.int64)

    def commit(self, step: Step) -> None:
        """The executing lanes commit one more."""
        live = step.machine.live
        if step.mask is None or not (live & ~step.mask).any():
            self.counts = self.counts + 1  # what the counts of exited threads become does not matter
        else:
            self.counts = self.counts + step.mask
        if self.counts.size > 1:
            counts = step.machine.full(self.counts)[live]
            if counts.size and (counts == counts[0]).all():  # one number again: all live threads agree
                self.counts = counts[:1].reshape(1, 1, 1)


class AsyncCopies:
    """The copies in flight of a slice, in order of issue, and each thread's count of committed groups."""

    def __init__(self, shared: SharedMemory, observers: Sequence[Observer]) -> None:
        self.shared, self.observers = shared, observers
        self._committed = Committed()
        self._flights: list[_Flight] = []

    @property
    def in_flight(self) -> tuple[Copy, ...]:
        """The copies that have not landed for all of their lanes, oldest first."""
        return tuple(flight.copy for flight in self._flights)

    def writer_of(self, block: int, address: int, width: int) -> Instruction | None:
        """The first copy in flight that will write any of these bytes of a block's shared memory."""

        def of_block(value: Array) -> Array:
            return np.asarray(value[min(block, len(value) - 1)])

        for copy in self.in_flight:
            mine = of_block(copy.address).astype(np.int64)
            meets: BoolArray = (mine < address + width) & (mine + copy.width > address)
            if (meets if copy.mask is None else meets & of_block(copy.mask)).any():
                return copy.instruction
        return None

    def issue(self, step: Step, address: Array, width: int, data: Array) -> None:
        """Puts a copy in flight for the executing lanes; the shared addresses must be valid now.

        Fails: "out-of-bounds", "misaligned".
        """
        address = self.shared.check(step, address, width)
        group = self._committed.counts
        copy = Copy(step.instruction, address, width, step.mask, group, data)
        self._flights.append(_Flight(copy, step.mask, int(group.min()), int(group.max())))
        for observer in self.observers:
            observer.copy_issued(step, copy)

    def commit(self, step: Step) -> None:
        """``commit_group``: the executing lanes' uncommitted copies (perhaps none) become one group."""
        self._committed.commit(step)

    def wait(self, step: Step, newest: int | None) -> None:
        """Lands the executing lanes' copies of all committed groups but the `newest`; None: every copy of theirs."""
        if newest is None:  # wait_all is commit_group, then wait_group 0
            self.commit(step)
        bound = self._committed.counts - (newest or 0)  # groups below it land
        lowest, highest = int(bound.min()), int(bound.max())
        kept: list[_Flight] = []
        for flight in self._flights:
            if flight.first >= highest:
                kept.append(flight)
            elif step.mask is None and flight.last < lowest:
                self._land(step, flight.copy, flight.lanes)
            else:
                kept.extend(self._land_some(step, flight, bound))
        self._flights = kept

    def land(self, step: Step, copies: Sequence[Copy], targets: Targets) -> None:
        """Lands what the executing lanes have of these copies, whatever their groups; their mbarriers are told next."""
        kept: list[_Flight] = []
        for flight in self._flights:
            mine = any(flight.copy is copy for copy in copies)
            kept.extend(self._land_some(step, flight, flight.copy.group + 1, targets) if mine else [flight])
        self._flights = kept

    def _land_some(self, step: Step, flight: _Flight, bound: Array, targets: Targets | None = None) -> list[_Flight]:
        """Lands the executing lanes whose group is below the bound; what is left of the flight, if anything."""
        lanes: BoolArray = flight.copy.group < bound
        for others in (step.mask, flight.lanes):
            lanes = lanes if others is None else lanes & others
        if not lanes.any():
            return [flight]
        self._land(step, flight.copy, lanes, targets)
        left: BoolArray = step.machine.live & ~lanes
        left = left if flight.lanes is None else left & flight.lanes
        return [_Flight(flight.copy, left, flight.first, flight.last)] if left.any() else []

    def _land(self, step: Step, copy: Copy, lanes: BoolArray | None, targets: Targets | None = None) -> None:
        """Writes the bytes of these lanes (None: all of the slice) and tells the observers."""
        self.shared.store(step, copy.address, copy.width, copy.data, lanes)
        for observer in self.observers:
            if targets is None or lanes is None:
                observer.copy_landed(step, copy, lanes)
            else:
                observer.copy_told(step, copy, lanes, targets)
