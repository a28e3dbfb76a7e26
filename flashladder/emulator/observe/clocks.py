"""Who knows what of whom: happens-before between the threads of one block, as clocks.

Why clocks: two accesses race when no chain of barriers leads from the one to the other, in whatever order the emulator
happens to run them. Time counts the accesses of the block. ``known[i, j]`` is the time up to which everything that j
did comes before whatever i does next. A barrier joins its members: each then knows what any of them knew, and all that
they did until now.

Whole warps share one row and column: as long as every barrier and ``bar.warp.sync`` takes all threads of the warps
that it takes at all, the clocks of a warp's lanes are equal, and the diagonal holds the time of the warp's last
convergence. The first one that takes part of a warp switches to a row and column for each thread.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flashladder.emulator.values import WARP, Array, BoolArray


class Clocks:
    """The clocks of one block.

    Attributes:
        exists: (warps, 32) mask of the threads of the block.
        known: int32, (warps, warps) or (threads, threads), see the module.
        per_warp: whether `known` has a row per warp.
    """

    def __init__(self, exists: BoolArray) -> None:
        self.exists = exists
        self.warps = exists.shape[0]
        self.known: Array = np.zeros((self.warps, self.warps), dtype=np.int32)
        self.per_warp = True
        self._shift = 5  # thread >> shift: its row
        self._signals: dict[int, Array] = {}  # what those know who arrived at a barrier without waiting
        self._horizon: Array | None = None

    def ordered(self, threads: Array, others: Array, times: Array) -> BoolArray:
        """Whether what `others` did at `times` comes before what `threads` do now; arrays of one shape."""
        result: BoolArray = times <= self.known[threads >> self._shift, others >> self._shift]
        result |= threads == others
        return result

    def horizon(self, threads: Array) -> Array:
        """(n, warps): a time up to which all lanes of each warp are ordered before n threads: a quick filter."""
        if self.per_warp:
            per_warp: Array = self.known[threads >> 5]
            return per_warp
        if self._horizon is None:
            self._horizon = self.known.reshape(-1, self.warps, WARP).min(axis=2)
        return self._horizon[threads]

    def concurrent(self, threads: Array, warps: Array, times: Array, lanes: Array) -> BoolArray:
        """(n, 32): lanes, of those set in the bits of `lanes`, of `warps` whose actions at `times` are not ordered."""
        lane = np.arange(WARP)
        bits = (lanes[:, None] >> lane.astype(np.uint32)) & np.uint32(1)
        others = warps[:, None] * WARP + lane
        late: BoolArray = ~self.ordered(threads[:, None], others, times[:, None])
        late &= bits != 0
        return late

    def join(self, lanes: BoolArray, now: int, barrier: int | None = None) -> None:
        """These lanes, (warps, 32), meet; they also learn what was signalled to `barrier`, which starts afresh."""
        rows = self._rows(lanes)
        learned = None if barrier is None else self._signals.pop(barrier, None)
        self._meet(rows, now, learned)

    def signal(self, lanes: BoolArray, now: int, barrier: int) -> None:
        """These lanes arrive at a barrier and do not wait: who completes it learns what they know now."""
        rows = self._rows(lanes)
        if not rows.size:
            return
        learned = self.known[rows].max(axis=0)
        learned[rows] = now
        earlier = self._signals.get(barrier)
        self._signals[barrier] = learned if earlier is None else np.maximum(earlier, learned)

    @property
    def signals(self) -> bool:
        """Whether anybody has arrived at a barrier without waiting, and it is not complete."""
        return bool(self._signals)

    def join_warps(self, lanes: BoolArray | None, now: int) -> None:
        """In each warp these lanes, (warps, 32), meet; None: all lanes of all warps."""
        chosen = self.exists if lanes is None else lanes
        rows = self._rows(chosen)
        if self.per_warp:
            self.known[rows, rows] = now
            return
        for members in _by_warp(rows):
            self._meet(members, now, None)

    def _meet(self, rows: Array, now: int, learned: Array | None) -> None:
        if not rows.size:
            return
        row = self.known[rows].max(axis=0)
        if learned is not None:
            row = np.maximum(row, learned)
        row[rows] = now
        self.known[rows] = row
        self._horizon = None

    def _rows(self, lanes: BoolArray) -> Array:
        """Rows of the lanes; switches to one row per thread when a warp takes part with some of its threads only."""
        lanes = lanes & self.exists
        if self.per_warp:
            present = lanes.any(axis=1)
            if (lanes[present] == self.exists[present]).all():
                return np.flatnonzero(present)
            self._split()
        return np.flatnonzero(lanes)

    def _split(self) -> None:
        self.per_warp, self._shift = False, 0
        self.known = np.repeat(np.repeat(self.known, WARP, axis=0), WARP, axis=1)
        self.known[:, ~self.exists.reshape(-1)] = np.iinfo(np.int32).max  # threads that never do anything
        self._signals = {barrier: np.repeat(row, WARP) for barrier, row in self._signals.items()}


def _by_warp(threads: Array) -> Iterable[Array]:
    return np.split(threads, np.flatnonzero(np.diff(threads >> 5)) + 1)
