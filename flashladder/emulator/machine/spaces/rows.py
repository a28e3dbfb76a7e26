"""Address spaces as rows of bytes, with a map of the bytes that somebody wrote.

Why a row for each block (or thread): an access is the same columns of every row, or single places of some; both are one
NumPy call. The map has 16 bits for each aligned chunk of 16 bytes, and one row for all while they agree. `on_chip`
makes the state spaces of it.
"""

from __future__ import annotations

import numpy as np

from flashladder.emulator.machine.memory import SHIFTS, WORDS, scatter
from flashladder.emulator.values import Array, BoolArray

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
            columns = np.flatnonzero(np.broadcast_to(mask[0], _columns(index, words, mask)))
            index, words = _chosen(index, columns), _chosen(words, columns)
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
        if need.shape[0] != 1 and self._map.shape[0] == 1:
            self._map = np.repeat(self._map, self._storage.shape[0], axis=0)
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
        if self._complete:
            return
        if self._map.shape[0] == 1 and self._storage.shape[0] > 1:
            self._map = np.repeat(self._map, self._storage.shape[0], axis=0)
        chunk = (address >> np.uint64(4)).view(np.int64)
        np.bitwise_or.at(self._map, (rows, chunk), _bits(address, width))
        self._map_changed = True

    def unwritten_at(self, rows: Array, address: Array, width: int) -> BoolArray:
        """Which single places have a byte that nobody wrote, (n,)."""
        if self._complete:
            return np.zeros(len(rows), np.bool_)
        need = _bits(address, width)
        row = rows if self._map.shape[0] > 1 else np.zeros_like(rows)
        missing: BoolArray = (self._map[row, (address >> np.uint64(4)).view(np.int64)] & need) != need
        return missing

    def take_chunks(self, rows: Array, chunks: Array) -> Array:
        """Whole chunks of single rows: (n, k) words of 16 bytes at `chunks` (n, k) of `rows` (n,)."""
        found: Array = self._storage.view(WORDS[CHUNK])[rows[:, None], chunks]
        return found

    def put_chunks(self, rows: Array, chunks: Array, words: Array) -> None:
        """Writes whole chunks of single rows; of several at one place the last wins."""
        self._storage.view(WORDS[CHUNK])[rows[:, None], chunks] = words
        if self.unwritten_chunks(rows, chunks) is None:
            return
        if self._map.shape[0] == 1 and self._storage.shape[0] > 1:
            self._map = np.repeat(self._map, self._storage.shape[0], axis=0)
        self._map[rows[:, None], chunks] = ALL
        self._map_changed = True

    def unwritten_chunks(self, rows: Array, chunks: Array) -> BoolArray | None:
        """(n, k) chunks of which some byte was never written; None if there are none."""
        if self._complete:
            return None
        row = rows[:, None] if self._map.shape[0] > 1 else np.zeros((len(rows), 1), dtype=np.int64)
        missing: BoolArray = self._map[row, chunks] != ALL
        return missing if missing.any() else None

    def _entries(self, chunk: Array) -> Array:
        """The map's entries, (rows|1, columns)."""
        flat = chunk.shape[0] != 1
        table: Array = self._map.reshape(-1) if flat else self._map
        found: Array = table.take(chunk + self._row_starts(self._map)) if flat else table.take(chunk[0], axis=1)
        return found

    @staticmethod
    def _row_starts(table: Array) -> Array:
        """The flat index at which each row of a table begins, (rows, 1)."""
        return np.arange(0, table.size, table.shape[1])[:, None]


def _bits(address: Array, width: int) -> Array:
    """The map bits of `width` bytes at each address, within their chunk."""
    return np.left_shift(np.uint16((1 << width) - 1), (address & np.uint64(CHUNK - 1)).astype(np.uint16))


def _columns(*tables: Array) -> int:
    return max(int(table.shape[1]) for table in tables)


def _chosen(table: Array, columns: Array) -> Array:
    """Some columns of a table in which one column stands for all."""
    chosen: Array = table.take(columns, axis=1) if table.shape[1] != 1 else np.repeat(table, len(columns), axis=1)
    return chosen
