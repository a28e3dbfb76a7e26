"""Shared memory of a block and of its cluster, and local memory: rows of bytes with a map of what was written.

There is a row for each block (or thread): an access is the same columns of every row, or single places of some; both
are one NumPy call. On a GPU, reading shared memory that nobody wrote gives whatever the previous kernel left, which is
often the right numbers of the previous launch; here it is an error. The map has a bit per byte, 16 in a number, and
one row for all blocks while they agree. When everything is written nothing is looked up any more.

All blocks of a cluster run in one slice, one behind the other in the order of their ranks. An address of 32 bits names
the executing block's own shared memory, as it does in ``shared::cta``; ``mapa`` puts the rank of the block, plus one,
above the 24 bits of the offset. A generic address is the same number in the window of shared memory.

Source: PTX ISA 9.0, 5.1.5 (local), 5.1.7 (shared), 6.4.1 (alignment), 9.7.9.8 (ld), 9.7.9.11 (st), 9.7.9.23 (mapa).
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import NoReturn

import numpy as np

from ptxemu.machine.core import Machine, Step
from ptxemu.machine.memory import SHARED_WINDOW, SHIFTS, WORDS, per_address, scatter, values_of, words_of
from ptxemu.syntax.tree import Instruction
from ptxemu.values import WARP, Array, BoolArray, Shape3

CHUNK = 16  # bytes that one entry of the map stands for
ALL = 0xFFFF  # every byte of a chunk is written


class Rows:
    """`rows` address spaces of `nbytes` bytes, in which one address per column is accessed in every row at once.

    Addresses, values and masks have shape (rows|1, columns): one row stands for all. Addresses are valid already.
    """

    def __init__(self, rows: int, nbytes: int) -> None:
        padded = max(CHUNK, -(-nbytes // CHUNK) * CHUNK)
        self._storage = np.zeros((rows, padded), dtype=np.uint8)
        self._map = np.zeros((1, padded // CHUNK), dtype=np.uint16)
        self._map[0, nbytes // CHUNK :] = ALL
        self._map[0, -1] &= ALL & ~((1 << (nbytes - padded + CHUNK)) - 1)  # only the padding counts as written
        self._complete = nbytes == 0
        self._map_changed = False

    def fill(self, contents: bytes) -> None:
        """Gives every row the same contents; all of it counts as written."""
        self._storage[:, : len(contents)] = np.frombuffer(contents, dtype=np.uint8)
        self._complete = True

    def gather(self, address: Array, width: int) -> Array:
        """The words at these addresses, (rows, columns)."""
        view: Array = self._storage.view(WORDS[width])
        index = (address >> SHIFTS[width]).view(np.int64)
        found: Array
        if index.shape[0] != 1:
            found = view.reshape(-1).take(index + self._row_starts(view))
        elif index.shape[1] == 1:
            found = view[:, index[0, 0], None].copy()
        else:
            found = view.take(index[0], axis=1)
        return found

    def scatter(self, address: Array, width: int, words: Array, mask: BoolArray | None) -> None:
        """Writes words; of several columns at one address the last wins."""
        view = self._storage.view(WORDS[width])
        index = (address >> SHIFTS[width]).view(np.int64)
        if index.shape == (1, 1) and words.shape[1] == 1 and (mask is None or mask.shape[1] == 1):
            column = view[:, index[0, 0]]
            np.copyto(column, words[:, 0], where=True if mask is None else mask[:, 0])
        elif mask is not None and mask.shape[0] == 1:
            columns = np.flatnonzero(np.broadcast_to(mask[0], max(each.shape[1] for each in (index, words, mask))))
            index, words = (
                each.take(columns, axis=1) if each.shape[1] != 1 else np.repeat(each, len(columns), axis=1)
                for each in (index, words)
            )
            scatter(view.reshape(-1), index + self._row_starts(view), words, None)
        else:
            scatter(view.reshape(-1), index + self._row_starts(view), words, mask)

    def unwritten(self, address: Array, width: int) -> BoolArray | None:
        """Which addresses, (rows|1, columns), have a byte that nobody wrote; None if there are none."""
        if self._map_changed and not self._complete:
            self._complete, self._map_changed = int(self._map.min()) == ALL, False
        if self._complete:
            return None
        have = self._entries((address >> np.uint64(4)).view(np.int64))
        if width == CHUNK and int(have.min()) == ALL:
            return None
        need = _bits(address, width)
        missing: BoolArray = (have & need) != need
        return missing if missing.any() else None

    def mark(self, address: Array, width: int, mask: BoolArray | None) -> None:
        """Records that these bytes are written."""
        missing = self.unwritten(address, width)
        if missing is None or (mask is not None and not (missing & mask).any()):
            return
        need = _bits(address, width)
        if mask is not None:
            need = np.where(mask, need, np.uint16(0))
        if need.shape[0] != 1:
            self._one_map_per_row()
        chunk = (address >> np.uint64(4)).view(np.int64) + self._row_starts(self._map)
        np.bitwise_or.at(self._map.reshape(-1), *np.broadcast_arrays(chunk, need))
        self._map_changed = True

    def take(self, rows: Array, address: Array, width: int) -> Array:
        """The words at single places: `address` of row `rows`, both (n,)."""
        view: Array = self._storage.view(WORDS[width])
        return view[rows, (address >> SHIFTS[width]).view(np.int64)]

    def put(self, rows: Array, address: Array, width: int, words: Array) -> None:
        """Writes words at single places and marks them as written; of several at one place the last wins."""
        self._storage.view(WORDS[width])[rows, (address >> SHIFTS[width]).view(np.int64)] = words
        if not self._complete:
            self._one_map_per_row()
            np.bitwise_or.at(self._map, (rows, (address >> np.uint64(4)).view(np.int64)), _bits(address, width))

    def unwritten_at(self, rows: Array, address: Array, width: int) -> BoolArray:
        """Which single places have a byte that nobody wrote, (n,)."""
        if self._complete:
            return np.zeros(len(rows), np.bool_)
        need = _bits(address, width)
        row = rows if self._map.shape[0] > 1 else np.zeros_like(rows)
        return np.asarray((self._map[row, (address >> np.uint64(4)).view(np.int64)] & need) != need)

    def take_chunks(self, rows: Array, places: Array) -> Array:
        """Whole chunks of single rows: (n, k) words of 16 bytes at `places` (n, k) of `rows` (n,)."""
        return np.asarray(self._storage.view(WORDS[CHUNK])[rows[:, None], places // CHUNK])

    def put_chunks(self, rows: Array, places: Array, words: Array) -> None:
        """Writes whole chunks of single rows; of several at one place the last wins."""
        self._storage.view(WORDS[CHUNK])[rows[:, None], places // CHUNK] = words
        if self.unwritten_chunks(rows, places) is not None:
            self._one_map_per_row()
            self._map[rows[:, None], places // CHUNK] = ALL

    def _one_map_per_row(self) -> None:
        """Rows begin to differ in what was written."""
        if self._map.shape[0] == 1:
            self._map = np.repeat(self._map, self._storage.shape[0], axis=0)
        self._map_changed = True

    def unwritten_chunks(self, rows: Array, places: Array) -> BoolArray | None:
        """(n, k) chunks of which some byte was never written; None if there are none."""
        if self._complete:
            return None
        row = rows[:, None] if self._map.shape[0] > 1 else np.zeros((len(rows), 1), dtype=np.int64)
        missing: BoolArray = self._map[row, places // CHUNK] != ALL
        return missing if missing.any() else None

    def _entries(self, chunk: Array) -> Array:
        """The map's entries, (rows|1, columns)."""
        flat = chunk.shape[0] != 1
        table: Array = self._map.reshape(-1) if flat else self._map
        return np.asarray(table.take(chunk + self._row_starts(self._map)) if flat else table.take(chunk[0], axis=1))

    @staticmethod
    def _row_starts(table: Array) -> Array:
        """The flat index at which each row of a table begins, (rows, 1)."""
        return np.arange(0, table.size, table.shape[1])[:, None]


def _bits(address: Array, width: int) -> Array:
    """The map bits of `width` bytes at each address, within their chunk."""
    return np.left_shift(np.uint16((1 << width) - 1), (address & np.uint64(CHUNK - 1)).astype(np.uint16))


HINTS = {
    "misaligned": "align the array and the pitch of its rows to the access's width, or use a narrower access",
    "uninitialised": "store it before it is read; where another thread does, a barrier is missing",
}
WAITS = {  # how a reader waits for a copy that is still to write what it reads
    "cp.async": "wait for the copy with cp.async.wait_group or wait_all before the barrier that the reader passes",
    "cp.async.bulk": "wait for the phase of its mbarrier that expects its bytes: check parity and expect_tx",
}


MBARRIER_BYTES = 8
OVER = "mbarrier.inval before its bytes are used otherwise, or place them elsewhere"


class _Window:
    """What shared and local memory have in common: valid addresses, then `rows` of bytes, one per block or thread."""

    space: str
    owner: str
    hint: str

    first = 0  # the lowest valid address

    def __init__(self, rows: tuple[int, ...], nbytes: int) -> None:
        self.nbytes = nbytes
        self._shape = rows  # the leading axes of an address that choose a row; the others are columns
        self.rows = Rows(math.prod(rows), nbytes)
        self.writers: list[Callable[[int, int, int], Instruction | None]] = []  # what will write bytes of a block

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
        missing = self.rows.unwritten(table, width)
        if missing is not None:
            wrong = self._untable(missing, address)
            wrong = wrong if mask is None else wrong & mask
            if wrong.any():
                what = f"{width}-byte read of {self.space} memory not written before"
                self._fail(step, "uninitialised", what, wrong, address, width)
        return values_of(self._untable(self.rows.gather(table, width), address), width)

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
        self.rows.scatter(table, width, self._table(words, shape), lanes)
        self.rows.mark(table, width, lanes)

    def check(self, step: Step, address: Array, width: int, mask: BoolArray | None = None) -> Array:
        """The addresses, with 0 for inactive lanes if those need it; fails unless the active ones are valid."""
        joined = int(np.bitwise_or.reduce(address, axis=None))  # at least the largest address
        if (
            not joined & (width - 1)
            and (joined + width <= self.nbytes or int(address.max()) + width <= self.nbytes)
            and (not self.first or int(address.min(initial=self.first)) >= self.first)
        ):
            return address
        mask = _mask(step, address, mask)
        room = np.uint64(max(0, self.nbytes - width + 1))
        wrong = (address >= room) | (address < np.uint64(self.first))
        wrong = wrong if mask is None else wrong & mask
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
            room = self.nbytes - self.first
            what += f" {self._distance(first, width)} the {self.owner}'s {room} bytes of {self.space} memory"
        hint = HINTS.get(kind, self.hint)
        block = int(np.argwhere(lanes)[0][0])
        copies = [writer(block, first, width) for writer in self.writers] if kind == "uninitialised" else []
        if (copy := next(filter(None, copies), None)) is not None:
            name = "cp.async.bulk" if copy.opcode.startswith("cp.async.bulk") else "cp.async"
            where = f" from {copy.source.chain}" if copy.source else ""
            what += f", which the {name} of line {copy.line}{where} is still to write"
            hint = WAITS[name]
        step.fail(kind, what, lanes=wrong, address=address, hint=hint)

    def _distance(self, address: int, width: int) -> str:
        """How far outside an access lies; the upper half of the 32-bit range is taken for negative numbers."""
        if 1 << 31 <= address < 1 << 32:
            return f"begins {(1 << 32) - address + self.first} bytes before the start of"
        if address < self.first:
            return f"begins {self.first - address} bytes before the start of"
        return f"reaches {address + width - self.nbytes} bytes past the end of"


def _mask(step: Step, address: Array, mask: BoolArray | None) -> BoolArray | None:
    """The lanes in question; a load of matrix rows states its own."""
    return step.mask if mask is None and address.shape[-1] in {1, WARP} else mask


class SharedMemory(_Window):
    """The shared window of every block of a slice: static and dynamic variables, from `first` up to `nbytes`.

    What lies below belongs to the system: 1 KiB on sm_90.

    Attributes:
        mbarriers: where mbarriers lie: by offset, whether each block has a live one there.
        writers: ask for the asynchronous copy that is still to write bytes of a block: (block, address, width).
    """

    space, owner = "shared", "block"
    hint = "the window is the kernel's shared variables and the launch's dynamic shared memory (--shared, shared_bytes)"

    def __init__(self, blocks: int, nbytes: int, first: int = 0) -> None:
        super().__init__((blocks,), nbytes)
        self.blocks, self.first = blocks, first
        self.mbarriers: dict[int, BoolArray] = {}

    def store(self, step: Step, address: Array, width: int, values: Array, mask: BoolArray | None = None) -> None:
        """Writes as every window does, but not over an mbarrier."""
        for offset, live in self.mbarriers.items():
            hit = (address < np.uint64(offset + MBARRIER_BYTES)) & (address + np.uint64(width) > np.uint64(offset))
            lanes = hit & live[:, None, None] & step.lanes() & (True if mask is None else mask) if hit.any() else hit
            if lanes.any():
                what = f"store over the mbarrier at {offset:#x}"
                step.fail("mbarrier", what, lanes=lanes, address=address, hint=OVER)
        super().store(step, address, width, values, mask)

    def hits(self, blocks: Array, offsets: Array, width: int) -> BoolArray:
        """Which writes of `width` bytes, at flat `offsets` of `blocks`, hit a live mbarrier."""
        found = np.zeros(len(blocks), np.bool_)
        for offset, live in self.mbarriers.items():
            found |= live[blocks] & (offsets < offset + MBARRIER_BYTES) & (offsets + width > offset)
        return found


class LocalMemory(_Window):
    """The local memory of every thread of a slice, `nbytes` per thread, addresses from 0.

    What nobody wrote has all bits set, as in registers, and may be read: unoptimised code copies whole structures with
    their padding, and cooperative groups set bit fields of a word that holds nothing yet.
    """

    space, owner = "local", "thread"
    hint = "an index past the end of one of the thread's own arrays"

    def __init__(self, shape: Shape3, nbytes: int) -> None:
        super().__init__(shape, nbytes)
        self.rows.fill(b"\xff" * nbytes)


class Parameters(_Window):
    """A kernel's parameter bytes: one window for all blocks, fully written."""

    space, owner = "param", "kernel"
    hint = "the kernel's parameters end before this address"

    def __init__(self, contents: bytes) -> None:
        super().__init__((), len(contents))
        self.rows.fill(contents)


RANK_SHIFT = 24  # of the rank in an address that mapa made; a window of shared memory is far smaller
OFFSET = (1 << RANK_SHIFT) - 1
SPACE = "shared::cluster"
GONE = (
    "every block of a cluster stays until its peers have done with its shared memory: barrier.cluster before the exit"
)


class Cluster:
    """The shared memory of the blocks of clusters, by addresses that name a block.

    Attributes:
        size: blocks of a cluster; 1 where none was asked for.
        shared: the blocks' shared memory.
        mapped_any: whether the program has asked for an address in a named block (``mapa``).
    """

    def __init__(self, machine: Machine, shared: SharedMemory) -> None:
        self.machine, self.shared = machine, shared
        self.size = machine.cluster_size
        self.mapped_any = False

    def resolve(self, address: Array) -> tuple[Array, Array]:
        """(block of the slice, offset in its shared memory) of addresses of the cluster's window or generic ones.

        Both are int64; the block has as many rows as the slice has blocks. Ranks may be wrong (`valid`).
        """
        plain = (address & np.uint64(SHARED_WINDOW - 1)).astype(np.int64)
        own = np.arange(self.machine.shape[0], dtype=np.int64).reshape(-1, 1, 1)
        rank = (plain >> RANK_SHIFT) - 1
        block = np.where(rank < 0, own, own - own % self.size + rank)
        return block, plain & OFFSET

    def valid(self, address: Array) -> Array:
        """Whether the cluster has a block of the rank that each address names."""
        plain = (address & np.uint64(SHARED_WINDOW - 1)).astype(np.int64)
        return np.asarray(plain >> RANK_SHIFT <= self.size)

    def mapped(self, address: Array, rank: Array) -> Array:
        """What ``mapa`` makes of addresses of shared memory: those of the same offset in the block with that rank."""
        plain = address & np.uint64(OFFSET)
        window = address & np.uint64(SHARED_WINDOW)
        return np.asarray(window | plain | ((rank.astype(np.uint64) + np.uint64(1)) << np.uint64(RANK_SHIFT)))

    def reaches(self, step: Step, address: Array, mask: BoolArray | None) -> bool:
        """Whether an address of shared memory names a block of the cluster, as ``mapa`` makes them."""
        if not self.mapped_any or int(address.max()) <= OFFSET:
            return False
        named = (address > np.uint64(OFFSET)) & (address >> np.uint64(RANK_SHIFT) <= np.uint64(self.size))
        active = step.lanes() if mask is None else step.lanes() & mask
        return bool((named & active).any())

    def places(
        self, step: Step, address: Array, width: int, mask: BoolArray | None = None
    ) -> tuple[tuple[Array, ...], Array, Array]:
        """Where each executing lane's access lies, with addresses of the cluster's window; `mask`: a part of the lanes.

        Returns the lanes (three index arrays), and for each the block of the slice and the offset, int64. Fails:
        "out-of-bounds", "misaligned", "exited" (the block is gone).
        """
        full, nbytes, first = self.machine.full, self.shared.nbytes, self.shared.first
        active = step.lanes() if mask is None else step.lanes() & mask
        what = f"{width}-byte access of the cluster's shared memory"
        far = ~self.valid(address) & active
        if far.any():
            found = f"rank {int(full(address)[far][0] >> np.uint64(RANK_SHIFT)) - 1}"
            expected = f"a block of the cluster, 0 to {self.size - 1}"
            step.fail("out-of-bounds", what, lanes=far, address=address, expected=expected, found=found)
        block, offset = self.resolve(address)
        past, hint = f"{what} outside of the block's {nbytes - first} bytes", self.shared.hint
        outside = ((offset + width > nbytes) | (offset < first)) & active
        step.refuse(outside, "out-of-bounds", past, address=address, hint=hint)
        odd = f"{what} at an address that is not a multiple of {width}"
        step.refuse((offset % width != 0) & active, "misaligned", odd, address=address, hint=HINTS["misaligned"])
        lanes = np.nonzero(active)
        blocks, offsets = full(block)[lanes], full(offset)[lanes]
        self.refuse_exited(step, lanes, blocks, what)
        return lanes, blocks, offsets

    def refuse_exited(self, step: Step, lanes: tuple[Array, ...], blocks: Array, what: str) -> None:
        """Fails if one of the blocks that lanes mean has exited, other than the lanes' own."""
        alive = np.logical_or.reduce(self.machine.live, axis=(1, 2))
        gone = (blocks != lanes[0]) & ~alive[blocks]
        if gone.any():
            first = int(gone.argmax())
            chosen = self.machine.only(*(axis[first] for axis in lanes))
            peer = self.machine.block_index(int(blocks[first]))
            step.fail("exited", f"{what} of a block that has exited", lanes=chosen, found=f"block {peer}", hint=GONE)

    def load(self, step: Step, address: Array, width: int, mask: BoolArray | None = None) -> Array:
        """Reads `width` bytes per executing lane, as `SharedMemory.load` does; the result has the full shape."""
        lanes, blocks, offsets = self.places(step, address, width, mask)
        missing = self.shared.rows.unwritten_at(blocks, offsets.astype(np.uint64), width)
        if missing.any():
            wrong = self.machine.only(*(axis[missing] for axis in lanes))
            what = f"{width}-byte read of the cluster's shared memory not written before"
            step.fail("uninitialised", what, lanes=wrong, address=address, hint=HINTS["uninitialised"])
        words = self.shared.rows.take(blocks, offsets.astype(np.uint64), width)
        full = np.zeros(self.machine.shape, words.dtype)
        full[lanes] = words
        return values_of(full, width)

    def store(self, step: Step, address: Array, width: int, values: Array, mask: BoolArray | None = None) -> None:
        """Writes `width` bytes per executing lane; of several at one place the highest wins."""
        lanes, blocks, offsets = self.places(step, address, width, mask)
        over = self.shared.hits(blocks, offsets, width)
        if over.any():
            chosen = self.machine.only(*(axis[over] for axis in lanes))
            step.fail("mbarrier", "store over a live mbarrier of the cluster", lanes=chosen, address=address)
        words = self.machine.full(words_of(values, width))[lanes]
        self.shared.rows.put(blocks, offsets.astype(np.uint64), width, words)
