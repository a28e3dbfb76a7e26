"""Where a warp keeps a matrix: from the registers of mma.m16n8k16 to rows and columns of the CTA's tile, and back.

A warp owns consecutive rows. A 16 x 8 accumulator is four registers over 32 lanes: lane 4 g + t has rows g (registers
0, 1) and g + 8 (2, 3), columns 2 t and 2 t + 1. P as the next product's A operand has the same shape, two columns to a
register. Row statistics have a copy in each lane t of the quad that shares a row. Source: PTX ISA 9.0, 9.7.14.5.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashladder.ladder.config import KernelConfig
from ptxemu import Array

TILE_M, TILE_N, TILE_K = 16, 8, 16
QUAD = 4  # lanes that share a row

Fragments = Sequence[Sequence[Sequence[Array]]]
"""[m-tile][n-tile][element]: a register's value over the lanes, (CTAs|1, warps|1, 32|1)."""


WARP = 32  # lanes


@dataclass(frozen=True)
class Geometry:
    """How a CTA's tile is shared out.

    Attributes:
        ctas: of the slice.
        warps: of a CTA.
        rows: of Q and O in a CTA, B_r.
        keys: rows of K and V in a block, B_c.
        d_head: columns of Q, K, V and O.
    """

    ctas: int
    warps: int
    rows: int
    keys: int
    d_head: int

    @classmethod
    def of(cls, config: KernelConfig, ctas: int = 1) -> Geometry:
        """That of a kernel's configuration."""
        return cls(ctas, config.n_threads // WARP, config.B_r, config.B_c, config.d_head)

    @property
    def m_tiles(self) -> int:
        """Accumulators of a warp from top to bottom."""
        return self.rows // self.warps // TILE_M

    def place(self, row: int, column: int, *, statistic: bool = False) -> Place:
        """Who holds an element of the CTA's tile; of a row statistic `column` counts the lanes of the quad."""
        per_warp = self.rows // self.warps
        warp, inside = divmod(row, per_warp)
        m, in_tile = divmod(inside, TILE_M)
        half, g = divmod(in_tile, TILE_N)
        n, in_row = (0, 2 * column) if statistic else divmod(column, TILE_N)
        t, odd = divmod(in_row, 2)
        return Place(warp, QUAD * g + t, m, n, 2 * half + odd)


@dataclass(frozen=True)
class Place:
    """Warp, lane, m-tile, n-tile and element of an accumulator (0 to 3; of a row statistic 0 or 2)."""

    warp: int
    lane: int
    m: int
    n: int
    element: int


def matrix(registers: Fragments, geometry: Geometry) -> Array:
    """The CTA's matrix that these registers hold, (CTAs, B_r, 8 x n-tiles)."""
    shape = (geometry.ctas, geometry.warps, WARP)
    stacked = np.stack([[[np.broadcast_to(a, shape) for a in four] for four in across] for across in registers])
    m, n = stacked.shape[:2]
    split = stacked.reshape(m, n, 2, 2, *shape[:2], TILE_N, QUAD)  # m, n, half, odd, CTA, warp, g, t
    return split.transpose(4, 5, 0, 2, 6, 1, 7, 3).reshape(geometry.ctas, geometry.rows, TILE_N * n)


def statistics(registers: Sequence[Sequence[Array]], geometry: Geometry) -> Array:
    """A row statistic, from [m-tile][half]: (CTAs, B_r, 4), a copy from each lane of the quad."""
    shape = (geometry.ctas, geometry.warps, WARP)
    stacked = np.stack([[np.broadcast_to(a, shape) for a in both] for both in registers])
    split = stacked.reshape(*stacked.shape[:2], *shape[:2], TILE_N, QUAD)  # m, half, CTA, warp, g, t
    return split.transpose(2, 3, 0, 1, 4, 5).reshape(geometry.ctas, geometry.rows, QUAD)


def lane_of_column(columns: int) -> Array:
    """Which lane of the quad holds each column of an accumulator, (columns,)."""
    lanes: Array = np.arange(columns) % TILE_N // 2
    return lanes
