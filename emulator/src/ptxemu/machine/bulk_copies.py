"""Bulk copies (``cp.async.bulk``, of bytes or of a tensor's boxes): issue, groups, what they read and write, and when.

A copy reads its source when it completes (`Deferred`), not when it is issued, and stores what it read then. A missing
wait, an early overwrite of a source or of a stage is then wrong numbers on every run. A copy into shared memory
completes when nothing else can move, and then tells its mbarrier. A copy without an mbarrier belongs to the *bulk
group* that its thread commits next. ``wait_group N`` completes all groups that the thread has committed but the N most
recent ones; ``wait_group.read N`` only has their sources read: what they write comes with a wait without ``.read``, or
at the very end.

One instruction moves thousands of elements: one `Transfer` is one instruction of all the threads that executed it
together, and places are whole arrays, worked out once for each tensor map. In shared memory everything moves in pieces
of 16 bytes, in global memory in *units*: 16 bytes where the box's rows begin and end at multiples of it, else one
element. A row of a table is one thread's copy.

Source: PTX ISA 9.0, 5.5.1 to 5.5.7 (tensors, swizzling), 9.7.9.25.4 and 9.7.9.25.5 (cp.async.bulk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from ptxemu.machine.async_copies import Committed
from ptxemu.machine.core import Machine, Step
from ptxemu.machine.deferred import Deferred
from ptxemu.machine.mbarriers import Mbarriers
from ptxemu.machine.memory import WORDS, Buffer, GlobalMemory
from ptxemu.machine.observer import PIECE, Global, Observer, Places, Reduce, Shared, Signal, Transfer
from ptxemu.machine.tensor_map import UNIT, Decoded, TensorMap
from ptxemu.values import Array, BoolArray

Lanes = tuple[Places, Places, Places]
SWIZZLE_BITS = {"none": 0, "32B": 1, "64B": 3, "128B": 7}  # bits 7 to 9 of an address that change its bits 4 to 6


def swizzled(address: Places, swizzle: str) -> Places:
    """Where bytes of shared memory really lie: the 16-byte pieces of a row change places by the row's number."""
    return address ^ ((address >> 7 & SWIZZLE_BITS[swizzle]) << 4)


@dataclass(frozen=True)
class Grid:
    """The units of a box, each as one entry, the first axis fastest; all arrays of int64.

    Attributes:
        unit: bytes that move at once.
        axes: (axes, units) coordinates relative to the box's first element.
        offsets: (units,) bytes from the box's first element, in global memory.
        places: (pieces,) of each 16 bytes: from the box's begin in shared memory, before swizzling.
    """

    unit: int
    axes: Places
    offsets: Places
    places: Places


@lru_cache(maxsize=256)
def grid_of(
    dtype_bytes: int, counts: tuple[int, ...], steps: tuple[int, ...], strides: tuple[int, ...], span: int, unit: int
) -> Grid:
    """The units of a box of `counts` elements, of which every `steps`-th along each axis is taken."""
    per_unit = unit // dtype_bytes
    sizes = (counts[0] // per_unit, *counts[1:])
    index = np.indices(sizes[::-1], dtype=np.int64)[::-1].reshape(len(sizes), -1)  # rows: axes, innermost first
    axes = index * np.array([per_unit, *steps[1:]], dtype=np.int64)[:, None]
    offsets = (axes * np.array([dtype_bytes, *strides], dtype=np.int64)[:, None]).sum(axis=0)
    pieces = counts[0] * dtype_bytes // UNIT  # of a row
    row, piece = np.divmod(np.arange(pieces * index.shape[1] // sizes[0], dtype=np.int64), pieces)
    return Grid(unit, axes, offsets, row * span + piece * UNIT)


@dataclass(frozen=True)
class Boxes:
    """The boxes that n threads name in one tensor.

    Attributes:
        unit: bytes of a unit.
        addresses: (n, units) global addresses; those outside of the tensor may be anything.
        inside: (n, units) whether the unit lies in the tensor; None: all do.
        places: (pieces,) offsets of 16-byte pieces in shared memory, before `swizzled`.
    """

    unit: int
    addresses: Places
    inside: BoolArray | None
    places: Places


def boxes(tensor: Decoded, coordinates: Places, *, whole: bool = False) -> Boxes:
    """The boxes that begin at `coordinates`, int64, (n, axes), innermost first; they may lie outside of the tensor.

    With `whole` they move by 16 bytes throughout: a unit of which a part lies in the tensor counts as one that does.
    """
    given = tensor.map
    along = np.append(coordinates[:, 0], given.dims[0]) * given.itemsize  # where rows of boxes begin, the tensor ends
    unit = UNIT if whole or not (along % UNIT).any() else given.itemsize
    steps = (1, *given.element_strides[1:])
    grid = grid_of(given.itemsize, given.counts, steps, given.strides, given.span, unit)
    strides = np.array([given.itemsize, *given.strides], dtype=np.int64)
    start = tensor.address + (coordinates * strides).sum(axis=1)
    dims = np.array(given.dims, dtype=np.int64)
    inside: BoolArray | None = None
    if not ((coordinates >= 0).all() and (coordinates + grid.axes[:, -1] < dims).all()):
        inside = np.ones((len(coordinates), grid.axes.shape[1]), dtype=np.bool_)
        for axis, offset in enumerate(grid.axes):
            at = coordinates[:, axis, None] + offset
            inside &= (at >= 0) & (at < dims[axis])
    return Boxes(unit, start[:, None] + grid.offsets, inside, grid.places)


Wild = Callable[[int, int], NoReturn]  # told the row and the address that lies in no buffer


def gather(memory: GlobalMemory, addresses: Places, unit: int, inside: BoolArray | None, wild: Wild) -> Array:
    """Words of `unit` bytes at `addresses` (n, k), multiples of the unit; 0 where they are not `inside`."""
    words = np.zeros(addresses.shape, dtype=WORDS[unit])
    for rows, buffer, index, chosen in _parts(memory, addresses, unit, inside, wild):
        found = buffer.view(unit).take(index)
        found = found if chosen is None else np.where(chosen, found, found.dtype.type(0))
        if len(rows) == len(addresses):
            return found
        words[rows] = found
    return words


def spread(
    memory: GlobalMemory, addresses: Places, unit: int, inside: BoolArray | None, words: Array, wild: Wild
) -> None:
    """Writes words (n, k) of `unit` bytes where they are `inside`; of several at one address the last row's wins."""
    for rows, buffer, index, chosen in _parts(memory, addresses, unit, inside, wild):
        view, mine = buffer.view(unit), words if len(rows) == len(words) else words[rows]
        if chosen is None:
            view[index.reshape(-1)] = mine.reshape(-1)
        else:
            view[index[chosen]] = mine[chosen]


def _parts(
    memory: GlobalMemory, addresses: Places, unit: int, inside: BoolArray | None, wild: Wild
) -> Iterator[tuple[Places, Buffer, Places, BoolArray | None]]:
    """(rows, their buffer, indices in its words, which of them count): all rows at once where they share a buffer."""
    rows = np.arange(len(addresses))
    if inside is not None:
        rows = np.flatnonzero(inside.any(axis=1))
    if not rows.size:
        return
    whole = _in_one(memory, addresses, unit, inside)
    if whole is not None:
        yield np.arange(len(addresses)), *whole
        return
    for row in rows:
        chosen = None if inside is None else inside[row : row + 1]
        part = _in_one(memory, addresses[row : row + 1], unit, chosen)
        if part is None:
            mine = addresses[row] if inside is None else addresses[row][inside[row]]
            bad = next(int(at) for at in mine if memory.holding(np.array([at], dtype=np.uint64), unit) is None)
            wild(int(row), bad)
        yield np.array([row]), *part


def _in_one(
    memory: GlobalMemory, addresses: Places, unit: int, inside: BoolArray | None
) -> tuple[Buffer, Places, BoolArray | None] | None:
    """The one buffer that holds all addresses which count, indices in its words, and which count."""
    valid = addresses if inside is None else np.where(inside, addresses, addresses[inside][0])
    buffer = memory.holding(valid.view(np.uint64), unit)
    return None if buffer is None else (buffer, buffer.index(valid.view(np.uint64), unit), inside)


@dataclass(eq=False, kw_only=True)
class BulkCopy(Transfer):
    """A transfer that can be carried out; `Deferred` has it until all of its threads are done."""

    copies: BulkCopies
    _data: Array | None = field(init=False, default=None)  # (n, pieces) that were read

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
            for observer in self.copies.observers:
                observer.transfer_landed(by, self, news)
        if self.signal is not None and fresh.any():
            told = np.flatnonzero(fresh[self.rows])
            signal = self.signal
            self.copies.mbarriers.complete_tx(self.step, signal.blocks[told], signal.offsets[told], signal.nbytes[told])

    def fetch(self, chosen: BoolArray, by: Step) -> None:
        """The sources of these threads are read; if `by` is a wait, nobody needs to keep them from now on."""
        fresh = chosen & ~self.read
        if fresh.any():
            self._take(np.flatnonzero(fresh))
            self.read = self.read | fresh
        news = self._news(chosen & ~self.known, by)
        if news.any():
            self.known = self.known | news
            for observer in self.copies.observers:
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
        source = self.source
        if isinstance(source, Shared):
            blocks, places = source.blocks[which], source.places[which]
            self.refuse_exited(which)
            missing = self.copies.shared.rows.unwritten_chunks(blocks, places)
            if missing is not None and isinstance(self.target, Global) and self.target.inside is not None:
                missing &= self.target.inside[which].reshape(*missing.shape, -1).any(axis=2)  # the rest is not stored
            if missing is not None and missing.any():
                row, piece = (int(axis) for axis in np.argwhere(missing)[0])
                what = f"a copy from shared memory not written before, at {int(places[row, piece]):#x}"
                self.fail("uninitialised", what, int(which[row]))
            return self.copies.shared.rows.take_chunks(blocks, places)
        chosen = _rows(source, which)

        def fail(row: int, at: int) -> NoReturn:
            self._wild(int(which[row]), at, chosen.unit)

        words = gather(self.copies.memory, chosen.addresses, chosen.unit, chosen.inside, fail)
        if chosen.convert is not None:
            words = chosen.convert(np.ascontiguousarray(words).view(np.float32)).view(words.dtype)
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
        memory = self.copies.memory

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
        rows, pieces = self.copies.shared.rows, target.places.shape[1]
        self._check_alive(target.blocks, which, "writes to")
        over = self.copies.shared.hits(np.repeat(target.blocks, pieces), target.places.reshape(-1), PIECE)
        if over.any():
            at, hint = int(over.argmax()), "give it memory of its own, or end it with mbarrier.inval first"
            what = f"a copy over an mbarrier, at {int(target.places.reshape(-1)[at]):#x}"
            self.fail("mbarrier", what, int(which[at // pieces]), hint=hint)
        if self.reduce is None:
            rows.put_chunks(target.blocks, target.places, data)
            return
        function, dtype = self.reduce
        for block, places, words in zip(target.blocks[:, None], target.places[:, None], data[:, None], strict=True):
            old = np.ascontiguousarray(rows.take_chunks(block, places)).view(dtype)
            new = function(old, np.ascontiguousarray(words).view(dtype))
            rows.put_chunks(block, places, np.ascontiguousarray(new).view(WORDS[PIECE]))

    def refuse_exited(self, which: Places) -> None:
        """Fails if these threads' sources lie in blocks that have exited."""
        if isinstance(self.source, Shared):
            self._check_alive(self.source.blocks[which], which, "reads from")

    def _check_alive(self, blocks: Places, which: Places, verb: str) -> None:
        """Fails if a block has exited, whose shared memory is another block's now."""
        machine = self.copies.machine
        gone = ~np.asarray(machine.live.any(axis=(1, 2)))[blocks]
        if not gone.any():
            return
        block = int(blocks[gone.argmax()])
        thread = int(which[gone.argmax()])
        hint = "wait for it before the block exits: "
        hint += "mbarrier.try_wait" if self.signal is not None else "cp.async.bulk.wait_group.read 0 by its thread"
        what = f"the copy still {verb} the shared memory of block {machine.block_index(block)}, which has exited"
        self.fail("exited", what, thread, hint=hint)

    def _wild(self, thread: int, address: int, unit: int) -> NoReturn:
        what, hint = self.copies.memory.nearest(address, unit), "check coordinates, sizes and the tensor's address"
        self.fail("out-of-bounds", what, thread, hint=hint, address=address)

    def fail(
        self, kind: str, what: str, thread: int, *, hint: str | None = None, address: int | None = None
    ) -> NoReturn:
        """Fails for one of the n threads."""
        step = self.step.of(self.copies.machine.only(*(axis[thread] for axis in self.lanes)))
        where = None if address is None else np.full((1, 1, 1), address, dtype=np.uint64)
        step.fail(kind, what, address=where, hint=hint)


def _rows(side: Global, which: Places) -> Global:
    """Some rows of a side."""
    if len(which) == len(side.addresses):
        return side
    inside = None if side.inside is None else side.inside[which]
    return replace(side, addresses=side.addresses[which], inside=inside)


class BulkCopies:
    """The bulk copies of a slice, and each thread's count of committed bulk groups."""

    def __init__(
        self,
        machine: Machine,
        memory: GlobalMemory,
        mbarriers: Mbarriers,
        deferred: Deferred,
        observers: Sequence[Observer],
    ) -> None:
        self.machine, self.memory, self.mbarriers = machine, memory, mbarriers
        self.shared, self.cluster = mbarriers.shared, mbarriers.cluster
        self.deferred, self.observers = deferred, observers
        self._committed = Committed()
        self._open: list[BulkCopy] = []  # copies that no wait has covered for all of their threads

    def finish(self) -> None:
        """At the end of a slice: nobody may have left the source of a copy behind, though this one was read in time.

        Fails: "exited".
        """
        for copy in self._open:
            if isinstance(copy.source, Shared):
                copy.refuse_exited(np.flatnonzero(~copy.known))

    def issue(self, step: Step) -> Issue:
        """The executing lanes, in order of block, warp and lane."""
        block, warp, lane = np.nonzero(step.lanes())
        return Issue(self, step.of(step.mask), (block, warp, lane))

    def groups(self, lanes: Lanes) -> Places:
        """The group to which a copy of these lanes belongs that is issued now."""
        return np.asarray(self.machine.full(self._committed.counts)[lanes])

    def commit(self, step: Step) -> None:
        """``commit_group``: the executing lanes' copies so far (perhaps none) become one group."""
        self._committed.commit(step)

    def start(self, copy: BulkCopy) -> None:
        """A copy is issued; without a wait it happens when nothing is left that an mbarrier waits for."""
        if copy.signal is not None:
            self.deferred.add(copy)
        else:
            self._open.append(copy)
            self.deferred.add(copy, lambda: all(each in self._open for each in self.deferred.pending))
        for observer in self.observers:
            observer.transfer_issued(copy)

    def wait(self, step: Step, newest: int, *, reads_only: bool) -> None:
        """Completes the executing lanes' copies of all committed groups but the `newest`, or reads their sources."""
        executing = step.lanes()
        bound = self.machine.full(self._committed.counts - newest)
        for copy in self._open:
            covered = executing[copy.lanes] & (copy.group < bound[copy.lanes])
            if reads_only:
                copy.fetch(covered, step)
            else:
                copy.land(covered, step)
        self.deferred.force(lambda operation: isinstance(operation, BulkCopy) and bool(operation.landed.all()))
        self._open = [copy for copy in self._open if not copy.over.all()]


@dataclass(frozen=True)
class Issue:
    """One bulk instruction of the threads that execute it: their lanes, and what its operands are for each of them."""

    copies: BulkCopies
    step: Step
    lanes: Lanes

    def take(self, value: Array) -> Places:
        """A value of each thread, int64."""
        return np.asarray(self.step.machine.full(value)[self.lanes]).astype(np.int64)

    def number(self, operand: int) -> Places:
        """Operand `operand`, an unsigned 32-bit number, of each thread."""
        return self.take(self.step.source(operand, "u32"))

    def refuse(self, wrong: Array, kind: str, what: str, *, found: Array | None = None, **facts: Any) -> None:
        """Fails for the first thread of which `wrong` (n,) holds, if there is one."""
        if not wrong.any():
            return
        first = int(wrong.argmax())
        mask = self.step.machine.only(*(axis[first] for axis in self.lanes))
        shown = None if found is None else int(found[first])
        self.step.fail(kind, what, lanes=mask, found=shown, **facts)

    def shared(self, operand: int, nbytes: Places, alignment: int = PIECE) -> tuple[Places, Places]:
        """(block of the slice, offset) that a shared-memory operand names, valid for `nbytes` from there."""
        address, cluster, shared = self.step.address(operand), self.copies.cluster, self.copies.shared
        known = self.take(cluster.valid(address)).astype(np.bool_)
        self.refuse(~known, "out-of-bounds", "no block of the cluster has this address")
        block, offset = (self.take(each) for each in cluster.resolve(address))
        self.refuse_odd(offset, "shared memory of a bulk copy", alignment)
        what = f"the shared memory of a bulk copy begins below the block's {shared.nbytes - shared.first} bytes"
        self.refuse(offset < shared.first, "out-of-bounds", what, expected=f"{shared.first} or more", found=offset)
        what = f"the shared memory of a bulk copy ends behind the block's {shared.nbytes - shared.first} bytes"
        self.refuse(offset + nbytes > shared.nbytes, "out-of-bounds", what, found=offset + nbytes)
        return block, offset

    def refuse_odd(self, numbers: Places, what: str, alignment: int = PIECE) -> None:
        """Fails unless the numbers are multiples of the alignment."""
        expected = f"a multiple of {alignment}"
        self.refuse(numbers % alignment != 0, "misaligned", what, expected=expected, found=numbers)

    def run(self, start: Places, sizes: Places) -> Places:
        """(n, pieces) places of runs of bytes that begin at `start` (n,); all have one size."""
        return np.asarray(start[:, None] + np.arange(0, int(sizes[0]) if sizes.size else 0, PIECE))

    def signal(self, operand: int, target: Places, nbytes: Places) -> tuple[Places, Places]:
        """(block, offset) of the mbarrier of each thread's copy, which has to lie where the bytes go."""
        targets = self.copies.mbarriers.targets(self.step, self.step.address(operand))
        what = "an mbarrier in another block than the bytes that it counts"
        self.refuse((targets.blocks != target) & (nbytes >= 0), "mbarrier", what)
        return targets.blocks, targets.offsets

    def destinations(self, operand: int) -> tuple[Places, Places]:
        """Of a multicast: (thread, block of the slice) for every bit of the threads' masks, operand `operand`."""
        masks = self.take(self.step.source(operand, "u16"))
        size = self.step.machine.cluster_size
        what = f"the mask of a multicast names blocks that a cluster of {size} does not have"
        self.refuse((masks >> size) != 0, "arguments", what, found=masks)
        self.refuse(masks == 0, "arguments", "the mask of a multicast names no block")
        rows, ranks = np.nonzero((masks[:, None] >> np.arange(size)) & 1)
        own = self.lanes[0][rows]
        return rows, own - own % size + ranks

    def start(self, *facts: Any) -> None:
        """Puts a copy of these threads off; `facts` are those of a `Transfer` from its source on."""
        self.copies.start(BulkCopy(self.step, self.lanes, *facts, copies=self.copies))

    def some(self, chosen: Array) -> Issue:
        """The same for some of the threads."""
        block, warp, lane = (axis[chosen] for axis in self.lanes)
        step = self.step.of(self.step.machine.only(block, warp, lane))
        return Issue(self.copies, step, (block, warp, lane))


def by_size(issue: Issue, sizes: Places) -> list[Issue]:
    """The threads, apart where they copy different numbers of bytes, which are multiples of 16."""
    issue.refuse_odd(sizes, "bytes of a bulk copy")
    kinds = np.unique(sizes)
    return [issue] if len(kinds) <= 1 else [issue.some(sizes == size) for size in kinds]


def into_shared(
    issue: Issue,
    source: Shared | Global,
    target: tuple[Places, Places],
    places: Places,
    barrier: int,
    *,
    nbytes: Places | None = None,
    fill: Array | None = None,
    reduce: Reduce | None = None,
    tile: tuple[TensorMap, Places] | None = None,
) -> None:
    """Starts copies into shared memory that tell mbarriers, perhaps in several blocks at once.

    `target` is (block, offset) of each thread's destination, `places` (n, pieces) the offsets that are written. Operand
    `barrier` names the mbarrier; a mask of blocks is the one behind it. The mbarriers are told of `nbytes` (None: all
    pieces). `fill` stands for elements outside of a tensor, `reduce` combines the bytes with those that are there.
    `tile` is that of a `Transfer`.
    """
    count = np.full(len(places), places.shape[1] * PIECE, dtype=np.int64) if nbytes is None else nbytes
    blocks, offsets = issue.signal(barrier, target[0], count)
    rows = np.arange(len(places))
    where = target[0]
    if ".multicast::cluster" in issue.step.instruction.opcode:
        rows, where = issue.destinations(barrier + 1)
        blocks = where
    target_side, signal = Shared(where, places[rows]), Signal(blocks, offsets[rows], count[rows])
    group = np.zeros(len(places), dtype=np.int64)
    issue.start(source, target_side, rows, signal, group, fill, reduce, nbytes is not None, tile)


def out_of_shared(
    issue: Issue, source: Shared, target: Global, reduce: Reduce | None = None, *, box: bool = False
) -> None:
    """Starts copies of bulk groups into global memory."""
    issue.refuse(source.blocks != issue.lanes[0], "out-of-bounds", "the source of a bulk copy lies in another block")
    rows = np.arange(len(source.blocks))
    issue.start(source, target, rows, None, issue.copies.groups(issue.lanes), None, reduce, box)
