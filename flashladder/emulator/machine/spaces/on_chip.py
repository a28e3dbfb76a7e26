"""Shared memory of every block and local memory of every thread: rows of bytes, and a map of what was written.

Why the map: on a GPU, reading shared memory that nobody wrote gives whatever the previous kernel left, which is often
the right numbers of the previous launch. Here it is an error. (Local memory starts with all bits set.) The map (`rows`)
has one bit per byte, and one row for all blocks while they agree (addresses rarely depend on the block), so that
checking one ``ldmatrix`` of a slice costs a look-up of 128 numbers. When everything is written nothing is looked up any
more.

Source: PTX ISA 9.0, 5.1.5 (local), 5.1.7 (shared), 6.4.1 (alignment).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from flashladder.emulator.machine.deferred import Writer
from flashladder.emulator.machine.memory import per_address, values_of, words_of
from flashladder.emulator.machine.spaces.rows import CHUNK, Rows
from flashladder.emulator.syntax.tree import Instruction
from flashladder.emulator.values import WARP, Array, BoolArray, Shape3

if TYPE_CHECKING:
    from flashladder.emulator.machine.state import Step

HINTS = {
    "misaligned": "align the array and the pitch of its rows to the access's width, or use a narrower access",
    "uninitialised": "store it before it is read; a GPU shows what was there before the launch",
}
WAITS = {  # how a reader waits for a copy that is still to write what it reads
    "cp.async": "wait for the copy with cp.async.wait_group or wait_all before the barrier that the reader passes",
    "cp.async.bulk": "wait for the phase of its mbarrier that expects its bytes: check parity and expect_tx",
}


class _Window:
    """What shared and local memory have in common: valid addresses, then rows of bytes."""

    space: str
    owner: str
    hint: str

    def __init__(self, rows: tuple[int, ...], nbytes: int) -> None:
        self.nbytes = nbytes
        self._shape = rows  # the leading axes of an address that choose a row; the others are columns
        self._rows = Rows(math.prod(rows), nbytes)

    def _table(self, value: Array, shape: tuple[int, ...]) -> Array:
        """A value, one of those that broadcast to `shape`, as (rows|1, columns)."""
        axes = len(self._shape)
        rows = self._shape if math.prod(value.shape[:axes]) > 1 else (1,) * axes
        return np.broadcast_to(value, (*rows, *shape[axes:])).reshape(math.prod(rows), -1)

    def _untable(self, table: Array, address: Array) -> Array:
        """The inverse for one entry per address: (rows|1, columns) in a shape that broadcasts."""
        axes = len(self._shape)
        return table.reshape(*(self._shape if len(table) > 1 else (1,) * axes), *address.shape[axes:])

    def load(self, step: Step, address: Array, width: int, mask: BoolArray | None = None) -> Array:
        """Reads `width` bytes (1, 2, 4, 8, 16) at each address, a multiple of the width.

        Args:
            step: the instruction, for its mask and for errors.
            address: bytes of the window, u64, (blocks|1, warps|1, n); those of inactive lanes are ignored. n is 1 or
                32, or the number of rows that each warp's first n lanes name (``ldmatrix``).
            width: bytes per lane.
            mask: what reads, a part of the step's lanes, broadcastable with the addresses; None: all of the step's.

        Returns:
            Unsigned integers, for 16 bytes (..., 4) of u32, of shape (blocks, warps|1, n) for shared memory and of the
            full shape for local memory; inactive lanes hold garbage.

        Raises:
            EmulationError: "out-of-bounds", "misaligned", "uninitialised".
        """
        mask = _mask(step, address, mask)
        address = self.check(step, address, width, mask)
        table = self._table(address, address.shape)
        missing = self._rows.unwritten(table, width)
        if missing is not None:
            wrong = self._untable(missing, address)
            wrong = wrong if mask is None else wrong & mask
            if wrong.any():
                what = f"{width}-byte read of {self.space} memory not written before"
                self._fail(step, "uninitialised", what, wrong, address, width)
        return values_of(self._untable(self._rows.gather(table, width), address), width)

    def store(self, step: Step, address: Array, width: int, values: Array, mask: BoolArray | None = None) -> None:
        """Writes `width` bytes at each address; arguments and errors are those of `load`.

        `values` are what `load` returns, in any shape that broadcasts with the addresses. Of several lanes of one
        block that write one address the highest wins; PTX leaves it open.
        """
        mask = _mask(step, address, mask)
        address = self.check(step, address, width, mask)
        words = words_of(values, width)
        shape = np.broadcast_shapes(address.shape, words.shape, () if mask is None else mask.shape)
        table = self._table(address, shape)
        lanes = None if mask is None else self._table(mask, shape)
        if lanes is not None and len(lanes) > 1 and len(table) == 1 and bool((lanes == lanes[:1]).all()):
            lanes = lanes[:1]  # all blocks (threads) alike: one row
        self._rows.scatter(table, width, self._table(words, shape), lanes)
        self._rows.mark(table, width, lanes)

    def check(self, step: Step, address: Array, width: int, mask: BoolArray | None = None) -> Array:
        """The addresses, with 0 for inactive lanes if those need it; fails unless the active ones are valid."""
        joined = int(np.bitwise_or.reduce(address, axis=None))  # at least the largest address
        if not joined & (width - 1) and (joined + width <= self.nbytes or int(address.max()) + width <= self.nbytes):
            return address
        mask = _mask(step, address, mask)
        room = np.uint64(max(0, self.nbytes - width + 1))
        wrong = address >= room if mask is None else (address >= room) & mask
        if wrong.any():
            self._fail(step, "out-of-bounds", f"{width}-byte access", wrong, address, width)
        odd = (address & np.uint64(width - 1)) != 0
        odd = odd if mask is None else odd & mask
        if odd.any():
            what = f"{width}-byte access of {self.space} memory at an address that is not a multiple of {width}"
            self._fail(step, "misaligned", what, odd, address, width)
        active = np.True_ if mask is None else per_address(mask, address.shape)
        return np.where(active, address, np.uint64(0))

    def _fail(self, step: Step, kind: str, what: str, wrong: BoolArray, address: Array, width: int) -> NoReturn:
        """Fails for the first wrong lane; row i of a matrix load is lane i's."""
        rows = address.shape[-1]
        if rows not in {1, WARP}:
            padding = [(0, 0), (0, 0), (0, WARP - rows)]
            address, wrong = np.pad(address, padding), np.pad(wrong, padding)
        lanes = step.lanes() & step.machine.full(wrong)
        first = int(step.machine.full(address)[lanes][0])
        if kind == "out-of-bounds":
            what += f" {self._distance(first, width)} the {self.owner}'s {self.nbytes} bytes of {self.space} memory"
        hint = HINTS.get(kind, self.hint)
        copy = self._in_flight(step, int(np.argwhere(lanes)[0][0]), first, width) if kind == "uninitialised" else None
        if copy is not None:
            name = "cp.async.bulk" if copy.opcode.startswith("cp.async.bulk") else "cp.async"
            where = f" from {copy.source.chain}" if copy.source else ""
            what += f", which the {name} of line {copy.line}{where} is still to write"
            hint = WAITS[name]
        step.fail(kind, what, lanes=wrong, address=address, hint=hint)

    def _distance(self, address: int, width: int) -> str:
        """How far outside an access lies; the upper half of the 32-bit range is taken for negative numbers."""
        if 1 << 31 <= address < 1 << 32:
            return f"{(1 << 32) - address} bytes before the start of"
        return f"{address + width - self.nbytes} bytes past the end of"

    def _in_flight(self, step: Step, block: int, address: int, width: int) -> Instruction | None:  # noqa: ARG002 - shared memory's signature
        """The asynchronous copy that will write these bytes of a block, if there is one."""
        return None


def _mask(step: Step, address: Array, mask: BoolArray | None) -> BoolArray | None:
    """The lanes in question; a load of matrix rows states its own."""
    return step.mask if mask is None and address.shape[-1] in {1, WARP} else mask


class SharedMemory(_Window):
    """The shared window of every block of a slice: static and dynamic variables, `nbytes` in all, addresses from 0."""

    space, owner = "shared", "block"
    hint = "the window is the kernel's shared variables and the launch's dynamic shared memory (`shared_bytes`)"

    def __init__(self, blocks: int, nbytes: int) -> None:
        super().__init__((blocks,), nbytes)
        self.rows = self._rows  # one per block, for accesses of single places

    def store(self, step: Step, address: Array, width: int, values: Array, mask: BoolArray | None = None) -> None:
        """Writes as every window does, but not over an mbarrier."""
        if step.machine.mbarriers.at:
            step.machine.mbarriers.refuse_store(step, address, width, mask)
        super().store(step, address, width, values, mask)

    def take_chunks(self, blocks: Array, places: Array) -> Array:
        """(n, k) words of 16 bytes, as `memory.WORDS` has them, at `places` (n, k), valid, of single `blocks` (n,)."""
        return self._rows.take_chunks(blocks, places // CHUNK)

    def put_chunks(self, blocks: Array, places: Array, words: Array) -> None:
        """Writes words of 16 bytes; arguments as of `take_chunks`."""
        self._rows.put_chunks(blocks, places // CHUNK, words)

    def unwritten_chunks(self, blocks: Array, places: Array) -> BoolArray | None:
        """(n, k) which of these 16 bytes nobody wrote in full; None if there are none."""
        return self._rows.unwritten_chunks(blocks, places // CHUNK)

    def _in_flight(self, step: Step, block: int, address: int, width: int) -> Instruction | None:
        """The first ``cp.async``, or bulk copy, that will write any of these bytes."""
        for copy in step.machine.copies.in_flight:
            mine = step.machine.full(copy.address)[block].astype(np.int64)
            meets = (mine < address + width) & (mine + copy.width > address)
            if copy.mask is not None:
                meets &= step.machine.full(copy.mask)[block]
            if meets.any():
                return copy.instruction
        for operation in step.machine.deferred.pending:
            if isinstance(operation, Writer) and operation.will_write(block, address, width):
                return operation.step.instruction
        return None


class LocalMemory(_Window):
    """The local memory of every thread of a slice, `nbytes` per thread, addresses from 0.

    What nobody wrote has all bits set, as in registers, and may be read: unoptimised code copies whole structures with
    their padding, and cooperative groups set bit fields of a word that holds nothing yet.
    """

    space, owner = "local", "thread"
    hint = "an index past the end of one of the thread's own arrays"

    def __init__(self, shape: Shape3, nbytes: int) -> None:
        super().__init__(shape, nbytes)
        self._rows.fill(b"\xff" * nbytes)


class Parameters(_Window):
    """A kernel's parameter bytes: one window for all blocks, fully written."""

    space, owner = "param", "kernel"
    hint = "the kernel's parameters end before this address"

    def __init__(self, contents: bytes) -> None:
        super().__init__((), len(contents))
        self._rows.fill(contents)
