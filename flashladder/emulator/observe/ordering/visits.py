"""Accesses to the shared memory of other blocks of a cluster: whether the block still has to be there.

A block stays until all of its threads have exited; then its shared memory is another one's. So one of them has to know,
when it exits, of every access of a peer: a barrier of the cluster does that, or an mbarrier of the block itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashladder.emulator.observe.ordering.clocks import Clocks
from flashladder.emulator.observe.ordering.finding import Finding
from flashladder.emulator.observe.ordering.folding import Folding
from flashladder.emulator.values import WARP, Array, BoolArray


@dataclass
class _Guests:
    """Who accessed a block from outside: by thread of the cluster the time (0: never), address and instruction."""

    time: Array
    address: Array
    site: Array


class Visits:
    """The accesses of a cluster's threads to other blocks than their own."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self._guests: dict[int, _Guests] = {}
        self._known: dict[int, Array] = {}  # what the threads of a block knew when they exited
        self._left: dict[int, Array] = {}  # who has exited

    def note(self, address: Array, mask: BoolArray, folding: Folding, site: int, now: int) -> None:
        """Lanes have accessed these addresses of the cluster's windows, (warps, lanes)."""
        threads = np.flatnonzero(mask)
        places = np.broadcast_to(address, mask.shape).reshape(-1)[threads].astype(np.int64)
        ranks, own = places // folding.stride, threads // (folding.shape[1] * WARP)
        for rank in np.unique(ranks[ranks != own]):
            guests = self._guests.setdefault(int(rank), _Guests(*(np.zeros(mask.size, np.int64) for _ in range(3))))
            mine = (ranks == rank) & (own != rank)
            guests.time[threads[mine]] = now
            guests.address[threads[mine]] = places[mine]
            guests.site[threads[mine]] = site

    def leave(self, rank: int, lanes: BoolArray, folding: Folding) -> list[Finding]:
        """Lanes, (warps, lanes), of the block with this rank have exited; when all have, checks who was there."""
        learned = self.clocks.learned(lanes)
        known = self._known.get(rank)
        self._known[rank] = learned if known is None else np.maximum(known, learned)
        left = self._left.get(rank)
        self._left[rank] = lanes if left is None else left | lanes
        rows = slice(rank * folding.shape[1], (rank + 1) * folding.shape[1])
        guests = self._guests.get(rank)
        if guests is None or not (self._left[rank] | ~self.clocks.exists)[rows].all():
            return []
        late = np.flatnonzero(guests.time > self._known[rank])
        found = []
        last = int(np.flatnonzero(lanes)[0])
        for site in np.unique(guests.site[late]):
            mine = late[guests.site[late] == site]
            first = int(mine[0])
            found.append(Finding("exit", int(site), int(guests.address[first]), first, last, mine.size))
        return found
