"""Global-memory races between the blocks of a grid, which are always concurrent.

One byte touched by two blocks, at least one of them writing, is a race, unless both accesses are atomic or strong
(``.volatile``, ``.relaxed``, ``.acquire``, ``.release``; PTX ISA 9.0, 8.2). What blocks tell each other through fences
and atomics (a ticket taken with ``atom``, then plain loads of other blocks' results) is not followed: such a protocol
is reported. Within one block global accesses are not checked.

For each unit of memory the last writer is kept, and of readers and atomics two that belong to different blocks: whoever
comes next differs from at least one of them. A strong store counts as an atomic.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flashladder.emulator.observe.ordering.finding import Finding
from flashladder.emulator.observe.shadow import Shadow
from flashladder.emulator.values import WARP, Array, BoolArray, Shape3

PAGE = 1 << 16  # bytes; bookkeeping is made for the pages that a program touches
NOBODY = -1
_THREAD_BITS = 10  # a thread of the grid is block << 10 | thread: a block has at most 1024


def thread_of(block: Array, thread: Array) -> Array:
    """The number of a thread of the launch."""
    return np.asarray(block << _THREAD_BITS | thread)


class GlobalRaces:
    """The global memory of a whole launch."""

    def __init__(self) -> None:
        self.shadow = Shadow()
        self._pages = np.zeros(0, dtype=np.int64)  # numbers of the pages seen, sorted
        self._slots = np.zeros(0, dtype=np.int64)  # the place of each in the shadow
        self._add("writer")
        self._add("reader")
        self._add("other_reader")

    def _add(self, name: str) -> None:
        self.shadow.add(name, NOBODY, dtype=np.int64)
        self.shadow.add(f"{name}_site", 0)

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
        who = (first_block + np.arange(blocks))[:, None] << _THREAD_BITS | np.arange(warps * WARP)
        where = np.broadcast_to(address, shape)
        if mask is None:
            threads, addresses = who.reshape(-1), where.reshape(-1).astype(np.int64)
        else:
            chosen = np.broadcast_to(mask, shape)
            threads, addresses = who.reshape(shape)[chosen], where[chosen].astype(np.int64)
        return self.touch(kind, threads, addresses, width, site)

    def touch(self, kind: str, threads: Array, addresses: Array, width: int, site: int) -> list[Finding]:
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
        found = self._against("writer", "WAW" if writes else "RAW", units, threads, addresses)
        if kind not in {"atom", "strong ld"}:
            found += self._against_pair("atomic", "WAW" if writes else "RAW", units, threads, addresses)
        if writes:
            found += self._against_pair("reader", "WAR", units, threads, addresses)
        if kind == "st":
            found += self._against_pair("strong", "WAR", units, threads, addresses)
            found += self._write(units, threads, addresses, site)
        else:
            self._join({"atom": "atomic", "strong ld": "strong"}.get(kind, "reader"), units, threads, site)
        return found

    def _against(self, name: str, kind: str, units: Array, threads: Array, addresses: Array) -> list[Finding]:
        """Races with the accesses remembered under a name."""
        others = self.shadow[name][units]
        bad = np.flatnonzero((others != NOBODY) & (others >> _THREAD_BITS != threads >> _THREAD_BITS))
        if not bad.size:
            return []
        sites = self.shadow[f"{name}_site"][units[bad]]
        return _findings(kind, sites, addresses[bad], others[bad], threads[bad])

    def _against_pair(self, name: str, kind: str, units: Array, threads: Array, addresses: Array) -> list[Finding]:
        if name not in self.shadow:
            return []
        found = self._against(name, kind, units, threads, addresses)
        return found or self._against(f"other_{name}", kind, units, threads, addresses)

    def _write(self, units: Array, threads: Array, addresses: Array, site: int) -> list[Finding]:
        """The units have a new writer; blocks that write one unit in the same instruction race with each other."""
        self.shadow["writer"][units] = threads
        self.shadow["writer_site"][units] = site
        return self._against("writer", "WAW", units, threads, addresses)

    def _join(self, name: str, units: Array, threads: Array, site: int) -> None:
        """Remembers the threads where nobody, or only another block, is remembered yet."""
        if name not in self.shadow:
            self._add(name)
            self._add(f"other_{name}")
        new = units[self.shadow[name][units] == NOBODY]
        if new.size:
            self.shadow[name][new] = threads[self.shadow[name][units] == NOBODY]
            self.shadow[f"{name}_site"][new] = site
        differ = self.shadow[name][units] >> _THREAD_BITS != threads >> _THREAD_BITS
        self.shadow[f"other_{name}"][units[differ]] = threads[differ]
        self.shadow[f"other_{name}_site"][units[differ]] = site


def _findings(kind: str, sites: Array, addresses: Array, first: Array, second: Array) -> list[Finding]:
    found = []
    lowest = (1 << _THREAD_BITS) - 1
    for site in np.unique(sites):
        chosen = np.flatnonzero(sites == site)
        one, two = int(first[chosen[0]]), int(second[chosen[0]])
        found.append(
            Finding(
                kind,
                int(site),
                int(addresses[chosen[0]]),
                one & lowest,
                two & lowest,
                np.unique(second[chosen]).size,
                (one >> _THREAD_BITS, two >> _THREAD_BITS),
            )
        )
    return found
