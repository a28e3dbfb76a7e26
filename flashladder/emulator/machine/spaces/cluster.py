"""Clusters: which block of the slice an address of the ``shared::cluster`` window means, and the cluster's barrier.

All blocks of a cluster run in one slice, one behind the other in the order of their ranks. An address of 32 bits names
the executing block's own shared memory, as it does in ``shared::cta``; ``mapa`` puts the rank of the block, plus one,
above the 24 bits of the offset. A generic address is the same number in the window of shared memory.
Source: PTX ISA 9.0, 5.1.7 (shared), 9.7.9.23 (mapa).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashladder.emulator.machine.memory import SHARED_WINDOW
from flashladder.emulator.values import Array

RANK_SHIFT = 24  # of the rank in an address that mapa made; a window of shared memory is far smaller
OFFSET = (1 << RANK_SHIFT) - 1


@dataclass
class Cluster:
    """The clusters of a slice.

    Attributes:
        size: blocks of a cluster; 1 where none was asked for.
        blocks: blocks of the slice, a multiple of it.
        mapped_any: whether the program has asked for an address in a named block (``mapa``).
    """

    size: int
    blocks: int
    mapped_any: bool = False

    def resolve(self, address: Array) -> tuple[Array, Array]:
        """(block of the slice, offset in its shared memory) of addresses of the cluster's window or generic ones.

        Args:
            address: u64, (blocks|1, warps|1, n); a rank that the cluster does not have is the caller's to refuse
                (`valid`).

        Returns:
            Two int64 arrays; the block's has as many rows as the slice has blocks.
        """
        plain = (address & np.uint64(SHARED_WINDOW - 1)).astype(np.int64)
        own = np.arange(self.blocks, dtype=np.int64).reshape(-1, 1, 1)
        rank = (plain >> RANK_SHIFT) - 1
        block = np.where(rank < 0, own, own - own % self.size + rank)
        return block, plain & OFFSET

    def valid(self, address: Array) -> Array:
        """Whether the cluster has a block of the rank that each address names."""
        plain = (address & np.uint64(SHARED_WINDOW - 1)).astype(np.int64)
        named: Array = plain >> RANK_SHIFT <= self.size
        return named

    def mapped(self, address: Array, rank: Array) -> Array:
        """What ``mapa`` makes of addresses of shared memory: those of the same offset in the block with that rank."""
        plain = address & np.uint64(OFFSET)
        window = address & np.uint64(SHARED_WINDOW)
        return np.asarray(window | plain | ((rank.astype(np.uint64) + np.uint64(1)) << np.uint64(RANK_SHIFT)))
