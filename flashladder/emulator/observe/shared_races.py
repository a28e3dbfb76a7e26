"""Shared-memory races within one block: who last wrote each byte, who read it since, and what is in flight.

Two accesses to a byte by different threads, at least one a write, race unless `Clocks` order them; atomics do not race
with each other. Bytes that a ``cp.async`` writes are in flight from its issue until its thread's wait: issuing is
checked like a write, any access in between is an error of its own (the issuing thread's too), and when the copy lands
it becomes an ordinary write of its thread, which others may read after a barrier. A copy that nobody waits for and
nobody touches is not reported: it changes nothing.

Readers are kept per warp: the time of its latest read and all lanes that read since the last convergence that ordered
them. Where lanes of a warp are synchronised in changing subsets this takes reads for later than they were: it may
report a race that such a chain of partial ``bar.warp.sync`` prevents, and never misses one.
"""

from __future__ import annotations

import numpy as np

from flashladder.emulator.observe.ordering.async_races import AsyncRaces
from flashladder.emulator.observe.ordering.clocks import Clocks, Key
from flashladder.emulator.observe.ordering.finding import Finding
from flashladder.emulator.observe.ordering.folding import Folding
from flashladder.emulator.observe.ordering.mbarrier_uses import MbarrierUses
from flashladder.emulator.observe.ordering.touch import Touch
from flashladder.emulator.observe.ordering.visits import Visits
from flashladder.emulator.observe.shadow import Shadow
from flashladder.emulator.values import WARP, Array, BoolArray

NOBODY = -1
MBARRIER_BYTES = 8
SETS = ("readers", "atomics")  # per unit and warp: time, lanes (bits) and site of accesses since the last write


class SharedRaces:
    """The shared memory of one block, or of several that have all done the same so far."""

    def __init__(self, exists: BoolArray) -> None:
        self.now = 0
        self.clocks = Clocks(exists)
        self.shadow = Shadow()
        for name, fill in (("writer", NOBODY), ("write_time", 0), ("write_site", 0), ("owner", NOBODY), ("copy", 0)):
            self.shadow.add(name, fill)
        self._add_set("readers")
        self.mbarriers = MbarrierUses(self.clocks)
        self.visits = Visits(self.clocks)
        self.asynchronous = AsyncRaces(self)
        self.met: bytes | None = None  # the ``bar.warp.sync`` since which nothing happened

    def _add_set(self, name: str) -> None:
        for part, dtype in (("time", np.int32), ("lanes", np.uint32), ("site", np.int32)):
            self.shadow.add(f"{name}_{part}", 0, self.clocks.warps, dtype)

    def barrier(self, lanes: BoolArray, number: int | None) -> None:
        """These lanes, (warps, 32), meet at a CTA barrier; `number` where others may have signalled it."""
        self.clocks.join(lanes, self.now, number)
        self.met = None

    def arrive(self, lanes: BoolArray, number: int) -> None:
        """These lanes signal a CTA barrier and go on."""
        self.clocks.signal(lanes, self.now, number)

    def release(self, lanes: BoolArray, key: Key, *, relaxed: bool = False) -> None:
        """These lanes arrive at an mbarrier or a cluster's barrier."""
        self.clocks.release(lanes, self.now, key, relaxed=relaxed)

    def order(self, lanes: BoolArray) -> None:
        """A memory fence of these lanes."""
        self.clocks.order(lanes, self.now)

    def complete(self, key: Key) -> None:
        """Its phase is complete."""
        self.clocks.complete(key)

    def acquire(self, lanes: BoolArray, key: Key, *, relaxed: bool = False) -> None:
        """These lanes find it complete and go on."""
        self.clocks.acquire(lanes, key, relaxed=relaxed)
        self.met = None

    def use_mbarriers(self, address: Array, mask: BoolArray, action: str, site: int) -> list[Finding]:
        """Lanes use mbarriers, (warps, lanes) each: as `MbarrierUses.use`; init and inval also write their bytes."""
        found = self.access("st", address, MBARRIER_BYTES, mask, site) if action in ("init", "inval") else []
        self.now += 1
        self.met = None
        return found + self.mbarriers.use(address, mask, action, site, self.now)

    def reached(self, address: Array, mask: BoolArray, folding: Folding, site: int) -> None:
        """Lanes have just accessed shared memory of blocks of their cluster: remembers those of other blocks."""
        if folding.size > 1:
            self.visits.note(address, mask, folding, site, self.now)

    def exited(self, rank: int, lanes: BoolArray, folding: Folding) -> list[Finding]:
        """Lanes of one block of the cluster have exited."""
        return self.visits.leave(rank, lanes, folding)

    def warp_sync(self, lanes: BoolArray | None) -> None:
        """In each warp these lanes, (warps, 32), meet at ``bar.warp.sync``; None: all."""
        key = b"all" if lanes is None else lanes.tobytes()
        if key != self.met:
            self.clocks.join_warps(lanes, self.now)
            self.met = key

    def access(self, kind: str, address: Array, width: int, mask: BoolArray | None, site: int) -> list[Finding]:
        """Checks and records an instruction.

        Args:
            kind: ``ld``, ``st``, ``atom``, ``ldmatrix`` or ``stmatrix``.
            address: bytes, (warps, lanes), or (warps, rows) of a matrix.
            width: bytes per lane or row.
            mask: (warps, lanes), of ``ldmatrix`` (warps, 1); None for all.
            site: the instruction's number.
        """
        touch = self._touch(address, width, mask, whole_warps=kind in {"ldmatrix", "stmatrix"})
        if not touch.units.size:
            return []
        self.now += 1
        self.met = None
        writes = kind in {"st", "stmatrix", "atom"}
        found = self.in_flight(touch, "in-flight write" if writes else "in-flight read")
        found += self._after_write(touch, "WAW" if writes else "RAW")
        if kind != "atom":
            found += self.after_set("atomics", touch, "WAW" if writes else "RAW")
        if writes:
            found += self.after_set("readers", touch, "WAR") + self.asynchronous.overwritten(touch)
        if kind in {"st", "stmatrix"}:
            found += self._twice(touch, site)
            self.write(touch, site)
        else:
            self._join_set("atomics" if kind == "atom" else "readers", touch, site)
        return found

    def issue(self, address: Array, width: int, mask: BoolArray | None, site: int) -> list[Finding]:
        """A ``cp.async`` begins to write; arguments as of `access`."""
        touch = self._touch(address, width, mask)
        if not touch.units.size:
            return []
        self.now += 1
        self.met = None
        found = self.in_flight(touch, "in-flight write")
        found += self._after_write(touch, "WAW")
        found += self.after_set("atomics", touch, "WAW")
        found += self.after_set("readers", touch, "WAR") + self.asynchronous.overwritten(touch)
        found += self._twice(touch, site)
        self.shadow["owner"][touch.units] = touch.threads
        self.shadow["copy"][touch.units] = site
        return found

    def land(self, address: Array, width: int, mask: BoolArray | None, site: int) -> None:
        """A wait of their own threads guarantees these copies, which `issue` announced."""
        touch = self._touch(address, width, mask)
        if not touch.units.size:
            return
        self.now += 1
        self.met = None
        mine = (self.shadow["owner"][touch.units] == touch.threads) & (self.shadow["copy"][touch.units] == site)
        self.shadow["owner"][touch.units[mine]] = NOBODY
        self.write(touch, site)

    def _touch(self, address: Array, width: int, mask: BoolArray | None, *, whole_warps: bool = False) -> Touch:
        """The active accesses; a row of ``ldmatrix`` counts as read by the lane that names it: row i by lane i."""
        warps = self.clocks.warps
        lanes = address.shape[1] if whole_warps else WARP
        active = np.broadcast_to(self.clocks.exists[:, :1] if whole_warps else self.clocks.exists, (warps, lanes))
        if mask is not None:
            active = active & mask
        warp, lane = np.nonzero(active)
        where = np.broadcast_to(address, (warps, lanes))[warp, lane].astype(np.int64)
        threads = warp * WARP + lane
        if not where.size:
            return Touch(threads, where)
        self.shadow.fit(where, width)
        units, threads = self.shadow.spread(where, width, threads)
        self.shadow.reserve(int(units.max()) + 1)
        return Touch(threads, units)

    def in_flight(self, touch: Touch, kind: str) -> list[Finding]:
        """Findings of accesses to bytes that an asynchronous copy still writes."""
        owners = self.shadow["owner"][touch.units]
        bad = np.flatnonzero(owners != NOBODY)
        sites = self.shadow["copy"][touch.units[bad]]
        return self.found(kind, touch, bad, sites, owners[bad])

    def _after_write(self, touch: Touch, kind: str) -> list[Finding]:
        writers = self.shadow["writer"][touch.units]
        times = self.shadow["write_time"][touch.units]  # 0 where nobody wrote: always ordered
        bad = np.flatnonzero(~self.clocks.ordered(touch.threads, writers, times))
        sites = self.shadow["write_site"][touch.units[bad]]
        return self.found(kind, touch, bad, sites, writers[bad])

    def after_set(self, name: str, touch: Touch, kind: str) -> list[Finding]:
        """Findings of accesses that nothing orders after those of a set."""
        if f"{name}_time" not in self.shadow:
            return []
        times = self.shadow[f"{name}_time"][touch.units]
        late = times > self.clocks.horizon(touch.threads)
        if not late.any():
            return []
        which, warp = np.nonzero(late)
        lanes = self.shadow[f"{name}_lanes"][touch.units[which], warp]
        concurrent = self.clocks.concurrent(touch.threads[which], warp, times[which, warp], lanes)
        bad = np.flatnonzero(concurrent.any(axis=1))
        others = warp[bad] * WARP + concurrent[bad].argmax(axis=1)
        sites = self.shadow[f"{name}_site"][touch.units[which[bad]], warp[bad]]
        return self.found(kind, touch, which[bad], sites, others)

    def _twice(self, touch: Touch, site: int) -> list[Finding]:
        """Threads that write one byte in the same instruction, which all warps run at once: any may win."""
        order = np.argsort(touch.units, kind="stable")
        units = touch.units[order]
        again = np.flatnonzero(units[1:] == units[:-1])
        if not again.size:
            return []
        first, second = touch.threads[order[again]], touch.threads[order[again + 1]]
        same_warp = first // WARP == second // WARP
        found = []
        for kind, chosen in (("same-instruction write", same_warp), ("WAW", ~same_warp)):
            if chosen.any():
                at = int(chosen.argmax())
                address = int(units[again[at]]) * self.shadow.unit
                count = np.unique(second[chosen]).size
                found.append(Finding(kind, site, address, int(first[at]), int(second[at]), count))
        return found

    def write(self, touch: Touch, site: int) -> None:
        """The units have a new writer; what was ordered before it need not be remembered."""
        self.shadow["writer"][touch.units] = touch.threads
        self.shadow["write_time"][touch.units] = self.now
        self.shadow["write_site"][touch.units] = site
        for name in SETS:
            if f"{name}_time" in self.shadow:
                self.shadow[f"{name}_time"][touch.units] = 0
                self.shadow[f"{name}_lanes"][touch.units] = 0

    def _join_set(self, name: str, touch: Touch, site: int) -> None:
        """Adds the lanes to the readers (atomics) of their warps; forgets those whom the new ones come after."""
        if f"{name}_time" not in self.shadow:
            self._add_set(name)
        warps = touch.threads >> 5
        time, lanes = self.shadow[f"{name}_time"], self.shadow[f"{name}_lanes"]
        old = time[touch.units, warps]
        horizon = self.clocks.horizon(touch.threads)[np.arange(warps.size), warps]
        kept = np.flatnonzero(old > horizon)
        covered = old != 0
        if kept.size:
            earlier = lanes[touch.units[kept], warps[kept]]
            covered[kept] = ~self.clocks.concurrent(touch.threads[kept], warps[kept], old[kept], earlier).any(axis=1)
        lanes[touch.units[covered], warps[covered]] = 0
        bits = np.left_shift(np.uint32(1), (touch.threads & 31).astype(np.uint32))
        np.bitwise_or.at(lanes, (touch.units, warps), bits)
        time[touch.units, warps] = self.now
        self.shadow[f"{name}_site"][touch.units, warps] = site

    def found(self, kind: str, touch: Touch, bad: Array, sites: Array, others: Array) -> list[Finding]:
        """Findings of the accesses `bad`, one for each earlier instruction."""
        units, threads = touch.units[bad], touch.threads[bad]
        found = []
        for site in np.unique(sites) if sites.size else ():
            chosen = np.flatnonzero(sites == site)
            at = chosen[0]
            address = int(units[at]) * self.shadow.unit
            count = np.unique(threads[chosen]).size
            first = self.asynchronous.thread_of(int(others[at]))
            found.append(Finding(kind, int(site), address, first, int(threads[at]), count))
        return found
