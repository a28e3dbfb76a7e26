"""A warpgroup's matrices: factors from shared memory or registers as float32, accumulators to and from registers.

Why the shapes: everything is one array over (blocks, warpgroups, rows, columns), so that one instruction of all
warpgroups of a slice is one batched product. A register r of D holds, of columns 8 j to 8 j + 7 and a half h of the
warp's rows, in lane 4 g + t row g: the numbers of columns 2 t and 2 t + 1, one register each (r = 4 j + 2 h, + 1) or,
of f16, both (r = 2 j + h). Source: PTX ISA 9.0, 9.7.15.5.1 (register fragments and shared memory matrix layouts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from flashladder.emulator.isa.matrix import ROW, stacked, widened
from flashladder.emulator.machine.state import Machine
from flashladder.emulator.machine.warpgroup.warpgroups import WARPS, Product
from flashladder.emulator.values import WARP, Array, BoolArray, merged

EIGHT_BITS = {
    "e4m3": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32),
    "e5m2": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2).astype(np.float32),
}
STORED: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "s32": np.dtype(np.int32)}
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1


def factors(
    owner: Machine, source: Array | Sequence[Array], ptx_type: str, groups: Array, *, transposed: bool
) -> Array:
    """A, or the transpose of B, as float32: (blocks|1, groups|1, M or N, K).

    Args:
        owner: whose shared memory is read.
        source: registers of A, or chunk addresses, (blocks|1, groups|1, rows, chunks) of `descriptors.chunk_addresses`.
        ptx_type: of the numbers.
        groups: the warpgroups that take part.
        transposed: whether the chunks are MN-major.
    """
    if not isinstance(source, np.ndarray):
        pieces = [_of_warps(register, groups) for register in source]
        rows = stacked(pieces, 2)  # (blocks|1, warps, 16, 2)
        return numbers(rows.reshape(len(rows), len(groups), 16 * WARPS, 2), ptx_type)
    found = numbers(_fetched(owner, source), ptx_type)
    return found.swapaxes(-1, -2) if transposed else found


def numbers(rows: Array, ptx_type: str) -> Array:
    """Chunks of 16 bytes as float32, exactly: the last axis grows by the numbers of a chunk."""
    if ptx_type in EIGHT_BITS:
        wide: Array = EIGHT_BITS[ptx_type].take(np.ascontiguousarray(rows).view(np.uint8))
        return wide
    if ptx_type == "b1":
        return np.unpackbits(np.ascontiguousarray(rows).view(np.uint8), axis=-1).astype(np.float32)
    return widened(np.ascontiguousarray(rows).view(ROW), ptx_type)


def _fetched(owner: Machine, address: Array) -> Array:
    """The chunks at these addresses of every block: (blocks, groups|1, rows, chunks)."""
    blocks, groups = owner.shape[0], address.shape[1]
    places = np.broadcast_to(address, (blocks, *address.shape[1:])) if groups > 1 else address
    found = owner.shared.take_chunks(np.repeat(np.arange(blocks), groups), places.reshape(len(places) * groups, -1))
    return found.reshape(blocks, *address.shape[1:])


def _of_warps(register: Array, groups: Array) -> Array:
    """A register of the warps of some warpgroups: (blocks|1, 4 x groups, 32)."""
    chosen = register if register.shape[1] == 1 else register[:, _warps(groups)]
    return np.broadcast_to(chosen, (len(chosen), WARPS * len(groups), WARP))


def _warps(groups: Array) -> Array:
    numbers_of_warps: Array = (groups[:, None] * WARPS + np.arange(WARPS)).reshape(-1)
    return numbers_of_warps


@dataclass
class Accumulators:
    """D of one or several products that follow each other, as a matrix.

    Attributes:
        product: the first of them.
        kind: ``f32``, ``f16`` or ``s32``.
        warps: for whom it is, (blocks|1, warps); None: all.
        matrix: (blocks, groups, 64, N): float32, which may hold f16 numbers, or int64; None before it is needed.
    """

    product: Product
    kind: str
    warps: BoolArray | None
    matrix: Array | None = None

    @classmethod
    def of(cls, owner: Machine, product: Product, kind: str, warps: BoolArray | None) -> Accumulators:
        """The accumulators of a product, read from the registers if any warpgroup adds to them."""
        held = cls(product, kind, warps)
        if product.keeps.any():
            held.matrix = held.loaded(owner)
        return held

    def fits(self, product: Product, warps: BoolArray | None) -> bool:
        """Whether a product has the same accumulators for the same warps."""
        if product.results != self.product.results or not np.array_equal(product.groups, self.product.groups):
            return False
        if warps is None or self.warps is None:
            return warps is self.warps
        return warps is self.warps or np.array_equal(warps, self.warps)

    def add(self, sums: Array, keeps: BoolArray, *, saturate: bool) -> None:
        """D = sums, plus D where `keeps`, (blocks|1, groups|1), holds."""
        if self.kind == "s32":
            sums = sums.astype(np.int64)
        if self.matrix is not None and keeps.any():
            added = self.matrix + sums
            sums = added if keeps.all() else np.where(keeps[..., None, None], added, sums)
        if self.kind == "f16":
            sums = sums.astype(np.float16).astype(np.float32)
        elif self.kind == "s32":
            sums = np.clip(sums, LOWEST, HIGHEST) if saturate else ((sums - LOWEST) & 0xFFFFFFFF) + LOWEST
        self.matrix = sums

    def loaded(self, owner: Machine) -> Array:
        """The matrix that the registers hold."""
        dtype, names, groups = STORED[self.kind], self.product.results, self.product.groups
        blocks, warps = owner.shape[0], WARPS * len(groups)
        held = np.empty((len(names), blocks, warps, WARP), np.uint32)
        chosen = _warps(groups)
        for r, name in enumerate(names):
            register = owner.registers[owner.slots[name]].view(np.uint32)
            held[r] = register if register.shape[1] == 1 else register[:, chosen]
        pairs = (-1, 2, 2) if dtype.itemsize == 4 else (-1, 2)
        tiles = held.reshape(*pairs, blocks, len(groups), WARPS, 8, 4)
        tiles = tiles.view(dtype).reshape(*tiles.shape, -1) if dtype.itemsize == 2 else tiles.view(dtype)
        order = (3, 4, 5, 1, 6, 0, 7, 2) if dtype.itemsize == 4 else (2, 3, 4, 1, 5, 0, 6, 7)
        matrix = tiles.transpose(order).reshape(blocks, len(groups), 16 * WARPS, -1)
        return matrix.astype(np.int64 if self.kind == "s32" else np.float32)

    def store(self, owner: Machine) -> None:
        """Writes the registers, for the warps in question."""
        if self.matrix is None:
            return
        dtype, groups = STORED[self.kind], self.product.groups
        columns = self.matrix.shape[-1]
        whole = np.broadcast_to(self.matrix, (owner.shape[0], len(groups), *self.matrix.shape[2:])).astype(dtype)
        tiles = whole.reshape(owner.shape[0], len(groups), WARPS, 2, 8, columns // 8, 4, 2)
        order = (5, 3, 7, 0, 1, 2, 4, 6) if dtype.itemsize == 4 else (5, 3, 0, 1, 2, 4, 6, 7)
        flat = np.ascontiguousarray(tiles.transpose(order)).view(dtype if dtype.itemsize == 4 else np.uint32)
        pieces = flat.reshape(-1, owner.shape[0], WARPS * len(groups), WARP)
        self._assign(owner, pieces)

    def _assign(self, owner: Machine, pieces: Array) -> None:
        """Puts (registers, blocks, warps of the groups, 32) where they belong."""
        slots = [owner.slots[name] for name in self.product.results]
        chosen = _warps(self.product.groups)
        if len(chosen) == owner.shape[1] and self.warps is None:
            for slot, piece in zip(slots, pieces, strict=True):
                owner.registers[slot] = piece
            return
        mask = None if self.warps is None else np.broadcast_to(self.warps, owner.shape[:2])[:, chosen, None]
        every = np.empty((len(slots), *owner.shape), pieces.dtype)
        for slot, piece, full in zip(slots, pieces, every, strict=True):
            full[...] = owner.registers[slot].view(pieces.dtype)
            full[:, chosen] = piece if mask is None or mask.all() else merged(full[:, chosen], piece, mask)
            owner.registers[slot] = full
