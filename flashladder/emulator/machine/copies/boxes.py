"""Where the elements of a box lie: in the tensor, and (swizzled) in shared memory.

Why: one instruction moves thousands of elements, so that places are worked out as whole arrays, once for each tensor
map and all the threads that issue the instruction together. A *unit* is what moves at once: 16 bytes where the box's
rows begin and end at multiples of it in global memory, else one element.

Source: PTX ISA 9.0, 5.5.1 to 5.5.7 (tiled mode, bounds, traversal stride, swizzling modes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from flashladder.emulator.machine.copies.map_rules import UNIT
from flashladder.emulator.machine.copies.tensor_map import Decoded, TensorMap
from flashladder.emulator.values import BoolArray

Places = npt.NDArray[np.int64]
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
    unit = UNIT if whole or _whole_units(given, coordinates) else given.itemsize
    steps = (1, *given.element_strides[1:])
    grid = grid_of(given.itemsize, given.counts, steps, given.strides, given.span, unit)
    strides = np.array([given.itemsize, *given.strides], dtype=np.int64)
    start = tensor.address + (coordinates * strides).sum(axis=1)
    return Boxes(unit, start[:, None] + grid.offsets, _inside(given, coordinates, grid), grid.places)


def _whole_units(given: TensorMap, coordinates: Places) -> bool:
    """Whether rows of boxes begin and end, and the tensor ends, at multiples of 16 bytes."""
    along = np.append(coordinates[:, 0], given.dims[0]) * given.itemsize
    return not bool((along % UNIT).any())


def _inside(given: TensorMap, coordinates: Places, grid: Grid) -> BoolArray | None:
    """Which units lie in the tensor; None where that is all of them."""
    dims = np.array(given.dims, dtype=np.int64)
    last = grid.axes[:, -1]
    if bool((coordinates >= 0).all()) and bool((coordinates + last < dims).all()):
        return None
    inside = np.ones((len(coordinates), grid.axes.shape[1]), dtype=np.bool_)
    for axis, along in enumerate(grid.axes):
        at = coordinates[:, axis, None] + along
        inside &= (at >= 0) & (at < dims[axis])
    return inside
