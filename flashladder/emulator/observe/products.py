"""Matrix products of warpgroups as the race detector sees them: asynchronous reads of A and B in shared memory.

A product reads from its issue until the wait of the last of its four warps. Everybody in the warpgroup has to know of
what was written before the issue, through a fence of the async proxy where threads wrote it; who writes over a matrix
later has to know of the wait, from the last warp or from all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flashladder.emulator.machine.warpgroup.warpgroups import WARPS, Product
from flashladder.emulator.observe.meetings import Group
from flashladder.emulator.observe.operations import Operations
from flashladder.emulator.values import WARP, Array, BoolArray

if TYPE_CHECKING:
    from flashladder.emulator.machine.state import Step

THREADS = WARPS * WARP


@dataclass(frozen=True)
class _Part:
    """What one warpgroup of a cluster reads: its first thread, which of its warps act, addresses of chunks, int64."""

    first: int
    warps: int  # bits
    address: Array

    @property
    def acting(self) -> Array:
        """The threads of the warps that act."""
        chosen = [self.first + WARP * i + np.arange(WARP) for i in range(WARPS) if self.warps >> i & 1]
        return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)


class Products(Operations):
    """Tells the bookkeeping when products begin and end to read."""

    def product_issued(self, step: Step, product: Product) -> None:
        """Its matrices are read from now on."""
        site, number = self._site(step.instruction), self._number(product)
        everybody = np.array([[(1 << WARPS) - 1]]) if product.warps is None else _bits(product.warps, product)
        for group, parts in self._parts(product, everybody):
            for part in parts:
                threads = part.first + np.arange(THREADS)
                found = group.races.asynchronous.fetch((number, part.first), threads, part.address, site)
                self._report("shared", found, step.instruction, group)

    def product_done(self, step: Step, product: Product, warps: BoolArray | None) -> None:  # noqa: ARG002 - the observer's signature
        """For warpgroups all of whose warps have waited nothing is read any more, and those who waited last know."""
        number = self._number(product)
        acting = np.array([[(1 << WARPS) - 1]]) if warps is None else _bits(warps, product)
        if product.pending is not None:
            acting = np.where(_bits(product.pending, product) == 0, acting, 0)
        for group, parts in self._parts(product, acting):
            for part in parts:
                key = ("product", part.first)
                group.races.asynchronous.fetched((number, part.first), key, part.acting)
        if product.pending is None or not product.pending.any():
            self._names.pop(id(product), None)

    def _parts(self, product: Product, acting: Array) -> list[tuple[Group, list[_Part]]]:
        """Each group with the warpgroups of a cluster of which some warps act; `acting`: (blocks|1, groups|1) bits."""
        size, blocks = self._fold.size, self._fold.shape[0]
        sides = [product.right] if isinstance(product.left, list) else [product.left, product.right]
        flat = [side.reshape(*side.shape[:2], -1) for side in sides if isinstance(side, np.ndarray)]
        count = len(product.groups)
        alike = len(acting) == 1 and all(len(side) == 1 for side in flat)
        rows = 1 if alike else blocks
        address = np.concatenate([np.broadcast_to(side, (rows, count, side.shape[2])) for side in flat], axis=2)
        bits = np.broadcast_to(acting, (rows, count))
        first = np.broadcast_to(product.groups * THREADS, (rows, count))
        if alike:
            parts = [
                _Part(self._thread(rank, int(first[0, g])), int(bits[0, g]), address[0, g] + rank * self._fold.stride)
                for rank in range(size)
                for g in range(count)
                if bits[0, g]
            ]
            return [(group, parts) for group in self._groups]
        rank = np.arange(blocks) % size
        placed = address + (rank * self._fold.stride)[:, None, None]
        threads = first + (rank * self._fold.shape[1] * WARP)[:, None]
        table = np.concatenate([bits[..., None], threads[..., None], placed], axis=2).reshape(blocks * count, -1)
        chosen = np.flatnonzero(table[:, 0])
        clusters = np.repeat(np.arange(blocks) // size, count)[chosen]
        return [
            (group, [_Part(int(row[1]), int(row[0]), row[2:]) for row in rows_of])
            for group, rows_of in self._tabled(clusters, table[chosen])
        ]

    def _thread(self, rank: int, thread: int) -> int:
        """A thread of a block as one of the cluster."""
        return rank * self._fold.shape[1] * WARP + thread


def _bits(warps: BoolArray, product: Product) -> Array:
    """(blocks|1, warps|1) as four bits for each warpgroup that takes part: (blocks|1, groups)."""
    here = np.broadcast_to(warps, (len(warps), max(warps.shape[1], WARPS * (int(product.groups.max()) + 1))))
    four = here[:, (product.groups[:, None] * WARPS + np.arange(WARPS)).reshape(-1)].reshape(len(here), -1, WARPS)
    return np.asarray(four @ (1 << np.arange(WARPS)))
