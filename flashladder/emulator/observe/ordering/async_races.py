"""Shared memory that asynchronous operations read and write: bulk copies and matrix products of warpgroups.

Three things can go wrong beside the races of threads, and each is a finding:

- *in flight*: bytes that an operation still writes are touched, or bytes that it may still read are written over. A
  write lasts from its issue until its mbarrier is told; a read until the wait that guarantees its end.
- *order*: what a thread wrote (or read, or another operation did) is not ordered before the operation's issue; or what
  it did is not known to who comes later. A write becomes known with the phase of its mbarrier, the end of a read to the
  threads that waited for it.
- *proxy*: a thread's ordinary write is ordered before the operation that reads or replaces it, but no
  ``fence.proxy.async`` stands between. The fence may be the writer's, before the barrier, or that of any thread which
  knows of the write, as long as the operation's own thread knows of the fence.

Source: PTX ISA 9.0, 8.9 (proxy-preserved base causality order), 9.7.9.25.2 (async proxy).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flashladder.emulator.observe.ordering.clocks import Key
from flashladder.emulator.observe.ordering.finding import Finding
from flashladder.emulator.observe.ordering.touch import Touch
from flashladder.emulator.values import Array

if TYPE_CHECKING:
    from flashladder.emulator.observe.shared_races import SharedRaces

NOBODY = -1
CHUNK = 16  # bytes: what asynchronous operations read and write whole
OVERWRITE = "async overwrite"
PARTS = ("ended", "ended_site", "ended_thread")  # per unit and agent: time, instruction and thread of its last read


@dataclass
class _Fetch:
    """A read that has not ended: who issued it, what it reads (addresses of chunks) and the instruction's number."""

    threads: Array
    address: Array
    site: int


class AsyncRaces:
    """What asynchronous operations do to the shared memory of `races`."""

    def __init__(self, races: SharedRaces) -> None:
        self.races = races
        self.clocks, self.shadow = races.clocks, races.shadow
        self._fetches: dict[tuple[int, int], _Fetch] = {}
        self._ended: list[Key] = []  # agents of reads that have ended; a column of "ended" each
        self._reductions: set[int] = set()  # numbers of instructions
        self._issuers: dict[int, int] = {}  # the thread that issued an agent's last write

    def fence(self, lanes: Array) -> None:
        """A proxy fence of these lanes, (warps, lanes)."""
        self.races.now += 1
        self.races.met = None
        self.clocks.fence(lanes, self.races.now)

    def fetch(self, name: tuple[int, int], threads: Array, address: Array, site: int) -> list[Finding]:
        """An operation that these threads issue together begins to read chunks.

        Args:
            name: under which `fetched` knows it.
            threads: all of which have to know of what was written.
            address: of the chunks, int64, flat.
            site: the instruction's number.
        """
        touch = self._touch(threads[0], address)
        found = self.races.in_flight(touch, "in-flight read")
        found += self._after_write(touch, threads, "RAW")
        self._fetches[name] = _Fetch(threads, address, site)
        self.shadow["fetches"][touch.units] += 1
        return found

    def fetched(self, name: tuple[int, int], key: Key, waited: Array) -> None:
        """A read ends; `waited` are the threads that know it, `key` the agent that stands for it."""
        fetch = self._fetches.pop(name)
        touch = self._touch(fetch.threads[0], fetch.address)
        self.shadow["fetches"][touch.units] -= 1
        if key not in self._ended:
            self._ended.append(key)
            for part in PARTS:
                if part not in self.shadow:
                    self.shadow.add(part, 0, 1)
                else:
                    old = self.shadow.arrays[part]
                    self.shadow.arrays[part] = np.append(old, np.zeros_like(old[:, :1]), axis=1)
        column = self._ended.index(key)
        self.shadow["ended"][touch.units, column] = self.races.now
        self.shadow["ended_site"][touch.units, column] = fetch.site
        self.shadow["ended_thread"][touch.units, column] = fetch.threads[0]
        if waited.size:
            self.clocks.tell(waited, key, self.races.now)

    def put(self, thread: int, address: Array, site: int, *, reduces: bool = False) -> list[Finding]:
        """A copy that a thread issues begins to write chunks, or to combine them: reductions are atomic."""
        touch = self._touch(thread, address)
        fresh = touch
        if reduces:
            self._reductions.add(site)
            known = np.array(sorted(self._reductions))
            flying = (self.shadow["owner"][touch.units] != NOBODY) & np.isin(self.shadow["copy"][touch.units], known)
            landed = (self.shadow["writer"][touch.units] < NOBODY) & np.isin(
                self.shadow["write_site"][touch.units], known
            )
            chosen = ~(flying | landed)
            fresh = Touch(touch.threads[chosen], touch.units[chosen])
        found = self.races.in_flight(fresh, "in-flight write")
        found += self._after_write(fresh, np.array([thread]), "WAW")
        found += self.races.after_set("atomics", touch, "WAW")
        found += self.races.after_set("readers", touch, "WAR") + self.overwritten(touch)
        self.shadow["owner"][touch.units] = touch.threads
        self.shadow["copy"][touch.units] = site
        return found

    def landed(self, thread: int, address: Array, site: int, key: Key) -> None:
        """What `put` announced is written; the mbarrier of this key is told of it."""
        touch = self._touch(thread, address)
        mine = (self.shadow["owner"][touch.units] == touch.threads) & (self.shadow["copy"][touch.units] == site)
        self.shadow["owner"][touch.units[mine]] = NOBODY
        self.races.write(Touch(np.full_like(touch.threads, self.clocks.agent(key)), touch.units), site)
        self._issuers[self.clocks.agent(key)] = thread
        self.clocks.act(key, self.races.now)

    def thread_of(self, other: int) -> int:
        """The thread that acted: of an agent's write the one that issued it."""
        return self._issuers.get(other, other)

    def overwritten(self, touch: Touch) -> list[Finding]:
        """Findings of writes to what an operation may still read, or whose end the writer does not know."""
        found: list[Finding] = []
        if self._fetches and self.shadow["fetches"][touch.units].any():
            found = self._open(touch)
        for column, key in enumerate(self._ended):
            times = self.shadow["ended"][touch.units, column]
            if not times.any():
                continue
            agents = np.full_like(touch.threads, self.clocks.agent(key))
            bad = np.flatnonzero(~self.clocks.ordered(touch.threads, agents, times))
            sites = self.shadow["ended_site"][touch.units[bad], column]
            others = self.shadow["ended_thread"][touch.units[bad], column]
            found += self.races.found("WAR", touch, bad, sites, others)
            self.shadow["ended"][touch.units, column] = 0
        return found

    def _open(self, touch: Touch) -> list[Finding]:
        """Findings of writes to what is being read."""
        found = []
        for fetch in self._fetches.values():
            units, _ = self.shadow.spread(fetch.address, CHUNK, fetch.address)
            bad = np.flatnonzero(np.isin(touch.units, units))
            sites, others = np.full_like(bad, fetch.site), np.full_like(bad, fetch.threads[0])
            found += self.races.found(OVERWRITE, touch, bad, sites, others)
        return found

    def _after_write(self, touch: Touch, threads: Array, kind: str) -> list[Finding]:
        """Findings of an operation against the last writes: unknown to its threads, or without a proxy fence."""
        writers = self.shadow["writer"][touch.units]
        times = self.shadow["write_time"][touch.units]
        known = self.clocks.all_ordered(threads, writers, times)
        fenced = self.clocks.all_ordered(threads, writers, times, fenced=True)
        found = []
        for name, bad in ((kind, np.flatnonzero(~known)), ("proxy", np.flatnonzero(known & ~fenced))):
            sites = self.shadow["write_site"][touch.units[bad]]
            found += self.races.found(name, touch, bad, sites, writers[bad])
        return found

    def _touch(self, thread: int, address: Array) -> Touch:
        """Whole chunks, as a thread's accesses, now."""
        self.races.now += 1
        self.races.met = None
        self.shadow.fit(address, CHUNK)
        units, threads = self.shadow.spread(address, CHUNK, np.full(address.shape, thread, dtype=np.int64))
        if "fetches" not in self.shadow:
            self.shadow.add("fetches", 0)
        self.shadow.reserve(int(units.max()) + 1)
        return Touch(threads, units)
