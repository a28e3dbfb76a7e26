"""Bookkeeping beside memory: arrays with one row per *unit* of 16 bytes, in finer units as soon as an access needs it.

Why: tracking every byte exactly would cost sixteen times more than kernels that move 16 bytes per lane need. All
accesses so far have covered whole units, so all bytes of a unit have the same history, and cutting the units into
smaller ones later repeats each row: nothing is lost.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flashladder.emulator.values import Array

UNIT = 16  # bytes; the widest access of a lane


class Shadow:
    """Named arrays over the units of a memory.

    Attributes:
        unit: bytes per unit, a power of two; every access seen so far covers whole units.
        units: how many units the arrays hold.
        arrays: each array by name; the first axis counts units.
    """

    def __init__(self) -> None:
        self.unit = UNIT
        self.units = 0
        self.arrays: dict[str, Array] = {}
        self._fills: dict[str, int] = {}

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def add(self, name: str, fill: int, columns: int = 0, dtype: npt.DTypeLike = np.int32) -> None:
        """Adds an array filled with `fill`, of shape (units,) or (units, columns)."""
        shape = (self.units, columns) if columns else (self.units,)
        self.arrays[name] = np.full(shape, fill, dtype=dtype)
        self._fills[name] = fill

    def fit(self, address: npt.NDArray[np.int64], width: int) -> None:
        """Makes the unit small enough for accesses of `width` bytes at these addresses (not empty)."""
        bits = int(np.bitwise_or.reduce(address, axis=None)) | width
        unit = min(self.unit, bits & -bits)
        if unit == self.unit:
            return
        factor = self.unit // unit
        self.arrays = {name: np.repeat(array, factor, axis=0) for name, array in self.arrays.items()}
        self.unit, self.units = unit, self.units * factor

    def reserve(self, units: int) -> None:
        """Makes room for at least this many units; at least doubles, so that growing stays cheap."""
        if units <= self.units:
            return
        extra = max(units, 2 * self.units) - self.units
        for name, array in self.arrays.items():
            more = np.full((extra, *array.shape[1:]), self._fills[name], dtype=array.dtype)
            self.arrays[name] = np.concatenate([array, more])
        self.units += extra

    def spread(self, address: npt.NDArray[np.int64], width: int, threads: Array) -> tuple[npt.NDArray[np.int64], Array]:
        """Indices of all units of each access, and the accessing threads repeated to match."""
        units = address // self.unit
        count = width // self.unit
        if count == 1:
            return units, threads
        return (units[:, None] + np.arange(count)).reshape(-1), np.repeat(threads, count)
