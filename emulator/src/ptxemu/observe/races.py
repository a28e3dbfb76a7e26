"""Races on shared and global memory: who last wrote each byte, who read it since, and what is in flight.

Bytes are kept as units of 16, the widest access of a lane, as long as all accesses cover whole units; then all bytes
of a unit have the same history, and cutting the units into smaller ones later repeats each row: nothing is lost.

**Shared memory** (`SharedRaces`): two accesses to a byte by different threads, at least one a write, race unless
`Clocks` order them; atomics and strong loads and stores do not race with each other, and order what lies around them.
Bytes that a ``cp.async`` writes are in flight from its issue until its thread's wait: issuing is checked like a write,
any access in between is an error of its own (the issuing thread's too), and when the copy lands it becomes an ordinary
write of its thread. A copy that nobody waits for and nobody touches is not reported: it changes nothing. Readers are
kept per warp: the time of its latest read and all lanes that read since the last convergence that ordered them. Where
lanes of a warp are synchronised in changing subsets this takes reads for later than they were: it may report a race
that such a chain of partial ``bar.warp.sync`` prevents, and never misses one.

**Global memory** (`GlobalRaces`): one byte accessed by two blocks, at least one of them writing, is a race, unless
both accesses are atomic or strong (``.volatile``, ``.relaxed``, ``.acquire``, ``.release``). What blocks tell each
other through fences and atomics is not followed: such a protocol is reported. Within one block global accesses are not
checked. Of each unit the last writer is kept, and of readers and atomics two that belong to different blocks: whoever
comes next differs from at least one of them. A strong store counts as an atomic.

**Asynchronous operations** (`AsyncRaces`) can go wrong in three more ways:

- *in flight*: bytes that an operation still writes are accessed, or bytes that it may still read are written over. A
  write lasts from its issue until its mbarrier is told; a read until the wait that guarantees its end.
- *order*: what a thread wrote (or read, or another operation did) is not ordered before the operation's issue; or what
  it did is not known to who comes later. A write becomes known with the phase of its mbarrier, the end of a read to
  the threads that waited for it.
- *proxy*: a thread's ordinary write or atomic is ordered before the operation that reads or replaces it, but no
  ``fence.proxy.async`` stands between. The fence may be the writer's, before the barrier, or that of any thread which
  knows of the write, as long as the operation's own thread knows of the fence.

Source: PTX ISA 9.0, 8.2, 8.9 (proxy-preserved base causality order), 9.7.9.25.2 (async proxy).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptxemu.observe.between_blocks import BetweenBlocks
from ptxemu.observe.clocks import Accesses, Clocks, Finding, Folding, Key
from ptxemu.observe.descriptors import Tiles
from ptxemu.observe.lifetimes import MbarrierUses, RemoteUses
from ptxemu.observe.phases import Phases
from ptxemu.values import WARP, Array, BoolArray, Shape3

UNIT = 16  # bytes; the widest access of a lane


class Shadow:
    """Named arrays over the units of a memory.

    Attributes:
        unit: bytes per unit, a power of two; every access seen so far covers whole units.
        units: how many units the arrays hold.
        arrays: each array by name; the first axis counts units.
    """

    def __init__(self) -> None:
        self.unit = UNIT
        self.units = 0
        self.arrays: dict[str, Array] = {}
        self._fills: dict[str, int] = {}

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def add(self, name: str, fill: int, columns: int = 0, dtype: npt.DTypeLike = np.int32) -> None:
        """Adds an array filled with `fill`, of shape (units,) or (units, columns)."""
        shape = (self.units, columns) if columns else (self.units,)
        self.arrays[name] = np.full(shape, fill, dtype=dtype)
        self._fills[name] = fill

    def fit(self, address: npt.NDArray[np.int64], width: int) -> None:
        """Makes the unit small enough for accesses of `width` bytes at these addresses (not empty)."""
        bits = int(np.bitwise_or.reduce(address, axis=None)) | width
        unit = min(self.unit, bits & -bits)
        if unit == self.unit:
            return
        factor = self.unit // unit
        self.arrays = {name: np.repeat(array, factor, axis=0) for name, array in self.arrays.items()}
        self.unit, self.units = unit, self.units * factor

    def reserve(self, units: int) -> None:
        """Makes room for at least this many units; at least doubles, so that growing stays cheap."""
        if units <= self.units:
            return
        extra = max(units, 2 * self.units) - self.units
        for name, array in self.arrays.items():
            more = np.full((extra, *array.shape[1:]), self._fills[name], dtype=array.dtype)
            self.arrays[name] = np.concatenate([array, more])
        self.units += extra

    def spread(self, address: npt.NDArray[np.int64], width: int, threads: Array) -> tuple[npt.NDArray[np.int64], Array]:
        """Indices of all units of each access, and the accessing threads repeated to match."""
        units = address // self.unit
        count = width // self.unit
        if count == 1:
            return units, threads
        return (units[:, None] + np.arange(count)).reshape(-1), np.repeat(threads, count)


PAGE = 1 << 16  # bytes; bookkeeping is made for the pages that a program touches
NOBODY = -1
_THREAD_BITS = 10  # a thread of the grid is block << 10 | thread: a block has at most 1024


def thread_of(block: Array, thread: Array) -> Array:
    """The number of a thread of the launch."""
    return np.asarray(block << _THREAD_BITS | thread)


def block_and_thread(number: int) -> tuple[int, int]:
    """The block, and the thread in it, of a number that `thread_of` gives."""
    return divmod(number, 1 << _THREAD_BITS)


def places_of(numbers: Array) -> tuple[Array, Array]:
    """`block_and_thread` of many."""
    return numbers >> _THREAD_BITS, numbers & ((1 << _THREAD_BITS) - 1)


class GlobalRaces:
    """The global memory of a whole launch."""

    def __init__(self) -> None:
        self.shadow = Shadow()
        self._pages = np.zeros(0, dtype=np.int64)  # numbers of the pages seen, sorted
        self._slots = np.zeros(0, dtype=np.int64)  # the place of each in the shadow
        self._add("writer")
        self._add("reader")
        self._add("other_reader")
        self.times: Array | None = None  # the time of each block of the launch, where accesses are to remember it
        self.between: BetweenBlocks | None = None  # what orders blocks; None: nothing
        self.mixed = False  # whether a thread has read what another one wrote in this launch, or the other way round

    def _add(self, name: str) -> None:
        self.shadow.add(name, NOBODY, dtype=np.int64)
        self.shadow.add(f"{name}_site", 0)
        self.shadow.add(f"{name}_time", 0, dtype=np.int32)

    def _now(self, threads: Array) -> Array:
        return np.zeros(threads.shape, np.int32) if self.times is None else self.times[threads >> _THREAD_BITS]

    def access(
        self, kind: str, address: Array, width: int, mask: BoolArray | None, shape: Shape3, first_block: int, site: int
    ) -> list[Finding]:
        """Checks and records an instruction.

        Args:
            kind: ``ld``, ``cp.async``, ``st``, ``atom``; a strong load is ``strong ld``, a strong store ``atom``.
            address: bytes, broadcastable to `shape`.
            width: bytes per lane.
            mask: lanes that take part, broadcastable to `shape`; None for all.
            shape: (blocks, warps, 32) of the slice.
            first_block: number of the slice's first block within the launch.
            site: the instruction's number.
        """
        blocks, warps, _ = shape
        who = thread_of(first_block + np.arange(blocks)[:, None], np.arange(warps * WARP)).reshape(shape)
        chosen: BoolArray = np.broadcast_to(np.True_ if mask is None else mask, shape)
        where = np.broadcast_to(address, shape)[chosen].astype(np.int64)
        return self.record(kind, who[chosen], where, width, site)

    def record(self, kind: str, threads: Array, addresses: Array, width: int, site: int) -> list[Finding]:
        """Checks and records single accesses: `threads` of the launch (`thread_of`) and `addresses`, int64, flat."""
        if not threads.size:
            return []
        self.shadow.fit(addresses, width)
        units, threads = self.shadow.spread(self._packed(addresses), width, threads)
        addresses = addresses if units.size == addresses.size else np.repeat(addresses, units.size // addresses.size)
        return self._check(kind, units, threads, addresses, site)

    def _packed(self, addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Addresses with the untouched pages between left out."""
        pages = addresses // PAGE
        place = np.searchsorted(self._pages, pages)
        known = np.append(self._pages, -1)[place] == pages
        if not known.all():
            new = np.unique(pages[~known])
            everything = np.concatenate([self._pages, new])
            slots = np.concatenate([self._slots, self._slots.size + np.arange(new.size)])
            order = np.argsort(everything)
            self._pages, self._slots = everything[order], slots[order]
            place = np.searchsorted(self._pages, pages)
        self.shadow.reserve(self._pages.size * PAGE // self.shadow.unit)
        packed: npt.NDArray[np.int64] = self._slots[place] * PAGE + addresses % PAGE
        return packed

    def _check(self, kind: str, units: Array, threads: Array, addresses: Array, site: int) -> list[Finding]:
        writes = kind in {"st", "atom"}
        self.mixed = self.mixed or self._mixes(kind, units, threads)
        found = self._against("writer", "WAW" if writes else "RAW", units, threads, addresses)
        if kind not in {"atom", "strong ld"}:
            found += self._against_pair("atomic", "WAW" if writes else "RAW", units, threads, addresses)
        if writes:
            found += self._against_pair("reader", "WAR", units, threads, addresses)
        if kind == "st":
            found += self._against_pair("strong", "WAR", units, threads, addresses)
            self.shadow["writer"][units] = threads
            self.shadow["writer_site"][units] = site
            if self.times is not None:
                self.shadow["writer_time"][units] = self._now(threads)
            found += self._against("writer", "WAW", units, threads, addresses)  # of other blocks in this instruction
        else:
            self._join({"atom": "atomic", "strong ld": "strong"}.get(kind, "reader"), units, threads, site)
        return found

    def written_within(self, addresses: Array, threads: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Of accesses (`record`): writers of their own blocks, when they wrote, their sites; and which accesses."""
        if self.times is None:
            return
        units = self._packed(addresses) // self.shadow.unit
        writers, times = self.shadow["writer"][units], self.shadow["writer_time"][units]
        mine = (writers != NOBODY) & (writers >> _THREAD_BITS == threads >> _THREAD_BITS) & (times > 0)
        if mine.any():
            yield writers, times, self.shadow["writer_site"][units], np.flatnonzero(mine)

    def _mixes(self, kind: str, units: Array, threads: Array) -> bool:
        """Whether these threads read what others have written, or write what others have read, in the whole launch."""

        def others(name: str) -> BoolArray:
            known = self.shadow[name][units] if name in self.shadow else np.int64(NOBODY)
            return np.asarray((known != NOBODY) & (known != threads))

        if kind in {"st", "atom"}:
            return bool((others("reader") | others("strong") | others("crowd")).any())
        if "crowd" not in self.shadow:
            self.shadow.add("crowd", NOBODY, dtype=np.int64)  # a second reader
        first = self.shadow["reader"][units]
        new = np.where(first == NOBODY, threads, first)
        self.shadow["crowd"][units] = np.where(new == threads, self.shadow["crowd"][units], threads)
        crowded = np.unique(units).size < units.size
        if crowded:  # several threads of this instruction: whichever comes first, another is in the crowd
            order = np.argsort(units, kind="stable")
            again = order[1:][(units[order][1:] == units[order][:-1]) & (threads[order][1:] != threads[order][:-1])]
            self.shadow["crowd"][units[again]] = -2 - threads[again]  # nobody's number: not even the first reader's
        return bool((others("writer") | others("atomic")).any())

    def _against(self, name: str, kind: str, units: Array, threads: Array, addresses: Array) -> list[Finding]:
        """Races with the accesses remembered under a name."""
        others = self.shadow[name][units]
        bad = np.flatnonzero((others != NOBODY) & (others >> _THREAD_BITS != threads >> _THREAD_BITS))
        times = self.shadow[f"{name}_time"][units]
        if bad.size and self.between is not None:
            bad = bad[~self._ordered(others[bad], times[bad], threads[bad])]
        if not bad.size:
            return []
        sites, addresses, first, second = (
            each[bad] for each in (self.shadow[f"{name}_site"][units], addresses, others, threads)
        )
        found, lowest = [], (1 << _THREAD_BITS) - 1
        for site in np.unique(sites):
            chosen = np.flatnonzero(sites == site)
            at, one, two = (int(each[chosen[0]]) for each in (addresses, first, second))
            count, blocks = np.unique(second[chosen]).size, (one >> _THREAD_BITS, two >> _THREAD_BITS)
            time, text = int(times[bad[chosen[0]]]), ""
            if self.between and self.between.lacks_fence(blocks[0], one & lowest, time, blocks[1]):
                text = "its block has been told so, but behind the load or atomic that found it a fence is missing"
            found.append(Finding(kind, int(site), at, one & lowest, two & lowest, count, blocks, text))
        return found

    def _ordered(self, others: Array, times: Array, threads: Array) -> BoolArray:
        """Whether what threads of other blocks did at these times comes before what `threads` do now."""
        (one, first), (two, second) = places_of(others), places_of(threads)
        found = np.zeros(len(others), np.bool_)
        if self.between is None:
            return found
        for block in np.unique(two):
            mine = np.flatnonzero(two == block)
            found[mine] = self.between.ordered(one[mine], first[mine], times[mine], int(block), second[mine])
        return found

    def _against_pair(self, name: str, kind: str, units: Array, threads: Array, addresses: Array) -> list[Finding]:
        """Races with the first access remembered, or with the other one where the first is of the same block."""
        if name not in self.shadow:
            return []
        first = self.shadow[name][units]
        own = np.flatnonzero((first >> _THREAD_BITS == threads >> _THREAD_BITS) | (self.between is not None))
        found = self._against(name, kind, units, threads, addresses)
        return found + self._against(f"other_{name}", kind, units[own], threads[own], addresses[own])

    def _join(self, name: str, units: Array, threads: Array, site: int) -> None:
        """Remembers the threads where nobody, or only another block, is remembered yet."""
        if name not in self.shadow:
            self._add(name)
            self._add(f"other_{name}")
        new = units[self.shadow[name][units] == NOBODY]
        if new.size:
            mine = threads[self.shadow[name][units] == NOBODY]
            self.shadow[name][new], self.shadow[f"{name}_time"][new] = mine, self._now(mine)
            self.shadow[f"{name}_site"][new] = site
        differ = self.shadow[name][units] >> _THREAD_BITS != threads >> _THREAD_BITS
        self.shadow[f"other_{name}"][units[differ]] = threads[differ]
        self.shadow[f"other_{name}_time"][units[differ]] = self._now(threads[differ])
        self.shadow[f"other_{name}_site"][units[differ]] = site


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

    def fetch(self, name: tuple[int, int], threads: Array, address: Array, site: int) -> list[Finding]:
        """An operation begins to read chunks (addresses, int64, flat); all `threads` have to know of what was written.

        They issue it together; `fetched` knows it by its `name`, and `site` is the instruction's number.
        """
        accesses = self._accesses(threads[0], address)
        found = self.races.in_flight(accesses, "in-flight read")
        found += self._after("write", accesses, threads, "RAW") + self._after("atomics", accesses, threads, "RAW")
        self._fetches[name] = _Fetch(threads, address, site)
        self.shadow["fetches"][accesses.units] += 1
        return found

    def fetched(self, name: tuple[int, int], key: Key, waited: Array) -> None:
        """A read ends; `waited` are the threads that know it, `key` the agent that stands for it."""
        fetch = self._fetches.pop(name)
        accesses = self._accesses(fetch.threads[0], fetch.address)
        self.shadow["fetches"][accesses.units] -= 1
        if key not in self._ended:
            self._ended.append(key)
            for part in PARTS:
                if part not in self.shadow:
                    self.shadow.add(part, 0, 1)
                else:
                    old = self.shadow.arrays[part]
                    self.shadow.arrays[part] = np.append(old, np.zeros_like(old[:, :1]), axis=1)
        column = self._ended.index(key)
        self.shadow["ended"][accesses.units, column] = self.clocks.now
        self.shadow["ended_site"][accesses.units, column] = fetch.site
        self.shadow["ended_thread"][accesses.units, column] = fetch.threads[0]
        if waited.size:
            self.clocks.tell(waited, key)

    def put(self, thread: int, address: Array, site: int, *, reduces: bool = False) -> list[Finding]:
        """A copy that a thread issues begins to write chunks, or to combine them: reductions are atomic."""
        accesses = self._accesses(thread, address)
        fresh = accesses
        if reduces:
            self._reductions.add(site)
            known, units = np.array(sorted(self._reductions)), accesses.units
            flying = (self.shadow["owner"][units] != NOBODY) & np.isin(self.shadow["copy"][units], known)
            landed = (self.shadow["writer"][units] < NOBODY) & np.isin(self.shadow["write_site"][units], known)
            chosen = ~(flying | landed)
            fresh = Accesses(accesses.threads[chosen], accesses.units[chosen])
        found = self.races.in_flight(fresh, "in-flight write")
        for name, places in (("write", fresh), ("atomics", accesses)):
            found += self._after(name, places, np.array([thread]), "WAW")
        return found + self.races.begin_write(accesses, site)

    def landed(self, thread: int, address: Array, site: int, key: Key) -> None:
        """What `put` announced is written; the mbarrier of this key is told of it."""
        self._written(self._accesses(thread, address), site, key)

    def stored(self, address: Array, width: int, mask: BoolArray, site: int, key: Key) -> None:
        """What lanes stored asynchronously is written; the mbarrier of this key is told of it."""
        self.races.tiles.forget(np.unique(np.broadcast_to(address, mask.shape)[mask].astype(np.int64) // CHUNK))
        self.clocks.tick()
        self._written(self.races.accesses(address, width, mask), site, key)

    def _written(self, accesses: Accesses, site: int, key: Key) -> None:
        """The agent of this key has written what the accesses' threads issued."""
        self.races.end_write(accesses, site)
        self.races.write(Accesses(np.full_like(accesses.threads, self.clocks.agent(key)), accesses.units), site)
        self._issuers[self.clocks.agent(key)] = int(accesses.threads[0])
        self.clocks.act(key)

    def thread_of(self, other: int) -> int:
        """The thread that acted: of an agent's write the one that issued it."""
        return self._issuers.get(other, other)

    def overwritten(self, accesses: Accesses) -> list[Finding]:
        """Findings of writes to what an operation may still read, or whose end the writer does not know."""
        found: list[Finding] = []
        if self._fetches and self.shadow["fetches"][accesses.units].any():
            found = self._open(accesses)
        for column, key in enumerate(self._ended):
            times = self.shadow["ended"][accesses.units, column]
            if not times.any():
                continue
            agents = np.full_like(accesses.threads, self.clocks.agent(key))
            bad = np.flatnonzero(~self.clocks.ordered(accesses.threads, agents, times))
            sites = self.shadow["ended_site"][accesses.units[bad], column]
            others = self.shadow["ended_thread"][accesses.units[bad], column]
            found += self.races.found("WAR", accesses, bad, sites, others)
        return found

    def _open(self, accesses: Accesses) -> list[Finding]:
        """Findings of writes to what is being read."""
        found = []
        for fetch in self._fetches.values():
            units, _ = self.shadow.spread(fetch.address, CHUNK, fetch.address)
            bad = np.flatnonzero(np.isin(accesses.units, units))
            sites, others = np.full_like(bad, fetch.site), np.full_like(bad, fetch.threads[0])
            found += self.races.found(OVERWRITE, accesses, bad, sites, others)
        return found

    def _after(self, name: str, accesses: Accesses, threads: Array, kind: str) -> list[Finding]:
        """Findings of an operation against last writes, or atomics since: unknown to its threads, or not fenced."""
        units, which = accesses.units, np.arange(accesses.units.size)
        if name == "write":
            others, times, sites = (self.shadow[each][units] for each in ("writer", "write_time", "write_site"))
        elif "atomics_time" in self.shadow:
            which, warp = np.nonzero(self.shadow["atomics_time"][units])
            atomics = (self.shadow[f"atomics_{part}"][units[which], warp] for part in ("lanes", "time", "site"))
            lanes, times, sites = atomics
            row, lane = np.nonzero(lanes[:, None] >> np.arange(WARP, dtype=np.uint32) & np.uint32(1))
            which, others, times, sites = which[row], warp[row] * WARP + lane, times[row], sites[row]
        else:
            return []
        known = self.clocks.all_ordered(threads, others, times)
        fenced = self.clocks.all_ordered(threads, others, times, fenced=True)
        found = []
        for race, bad in ((kind, np.flatnonzero(~known)), ("proxy", np.flatnonzero(known & ~fenced))):
            found += self.races.found(race, accesses, which[bad], sites[bad], others[bad])
        return found

    def _accesses(self, thread: int, address: Array) -> Accesses:
        """Whole chunks, as a thread's accesses, now."""
        self.clocks.tick()
        self.shadow.fit(address, CHUNK)
        units, threads = self.shadow.spread(address, CHUNK, np.full(address.shape, thread, dtype=np.int64))
        if "fetches" not in self.shadow:
            self.shadow.add("fetches", 0)
        self.shadow.reserve(int(units.max()) + 1)
        return Accesses(threads, units)


MBARRIER_BYTES = 8
# Per unit and warp: time, lanes (bits) and site of accesses since the last write. Strong loads are a set of their own.
SETS = ("readers", "atomics", "strong")


class SharedRaces:
    """The shared memory of one block, or of several that have all done the same so far."""

    def __init__(self, exists: BoolArray) -> None:
        self.clocks = Clocks(exists)
        self.shadow = Shadow()
        for name, fill in (("writer", NOBODY), ("write_time", 0), ("write_site", 0), ("owner", NOBODY), ("copy", 0)):
            self.shadow.add(name, fill)
        self._add_set("readers")
        self.mbarriers = MbarrierUses(self.clocks)
        self.remote = RemoteUses(self.clocks)
        self.asynchronous = AsyncRaces(self)
        self.phases = Phases(self.clocks)
        self.tiles = Tiles()

    def _add_set(self, name: str) -> None:
        for part, dtype in (("time", np.int32), ("lanes", np.uint32), ("site", np.int32)):
            self.shadow.add(f"{name}_{part}", 0, self.clocks.warps, dtype)

    def use_mbarriers(self, address: Array, mask: BoolArray, action: str, site: int) -> list[Finding]:
        """Lanes use mbarriers, (warps, lanes) each: as `MbarrierUses.use`; init and inval also write their bytes."""
        found = self.access("st", address, MBARRIER_BYTES, mask, site) if action in ("init", "inval") else []
        self.clocks.tick()
        return found + self.mbarriers.use(address, mask, action, site)

    def reached(self, address: Array, mask: BoolArray, folding: Folding, site: int) -> list[Finding]:
        """Lanes have just accessed shared memory of blocks of their cluster: checks and remembers other blocks."""
        return self.remote.note(address, mask, folding, site) if folding.size > 1 else []

    def access(self, kind: str, address: Array, width: int, mask: BoolArray | None, site: int) -> list[Finding]:
        """Checks and records an instruction, whose number is `site`; masks and addresses are (warps, lanes).

        Of a matrix load or store they are (warps, rows) and (warps, 1); `width` counts bytes per lane or row.
        """
        accesses = self.accesses(address, width, mask, whole_warps=kind in {"ldmatrix", "stmatrix"})
        if not accesses.units.size:
            return []
        self.clocks.tick()
        writes = kind in {"st", "stmatrix", "atom"}
        found = self.in_flight(accesses, "in-flight write" if writes else "in-flight read")
        found += self._after_write(accesses, "WAW" if writes else "RAW")
        if kind not in {"atom", "strong ld"}:
            found += self.after_set("atomics", accesses, "WAW" if writes else "RAW")
        if writes:
            found += self.after_set("readers", accesses, "WAR") + self.asynchronous.overwritten(accesses)
        if kind in {"st", "stmatrix"}:
            found += self.after_set("strong", accesses, "WAR") + self._twice(accesses, site)
            self.write(accesses, site)
            self.tiles.forget(accesses.units * self.shadow.unit // CHUNK)
        else:
            self._join_set({"atom": "atomics", "strong ld": "strong"}.get(kind, "readers"), accesses, site)
        return found

    def synchronise(self, address: Array, mask: BoolArray, opcode: str) -> None:
        """Strong loads, strong stores and atomics of words order what lies before and behind them.

        What is read is what was stored last in the order in which the program runs here, so who acquires knows what
        those knew who released. Without ``.release`` and ``.acquire`` memory fences have to stand beside them.
        """
        parts = set(opcode.split("."))
        for place in np.unique(address[mask]):
            lanes, key = mask & (address == place), ("word", int(place))
            if parts.isdisjoint({"st", "red"}):
                self.clocks.acquire(lanes, key, relaxed=parts.isdisjoint({"acquire", "acq_rel"}))
            if "ld" not in parts:
                if "st" in parts:
                    self.clocks.forget(key)  # another value: it tells nothing of earlier ones
                self.clocks.release(lanes, key, relaxed=parts.isdisjoint({"release", "acq_rel"}))
                self.clocks.complete(key)

    def issue(self, address: Array, width: int, mask: BoolArray | None, site: int) -> list[Finding]:
        """A ``cp.async`` begins to write; arguments as of `access`."""
        accesses = self.accesses(address, width, mask)
        if not accesses.units.size:
            return []
        self.clocks.tick()
        found = self.in_flight(accesses, "in-flight write")
        found += self._after_write(accesses, "WAW") + self.after_set("atomics", accesses, "WAW")
        return found + self.begin_write(accesses, site) + self._twice(accesses, site)

    def begin_write(self, accesses: Accesses, site: int) -> list[Finding]:
        """An asynchronous write begins: against readers; from now on its bytes are in flight."""
        found = self.after_set("readers", accesses, "WAR") + self.after_set("strong", accesses, "WAR")
        found += self.asynchronous.overwritten(accesses)
        self.shadow["owner"][accesses.units] = accesses.threads
        self.shadow["copy"][accesses.units] = site
        return found

    def end_write(self, accesses: Accesses, site: int) -> None:
        """The bytes that `begin_write` announced are no longer in flight."""
        own = self.shadow["owner"][accesses.units] == accesses.threads
        own &= self.shadow["copy"][accesses.units] == site
        self.shadow["owner"][accesses.units[own]] = NOBODY

    def land(self, address: Array, width: int, mask: BoolArray | None, site: int) -> None:
        """A wait of their own threads guarantees these copies, which `issue` announced."""
        accesses = self.accesses(address, width, mask)
        if not accesses.units.size:
            return
        self.clocks.tick()
        self.end_write(accesses, site)
        self.write(accesses, site)
        self.tiles.forget(accesses.units * self.shadow.unit // CHUNK)

    def accesses(self, address: Array, width: int, mask: BoolArray | None, *, whole_warps: bool = False) -> Accesses:
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
            return Accesses(threads, where)
        self.shadow.fit(where, width)
        units, threads = self.shadow.spread(where, width, threads)
        self.shadow.reserve(int(units.max()) + 1)
        return Accesses(threads, units)

    def in_flight(self, accesses: Accesses, kind: str) -> list[Finding]:
        """Findings of accesses to bytes that an asynchronous copy still writes."""
        owners = self.shadow["owner"][accesses.units]
        bad = np.flatnonzero(owners != NOBODY)
        sites = self.shadow["copy"][accesses.units[bad]]
        return self.found(kind, accesses, bad, sites, owners[bad])

    def _after_write(self, accesses: Accesses, kind: str) -> list[Finding]:
        writers = self.shadow["writer"][accesses.units]
        times = self.shadow["write_time"][accesses.units]  # 0 where nobody wrote: always ordered
        bad = np.flatnonzero(~self.clocks.ordered(accesses.threads, writers, times))
        sites = self.shadow["write_site"][accesses.units[bad]]
        return self.found(kind, accesses, bad, sites, writers[bad])

    def after_set(self, name: str, accesses: Accesses, kind: str) -> list[Finding]:
        """Findings of accesses that nothing orders after those of a set."""
        if f"{name}_time" not in self.shadow:
            return []
        times = self.shadow[f"{name}_time"][accesses.units]
        late = times > self.clocks.horizon(accesses.threads)
        if not late.any():
            return []
        which, warp = np.nonzero(late)
        lanes = self.shadow[f"{name}_lanes"][accesses.units[which], warp]
        concurrent = self.clocks.concurrent(accesses.threads[which], warp, times[which, warp], lanes)
        bad = np.flatnonzero(concurrent.any(axis=1))
        others = warp[bad] * WARP + concurrent[bad].argmax(axis=1)
        sites = self.shadow[f"{name}_site"][accesses.units[which[bad]], warp[bad]]
        return self.found(kind, accesses, which[bad], sites, others)

    def _twice(self, accesses: Accesses, site: int) -> list[Finding]:
        """Threads that write one byte in the same instruction, which all warps run at once: any may win."""
        order = np.argsort(accesses.units, kind="stable")
        units = accesses.units[order]
        again = np.flatnonzero(units[1:] == units[:-1])
        if not again.size:
            return []
        first, second = accesses.threads[order[again]], accesses.threads[order[again + 1]]
        same_warp = first // WARP == second // WARP
        found = []
        for kind, chosen in (("same-instruction write", same_warp), ("WAW", ~same_warp)):
            if chosen.any():
                at = int(chosen.argmax())
                address = int(units[again[at]]) * self.shadow.unit
                count = np.unique(second[chosen]).size
                found.append(Finding(kind, site, address, int(first[at]), int(second[at]), count))
        return found

    def write(self, accesses: Accesses, site: int) -> None:
        """The units have a new writer; what was ordered before it need not be remembered."""
        self.shadow["writer"][accesses.units] = accesses.threads
        self.shadow["write_time"][accesses.units] = self.clocks.now
        self.shadow["write_site"][accesses.units] = site
        for name in ("ended", *(f"{name}_{part}" for name in SETS for part in ("time", "lanes"))):
            if name in self.shadow:
                self.shadow[name][accesses.units] = 0

    def _join_set(self, name: str, accesses: Accesses, site: int) -> None:
        """Adds the lanes to the readers (atomics) of their warps; forgets those whom the new ones come after."""
        if f"{name}_time" not in self.shadow:
            self._add_set(name)
        warps = accesses.threads >> 5
        time, lanes = self.shadow[f"{name}_time"], self.shadow[f"{name}_lanes"]
        old = time[accesses.units, warps]
        horizon = self.clocks.horizon(accesses.threads)[np.arange(warps.size), warps]
        kept = np.flatnonzero(old > horizon)
        covered = old != 0
        if kept.size:
            earlier = lanes[accesses.units[kept], warps[kept]]
            covered[kept] = ~self.clocks.concurrent(accesses.threads[kept], warps[kept], old[kept], earlier).any(axis=1)
        lanes[accesses.units[covered], warps[covered]] = 0
        bits = np.left_shift(np.uint32(1), (accesses.threads & 31).astype(np.uint32))
        np.bitwise_or.at(lanes, (accesses.units, warps), bits)
        time[accesses.units, warps] = self.clocks.now
        self.shadow[f"{name}_site"][accesses.units, warps] = site

    def found(self, kind: str, accesses: Accesses, bad: Array, sites: Array, others: Array) -> list[Finding]:
        """Findings of the accesses `bad`, one for each earlier instruction."""
        units, threads = accesses.units[bad], accesses.threads[bad]
        found = []
        for site in np.unique(sites) if sites.size else ():
            chosen = np.flatnonzero(sites == site)
            at = chosen[0]
            address = int(units[at]) * self.shadow.unit
            count = np.unique(threads[chosen]).size
            first = self.asynchronous.thread_of(int(others[at]))
            found.append(Finding(kind, int(site), address, first, int(threads[at]), count))
        return found
