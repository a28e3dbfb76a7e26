"""Uses outside of a lifetime: of an mbarrier, and of the shared memory of another block of the cluster.

A block stays until all of its threads have exited; then its shared memory is another one's. So one of them has to
know, when it exits, of every access of a peer: a barrier of the cluster does that, or an mbarrier of the block itself.
Nor need a block have started when a peer has: who accesses it must have waited at the cluster's barrier, or know of
something that the block did.

Arrivals and waits at an mbarrier are atomic with respect to each other, but `init` and `inval` are not: a barrier (for
the blocks of a cluster the cluster's) has to stand between. A bulk copy tells an mbarrier of its bytes in the async
proxy: a ``fence.mbarrier_init`` (or ``fence.proxy.async``) has to follow the init.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxemu.observe.clocks import Clocks, Finding, Folding
from ptxemu.values import WARP, Array, BoolArray


@dataclass
class _Uses:
    """Who accessed a block from outside: by thread of the cluster the time (0: never), address and instruction."""

    time: Array
    address: Array
    site: Array


class RemoteUses:
    """The accesses of a cluster's threads to other blocks than their own."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self._uses: dict[int, _Uses] = {}
        self._known: dict[int, Array] = {}  # what the threads of a block knew when they exited
        self._left: dict[int, Array] = {}  # who has exited
        self._waited = np.zeros(clocks.exists.size, np.bool_)  # who has waited at the cluster's barrier

    def meet(self, lanes: BoolArray) -> None:
        """These lanes, (warps, lanes), have waited at the barrier of the cluster: all its blocks have started."""
        self._waited |= lanes.reshape(-1)

    def note(self, address: Array, mask: BoolArray, folding: Folding, site: int) -> list[Finding]:
        """Lanes access these addresses of the cluster's windows, (warps, lanes): of blocks that have not started?"""
        threads = np.flatnonzero(mask)
        places = np.broadcast_to(address, mask.shape).reshape(-1)[threads].astype(np.int64)
        ranks, own = places // folding.stride, threads // (folding.shape[1] * WARP)
        found = []
        for rank in np.unique(ranks[ranks != own]):
            uses = self._uses.setdefault(int(rank), _Uses(*(np.zeros(mask.size, np.int64) for _ in range(3))))
            mine = (ranks == rank) & (own != rank)
            uses.time[threads[mine]] = self.clocks.now
            uses.address[threads[mine]] = places[mine]
            uses.site[threads[mine]] = site
            alone = threads[mine & ~self._waited[threads]]
            early = alone[~self.clocks.met(alone, self._warps(int(rank), folding))]
            if early.size:
                place, other = int(places[threads == early[0]][0]), int(rank) * folding.shape[1] * WARP
                found.append(Finding("start", site, place, other, int(early[0]), early.size))
        return found

    @staticmethod
    def _warps(rank: int, folding: Folding) -> slice:
        return slice(rank * folding.shape[1], (rank + 1) * folding.shape[1])

    def leave(self, rank: int, lanes: BoolArray, folding: Folding) -> list[Finding]:
        """Lanes, (warps, lanes), of the block with this rank have exited; when all have, checks who was there."""
        learned = self.clocks.learned(lanes)
        known = self._known.get(rank)
        self._known[rank] = learned if known is None else np.maximum(known, learned)
        left = self._left.get(rank)
        self._left[rank] = lanes if left is None else left | lanes
        uses = self._uses.get(rank)
        if uses is None or not (self._left[rank] | ~self.clocks.exists)[self._warps(rank, folding)].all():
            return []
        late = np.flatnonzero(uses.time > self._known[rank])
        found = []
        last = int(np.flatnonzero(lanes)[0])
        for site in np.unique(uses.site[late]):
            mine = late[uses.site[late] == site]
            first = int(mine[0])
            found.append(Finding("exit", int(site), int(uses.address[first]), first, last, mine.size))
        return found


PUBLIC = 3


@dataclass
class _Life:
    """One mbarrier: what began or ended it last, and the latest use by each thread since."""

    thread: int
    time: int
    site: int
    used: Array  # time by thread, 0: never
    sites: Array
    ended: bool
    public: int = 0  # 1: its thread executed fence.mbarrier_init, 2: and arrived at the cluster's barrier, 3: all have


class MbarrierUses:
    """The mbarriers of a block, or of a cluster, by address."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self._lives: dict[int, _Life] = {}

    def use(self, address: Array, mask: BoolArray, action: str, site: int) -> list[Finding]:
        """Lanes use mbarriers, `address` and `mask` (warps, lanes); `action`: ``init``, ``inval`` or another use."""
        threads = np.flatnonzero(mask)
        places = np.broadcast_to(address, mask.shape).reshape(-1)[threads]
        found: list[Finding] = []
        for place in np.unique(places):
            mine = threads[places == place]
            life = self._lives.get(int(place))
            if life is not None:
                found += self._after_change(life, mine, int(place))
            if action in ("init", "inval"):
                if life is not None:
                    found += self._after_uses(life, mine, int(place))
                size = mask.size
                never, sites = np.zeros(size, np.int64), np.zeros(size, np.int64)
                life = _Life(int(mine[0]), self.clocks.now, site, never, sites, ended=action == "inval")
                self._lives[int(place)] = life
            elif life is not None:
                life.used[mine], life.sites[mine] = self.clocks.now, site
        return found

    def fence(self, lanes: BoolArray) -> None:
        """``fence.mbarrier_init`` of these lanes, (warps, 32): a barrier of the cluster publishes what they began."""
        self._step(0, lanes)

    def arrive(self, lanes: BoolArray) -> None:
        """These lanes arrive at the barrier of the cluster."""
        self._step(1, lanes)

    def meet(self) -> None:
        """The barrier of the cluster is complete."""
        self._step(2, None)

    def _step(self, stage: int, lanes: BoolArray | None) -> None:
        for life in self._lives.values():
            if life.public == stage and not life.ended and (lanes is None or lanes.reshape(-1)[life.thread]):
                life.public += 1

    def counted(self, thread: int, place: int) -> list[Finding]:
        """A copy that a thread issues will tell the mbarrier at a place: it needs its init, and a fence behind that."""
        life = self._lives.get(place)
        if life is None:
            return []
        mine = np.array([thread])
        first = np.array([life.thread]), np.array([life.time])
        found = self._after_change(life, mine, place)
        if found or life.public or self.clocks.all_ordered(mine, *first, fenced=True).all():
            return found
        return [Finding("mbarrier fence", life.site, place, life.thread, thread, 1)]

    def _after_change(self, life: _Life, threads: Array, place: int) -> list[Finding]:
        if life.public == PUBLIC:
            return []
        others, times = np.full_like(threads, life.thread), np.full_like(threads, life.time)
        late = threads[~self.clocks.ordered(threads, others, times)]
        return [Finding("mbarrier", life.site, place, life.thread, int(late[0]), late.size)] if late.size else []

    def _after_uses(self, life: _Life, threads: Array, place: int) -> list[Finding]:
        users = np.flatnonzero(life.used)
        if not users.size:
            return []
        late = users[~self.clocks.ordered(np.full_like(users, threads[0]), users, life.used[users])]
        if not late.size:
            return []
        first = int(late[0])
        return [Finding("mbarrier", int(life.sites[first]), place, first, int(threads[0]), 1)]
