"""Asynchronous copies and stores of threads: ``cp.async``, ``st.async`` and ``red.async``.

Why: on a GPU a copy usually lands long before the wait that guarantees it, so that a missing or too weak wait goes
unnoticed until it does not. Here the source is read when the copy is issued, and shared memory keeps its old bytes
until the thread that issued the copy executes a wait that covers it: ``wait_group N`` covers all groups that the thread
has committed but the N most recent ones, ``wait_all`` every copy of the thread. A copy that is never waited for never
lands. A missing wait or commit is then wrong numbers, or a read of shared memory that nobody wrote, on every run.

Groups are counted per thread, in an array that stays at one number while all threads agree.
Source: PTX ISA 9.0, 9.7.9.25.3 (cp.async, commit_group, wait_group, wait_all), 9.7.13.15.14 (cp.async.mbarrier.arrive).

They take their values when they are issued, land as late as they may (`deferred`), and then tell the mbarrier, in the
same block as the bytes, how many have come. The race detector does not look at them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ptxemu.machine.mbarriers import targets_of
from ptxemu.machine.memory import words_of
from ptxemu.machine.shared import places
from ptxemu.machine.state import Step
from ptxemu.syntax.tree import Instruction
from ptxemu.values import Array, BoolArray


@dataclass(frozen=True, eq=False)
class Copy:
    """One ``cp.async`` of all lanes that executed it.

    Attributes:
        instruction: the ``cp.async``.
        address: where it lands, bytes of the shared window, u64, (blocks|1, warps|1, 32|1).
        width: bytes written per lane: 4, 8 or 16.
        mask: lanes that issued it, None for all.
        group: number of groups that each lane had committed before, int64, broadcastable: the group it belongs to.
        data: what lands, with zeros for bytes that were not read; u32, u64, or (..., 4) of u32 for 16 bytes.
    """

    instruction: Instruction
    address: Array
    width: int
    mask: BoolArray | None
    group: Array
    data: Array


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

    def __init__(self) -> None:
        self._committed = Committed()
        self._flights: list[_Flight] = []

    @property
    def in_flight(self) -> tuple[Copy, ...]:
        """The copies that have not landed for all of their lanes, oldest first."""
        return tuple(flight.copy for flight in self._flights)

    def issue(self, step: Step, address: Array, width: int, data: Array) -> None:
        """Puts a copy in flight for the executing lanes; the shared addresses must be valid now.

        Raises:
            EmulationError: "out-of-bounds", "misaligned".
        """
        address = step.machine.shared.check(step, address, width)
        group = self._committed.counts
        copy = Copy(step.instruction, address, width, step.mask, group, data)
        self._flights.append(_Flight(copy, step.mask, int(group.min()), int(group.max())))
        for observer in step.machine.observers:
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
                _land(step, flight.copy, flight.lanes)
            else:
                kept.extend(_land_some(step, flight, bound))
        self._flights = kept

    def land(self, step: Step, copies: Sequence[Copy]) -> None:
        """Lands what the executing lanes have of these copies, whatever their groups."""
        kept: list[_Flight] = []
        for flight in self._flights:
            mine = any(flight.copy is copy for copy in copies)
            kept.extend(_land_some(step, flight, flight.copy.group + 1) if mine else [flight])
        self._flights = kept


def _land_some(step: Step, flight: _Flight, bound: Array) -> list[_Flight]:
    """Lands the executing lanes whose group is below the bound; what is left of the flight, if anything."""
    lanes: BoolArray = flight.copy.group < bound
    for others in (step.mask, flight.lanes):
        lanes = lanes if others is None else lanes & others
    if not lanes.any():
        return [flight]
    _land(step, flight.copy, lanes)
    left: BoolArray = step.machine.live & ~lanes
    left = left if flight.lanes is None else left & flight.lanes
    return [_Flight(flight.copy, left, flight.first, flight.last)] if left.any() else []


def _land(step: Step, copy: Copy, lanes: BoolArray | None) -> None:
    """Writes the bytes of these lanes (None: all of the slice) and tells the observers."""
    step.machine.shared.store(step, copy.address, copy.width, copy.data, lanes)
    for observer in step.machine.observers:
        observer.copy_landed(step, copy, lanes)


Combine = Callable[[Array, Array], Array]  # (what is there, what comes) -> what is there then


@dataclass(eq=False)
class AsyncStore:
    """One instruction's stores, of all lanes that issued it; arrays are flat.

    Attributes:
        step: the instruction, with the lanes.
        blocks, offsets: where they land.
        barriers: offsets of the mbarriers that are told, in the same blocks.
        words: what is stored, one word of `width` bytes each.
        combine: of a reduction, how it changes memory; None: it replaces it.
    """

    step: Step
    blocks: Array
    offsets: Array
    barriers: Array
    words: Array
    width: int
    combine: Combine | None

    def complete(self) -> None:
        """Lands, then tells the mbarriers."""
        machine = self.step.machine
        gone = ~np.asarray(machine.live.any(axis=(1, 2)))[self.blocks]
        if gone.any():
            block = self.step.block_index(int(self.blocks[gone.argmax()]))
            what = f"the store still writes to the shared memory of block {block}, which has exited"
            hint = "let the block wait for it before it exits: mbarrier.try_wait"
            self.step.fail("exited", what, hint=hint)
        rows, where = machine.shared.rows, self.offsets.astype(np.uint64)
        if self.combine is None:
            rows.put(self.blocks, where, self.width, self.words)
        else:
            for index in range(len(self.words)):  # several may change one word
                one = slice(index, index + 1)
                old = rows.take(self.blocks[one], where[one], self.width).view(self.words.dtype)
                new = self.combine(old, self.words[one]).view(f"u{self.width}")
                rows.put(self.blocks[one], where[one], self.width, new)
        nbytes = np.full(len(self.words), self.width, np.int64)
        machine.mbarriers.complete_tx(self.step, self.blocks, self.barriers, nbytes)


def issue(step: Step, values: Array, width: int, combine: Combine | None = None) -> None:
    """Puts the executing lanes' stores of `values` off; operand 0 is the address, the last one the mbarrier's.

    Raises:
        EmulationError: as `remote.places` and `targets_of`; "mbarrier": it is in another block than the bytes.
    """
    lanes, blocks, offsets = places(step, step.address(0), width)
    targets = targets_of(step, step.address(len(step.instruction.operands) - 1))
    apart = np.flatnonzero(targets.blocks != blocks)
    if apart.size:
        targets.fail(step, "the mbarrier lies in another block than the bytes that it is told of", apart)
    words = values if combine is not None else words_of(values, width)
    flat = np.broadcast_to(words, step.machine.shape)[lanes]
    own = Step(step.machine, step.instruction)
    own.mask = step.lanes().copy()
    step.machine.deferred.add(AsyncStore(own, blocks, offsets, targets.offsets, flat, width, combine))
