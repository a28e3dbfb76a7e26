"""A cluster as one block: its warps one block behind the other, its windows of shared memory one behind the other.

Why: threads of a cluster access each other's shared memory and meet at common barriers. What finds races within a
block finds them within a cluster, once each block's warps and addresses have a place of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flashladder.emulator.values import WARP, Array, BoolArray, Shape3

ALIGNMENT = 1024  # of the window of each block


@dataclass(frozen=True)
class Folding:
    """How the blocks of a slice become clusters.

    Attributes:
        size: blocks of a cluster; 1: nothing changes.
        shape: of the machine, (blocks, warps, 32).
        stride: bytes from the window of one block to the next one's.
    """

    size: int
    shape: Shape3
    stride: int

    @classmethod
    def of(cls, size: int, shape: Shape3, nbytes: int) -> Folding:
        """For blocks of `nbytes` of shared memory."""
        return cls(size, shape, max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT))

    @property
    def warps(self) -> int:
        """Warps of a cluster."""
        return self.size * self.shape[1]

    def lanes(self, value: Array) -> Array:
        """(blocks|1, warps|1, n) as (clusters|1, warps of the cluster, n)."""
        if self.size == 1:
            return value
        rows = self.size if value.shape[0] == 1 else value.shape[0]
        folded: Array = np.broadcast_to(value, (rows, self.shape[1], value.shape[2])).reshape(
            rows // self.size, self.warps, value.shape[2]
        )
        return folded

    def address(self, value: Array) -> Array:
        """Addresses of each block's own window as addresses in the cluster's."""
        if self.size == 1:
            return value
        rank = np.repeat(np.arange(self.size, dtype=np.uint64), self.shape[1]).reshape(1, -1, 1)
        return np.asarray(self.lanes(value) + rank * np.uint64(self.stride))

    def flat(self, lanes: tuple[Array, ...], blocks: Array, offsets: Array) -> tuple[Array, BoolArray]:
        """Flat accesses of single lanes to single blocks as (address, mask) of the cluster's shape."""
        address, mask = np.zeros(self.shape, np.uint64), np.zeros(self.shape, np.bool_)
        address[lanes] = (blocks % self.size * self.stride + offsets).astype(np.uint64)
        mask[lanes] = True
        return self.lanes(address), self.lanes(mask)

    def ranks(self, lanes: BoolArray) -> Iterator[tuple[int, BoolArray]]:
        """The part of each block in a mask (warps of the cluster, 32), where it has any."""
        if self.size == 1:
            yield 0, lanes
            return
        for rank in range(self.size):
            part = np.zeros_like(lanes)
            rows = slice(rank * self.shape[1], (rank + 1) * self.shape[1])
            part[rows] = lanes[rows]
            if part.any():
                yield rank, part

    def place(self, thread: int) -> tuple[int, int]:
        """(rank, linear index in its block) of a thread of the cluster."""
        return divmod(thread, self.shape[1] * WARP)
