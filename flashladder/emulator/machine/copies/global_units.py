"""Many units of global memory at once, for copies of which one thread moves thousands.

Why beside `memory`: there each lane has one address and the executing lanes are known to an instruction; here each row
of a table is one thread's copy, and a bad address is the affair of whoever issued it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np

from flashladder.emulator.machine.copies.boxes import Places
from flashladder.emulator.machine.memory import WORDS, Buffer, GlobalMemory
from flashladder.emulator.values import Array, BoolArray

Wild = Callable[[int, int], NoReturn]  # told the row and the address that lies in no buffer


def gather(memory: GlobalMemory, addresses: Places, unit: int, inside: BoolArray | None, wild: Wild) -> Array:
    """Words of `unit` bytes at `addresses` (n, k), multiples of the unit; 0 where they are not `inside`."""
    words: Array | None = None
    for rows, buffer, index, chosen in _parts(memory, addresses, unit, inside, wild):
        found = buffer.view(unit).take(index)
        if chosen is not None:
            found = np.where(chosen, found, found.dtype.type(0))
        if len(rows) == len(addresses):
            return found
        if words is None:
            words = np.zeros(addresses.shape, dtype=WORDS[unit])
        words[rows] = found
    return np.zeros(addresses.shape, dtype=WORDS[unit]) if words is None else words


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
