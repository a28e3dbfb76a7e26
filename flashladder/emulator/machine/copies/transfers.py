"""Bulk copies (``cp.async.bulk``, of bytes or of a tensor's boxes): what they read and write, and when.

Why so late: a copy reads its source when it completes (`Deferred`), not when it is issued, and stores what it read
then. A missing wait, an early overwrite of a source or of a stage is then wrong numbers on every run. A copy into
shared memory completes when nothing else can move, and then tells its mbarrier; a copy of a *bulk group* at the wait
that covers it, its source being read at the wait for reads already (or at the very end, when nothing else is left).

One `Transfer` is one instruction of all the threads that executed it together. In shared memory everything moves in
pieces of 16 bytes, in global memory in units (`boxes`). Source: PTX ISA 9.0, 9.7.9.25.4 and 9.7.9.25.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from flashladder.emulator.machine.copies.boxes import Places
from flashladder.emulator.machine.copies.global_units import gather, spread
from flashladder.emulator.machine.memory import WORDS
from flashladder.emulator.machine.state import Step
from flashladder.emulator.values import Array, BoolArray

PIECE = 16  # bytes
Combine = Callable[[Array, Array], Array]  # (memory's elements, the copy's) -> memory's new ones
Reduce = tuple[Combine, np.dtype[np.generic]]  # and the type of the elements


@dataclass(frozen=True, eq=False)
class Shared:
    """Pieces of shared memory: `places` (n, pieces) in `blocks` (n,) of the slice."""

    blocks: Places
    places: Places


@dataclass(frozen=True, eq=False)
class Global:
    """Units of global memory: `addresses` (n, units) of `unit` bytes; `inside` which of them exist (None: all)."""

    unit: int
    addresses: Places
    inside: BoolArray | None = None


@dataclass(frozen=True, eq=False)
class Signal:
    """The mbarriers that a copy tells: in `blocks`, at `offsets`, of `nbytes` each, all (m,)."""

    blocks: Places
    offsets: Places
    nbytes: Places


@dataclass(eq=False)
class Transfer:
    """One bulk copy of the n threads that issued it together; `Deferred` has it until all of them are done.

    Attributes:
        step: the instruction, with the mask of those who issued it.
        lanes: where they are: block, warp and lane, (n,) each.
        source, target: what is read and written; of a multicast the target has m = n x blocks rows.
        rows: (m,) the thread that each row of the target belongs to.
        signal: the mbarriers that are told, by row of the target; None: it belongs to a bulk group.
        group: (n,) bulk groups that each thread had committed before.
        fill: the word, of the unit's width, that stands for what lies outside of the tensor.
        reduce: how what arrives is combined with what is there; None: it replaces it.
        box: whether it moves boxes of a tensor.
        read, landed: (n,) whose source was read, whose target written.
        known, over: (n,) the same as far as the program may know: of a bulk group after the wait that covers it.
    """

    step: Step
    lanes: tuple[Places, Places, Places]
    source: Shared | Global
    target: Shared | Global
    rows: Places
    signal: Signal | None
    group: Places
    fill: Array | None = None
    reduce: Reduce | None = None
    box: bool = False
    read: BoolArray = field(init=False)
    landed: BoolArray = field(init=False)
    known: BoolArray = field(init=False)
    over: BoolArray = field(init=False)
    _data: Array | None = field(init=False, default=None)  # (n, pieces) that were read

    def __post_init__(self) -> None:
        """Nothing is read, nothing has landed."""
        self.read, self.landed, self.known, self.over = np.zeros((4, len(self.group)), dtype=np.bool_)

    @property
    def nbytes(self) -> int:
        """Bytes that each thread's copy moves, what lies outside of the tensor included."""
        side = self.source if isinstance(self.source, Shared) else self.target
        return side.places.shape[1] * PIECE if isinstance(side, Shared) else 0  # one of them is shared memory

    def will_write(self, block: int, address: int, width: int) -> bool:
        """Whether it is still to write any of these bytes of a block's shared memory."""
        if not isinstance(self.target, Shared):
            return False
        rows = (self.target.blocks == block) & ~self.landed[self.rows]
        places = self.target.places[rows]
        return bool(((places < address + width) & (places + PIECE > address)).any())

    def complete(self) -> None:
        """Reads and writes what is left of all threads."""
        self.land(~self.landed, self.step)

    def land(self, chosen: BoolArray, by: Step) -> None:
        """The copies of these threads (n,) are done; `by` is what guarantees it, or the copy itself."""
        self.fetch(chosen, by)
        fresh = chosen & ~self.landed
        if fresh.any():
            self.landed = self.landed | fresh
            self._put(fresh)
        news = self._news(chosen & ~self.over, by)
        if news.any():
            self.over = self.over | news
            for observer in self.step.machine.observers:
                observer.transfer_landed(by, self, news)
        if self.signal is not None and fresh.any():
            told = np.flatnonzero(fresh[self.rows])
            signal, machine = self.signal, self.step.machine
            machine.mbarriers.complete_tx(self.step, signal.blocks[told], signal.offsets[told], signal.nbytes[told])

    def fetch(self, chosen: BoolArray, by: Step) -> None:
        """The sources of these threads are read; if `by` is a wait, nobody needs to keep them from now on."""
        fresh = chosen & ~self.read
        if fresh.any():
            self._take(np.flatnonzero(fresh))
            self.read = self.read | fresh
        news = self._news(chosen & ~self.known, by)
        if news.any():
            self.known = self.known | news
            for observer in self.step.machine.observers:
                observer.transfer_read(by, self, news)

    def _news(self, chosen: BoolArray, by: Step) -> BoolArray:
        """The threads of which observers hear: not of copies of bulk groups before the wait that covers them."""
        return np.zeros_like(chosen) if by is self.step and self.signal is None else chosen

    def _take(self, which: Places) -> None:
        """Keeps what the sources of these threads hold."""
        data = self._taken(which)
        if len(which) == len(self.read):
            self._data = data
            return
        if self._data is None:
            self._data = np.zeros((len(self.read), data.shape[1]), dtype=data.dtype)
        self._data[which] = data

    def _taken(self, which: Places) -> Array:
        """What the sources of these threads hold, as pieces of 16 bytes."""
        source, machine = self.source, self.step.machine
        if isinstance(source, Shared):
            self._check_alive(source.blocks[which], which, "reads from")
            self._check_written(source, which)
            return machine.shared.take_chunks(source.blocks[which], source.places[which])
        chosen = _rows(source, which)
        words = gather(
            machine.memory,
            chosen.addresses,
            chosen.unit,
            chosen.inside,
            lambda row, at: self._wild(which[row], at, chosen.unit),
        )
        if chosen.inside is not None:
            words = np.where(chosen.inside, words, words.dtype.type(0) if self.fill is None else self.fill)
        return np.ascontiguousarray(words).view(WORDS[PIECE])

    def _put(self, chosen: BoolArray) -> None:
        """Writes what was read to the targets of these threads."""
        if self._data is None:
            return
        rows = np.flatnonzero(chosen[self.rows])
        data = self._data[self.rows[rows]]
        if isinstance(self.target, Shared):
            part = Shared(self.target.blocks[rows], self.target.places[rows])
            self._put_shared(part, self.rows[rows], data)
            return
        target = _rows(self.target, rows)
        words = np.ascontiguousarray(data).view(WORDS[target.unit])
        memory = self.step.machine.memory

        def fail(row: int, at: int) -> NoReturn:
            self._wild(int(self.rows[rows[row]]), at, target.unit)

        if self.reduce is None:
            spread(memory, target.addresses, target.unit, target.inside, words, fail)
            return
        function, dtype = self.reduce
        for row in range(len(rows)):  # one after the other: several may change the same bytes
            one = _rows(target, np.array([row]))
            old = gather(memory, one.addresses, one.unit, one.inside, fail)
            new = function(
                np.ascontiguousarray(old).view(dtype), np.ascontiguousarray(words[row : row + 1]).view(dtype)
            )
            spread(memory, one.addresses, one.unit, one.inside, new.view(WORDS[target.unit]), fail)

    def _put_shared(self, target: Shared, which: Places, data: Array) -> None:
        shared = self.step.machine.shared
        self._check_alive(target.blocks, which, "writes to")
        self._check_barriers(target, which)
        if self.reduce is None:
            shared.put_chunks(target.blocks, target.places, data)
            return
        function, dtype = self.reduce
        for block, places, words in zip(target.blocks[:, None], target.places[:, None], data[:, None], strict=True):
            old = np.ascontiguousarray(shared.take_chunks(block, places)).view(dtype)
            new = function(old, np.ascontiguousarray(words).view(dtype))
            shared.put_chunks(block, places, np.ascontiguousarray(new).view(WORDS[PIECE]))

    def _check_alive(self, blocks: Places, which: Places, verb: str) -> None:
        """Fails if a block has exited, whose shared memory is another block's now."""
        machine = self.step.machine
        gone = ~np.asarray(machine.live.any(axis=(1, 2)))[blocks]
        if not gone.any():
            return
        block = int(blocks[gone.argmax()])
        thread = int(which[gone.argmax()])
        hint = "wait for it before the block exits: "
        hint += "mbarrier.try_wait" if self.signal is not None else "cp.async.bulk.wait_group.read 0 by its thread"
        what = f"the copy still {verb} the shared memory of block {self.step.block_index(block)}, which has exited"
        self.fail("exited", what, thread, hint=hint)

    def _check_barriers(self, target: Shared, which: Places) -> None:
        """Fails if a copy writes over an mbarrier."""
        mbarriers, pieces = self.step.machine.mbarriers, target.places.shape[1]
        over = mbarriers.hits(np.repeat(target.blocks, pieces), target.places.reshape(-1), PIECE)
        if over.any():
            at = int(over.argmax())
            hint = "give it memory of its own, or end it with mbarrier.inval first"
            where = int(target.places.reshape(-1)[at])
            self.fail("mbarrier", f"a copy over an mbarrier, at {where:#x}", int(which[at // pieces]), hint=hint)

    def _check_written(self, source: Shared, which: Places) -> None:
        found = self.step.machine.shared.unwritten_chunks(source.blocks[which], source.places[which])
        if found is None:
            return
        missing: BoolArray = found
        if isinstance(self.target, Global) and self.target.inside is not None:  # what is not stored need not be there
            missing = found & self.target.inside[which].reshape(*found.shape, -1).any(axis=2)
        if missing.any():
            row, piece = (int(axis) for axis in np.argwhere(missing)[0])
            what = f"a copy from shared memory not written before, at {int(source.places[which[row], piece]):#x}"
            self.fail("uninitialised", what, int(which[row]))

    def _wild(self, thread: int, address: int, unit: int) -> NoReturn:
        what, hint = (
            self.step.machine.memory.nearest(address, unit),
            "check coordinates, sizes and the tensor's address",
        )
        self.fail("out-of-bounds", what, thread, hint=hint, address=address)

    def fail(
        self, kind: str, what: str, thread: int, *, hint: str | None = None, address: int | None = None
    ) -> NoReturn:
        """Fails for one of the n threads."""
        step = Step(self.step.machine, self.step.instruction)
        mask = np.zeros(step.machine.shape, dtype=np.bool_)
        mask[tuple(int(axis[thread]) for axis in self.lanes)] = True
        step.mask = mask
        where = None if address is None else np.full((1, 1, 1), address, dtype=np.uint64)
        step.fail(kind, what, address=where, hint=hint)


def _rows(side: Global, which: Places) -> Global:
    """Some rows of a side."""
    if len(which) == len(side.addresses):
        return side
    inside = None if side.inside is None else side.inside[which]
    return replace(side, addresses=side.addresses[which], inside=inside)
