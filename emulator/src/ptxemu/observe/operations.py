"""Asynchronous operations as the race detector sees them: bulk copies, warpgroup products, proxy fences.

They are not accesses of a lane, but of one thread (or a warpgroup) to thousands of bytes at once, which begin and end
at different times. They are told to `races.AsyncRaces` of each group of blocks and, for global memory, to
`GlobalRaces`.

A product reads from its issue until the wait of the last of its four warps. Every thread of the warpgroup has to know
of what was written before the issue, through a fence of the async proxy where threads wrote it; who writes over a
matrix later has to know of the wait, from the last warp or from all.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ptxemu.machine.core import Step
from ptxemu.machine.observer import PIECE, Global, Product, Shared, Transfer
from ptxemu.machine.warpgroups import WARPS
from ptxemu.observe.clocks import Finding, Key
from ptxemu.observe.races import GlobalRaces, block_and_thread, places_of, thread_of
from ptxemu.observe.synchronisation import Group, Synchronisation
from ptxemu.syntax.tree import Instruction
from ptxemu.values import WARP, Array, BoolArray


class Operations(Synchronisation):
    """What asynchronous operations touch, and when they end."""

    def __init__(self) -> None:
        super().__init__()
        self._memory = GlobalRaces()
        self._first_block = 0  # number of the slice's first block in the launch
        self.global_memory = True
        self._copies_globally = False  # whether the kernel has bulk copies: then stores remember when they were
        self._names: dict[int, tuple[int, object]] = {}  # id of an operation in flight: its number, and itself
        self._count = 0
        self._stores: list[tuple[Transfer, Array, Array]] = []  # copies to global memory: addresses, threads

    @abstractmethod
    def _site(self, instruction: Instruction) -> int:
        """The number of an instruction."""

    @abstractmethod
    def _report(self, space: str, found: list[Finding], second: Instruction, group: Group | None) -> None:
        """Keeps what was found."""

    def proxy_fence(self, step: Step) -> None:
        """What these lanes know of shared memory is ordered for asynchronous operations, too."""
        opcode = step.instruction.opcode
        for group, chosen in self._masks(step.lanes()):
            if not opcode.endswith(".global"):
                group.races.clocks.fence(chosen)
            if self._copies_globally and not opcode.endswith((".shared::cta", ".shared::cluster")):
                group.races.clocks.fence_global(chosen)

    def mbarrier_fence(self, step: Step) -> None:
        """The mbarriers that these lanes have initialised may be told of bytes."""
        for group, chosen in self._masks(step.lanes()):
            group.races.mbarriers.fence(chosen)

    def transfer_issued(self, transfer: Transfer) -> None:
        """From now on its source is read and its target written."""
        instruction = transfer.step.instruction
        site, number = self._site(instruction), self._number(transfer)
        everyone = np.arange(len(transfer.group))
        for side in (transfer.source, transfer.target):
            if isinstance(side, Global) and self.global_memory:
                self._issued_globally(transfer, side, site)
        if isinstance(transfer.source, Shared):
            for group, rows in self._rows_of(transfer, transfer.source, everyone):
                for _, thread, address in rows:
                    found = group.races.asynchronous.fetch((number, thread), np.array([thread]), address, site)
                    self._report("shared", found, instruction, group)
        if isinstance(transfer.target, Shared):
            told = self._barriers(transfer)
            for group, rows in self._rows_of(transfer, transfer.target, transfer.rows, extra=told):
                for barrier, thread, address in rows:
                    reduces = transfer.reduce is not None
                    found = group.races.asynchronous.put(thread, address, site, reduces=reduces)
                    self._report("shared", found, instruction, group)
                    if transfer.tile is None:
                        group.races.tiles.forget(address // PIECE)
                    else:
                        group.races.tiles.loaded(address, transfer.tile[1], transfer.tile[0], site, thread)
                    self._report("shared", group.races.mbarriers.counted(thread, barrier), instruction, group)
                    if transfer.signal is not None and not group.races.phases.issue(thread, ("mbarrier", barrier)):
                        self._may_differ("the phase of an mbarrier that a copy tells", instruction)

    def transfer_read(self, by: Step, transfer: Transfer, chosen: BoolArray) -> None:
        """The source need not be kept; the threads that waited for it know."""
        if not isinstance(transfer.source, Shared):
            return
        number, waits = self._number(transfer), by is not transfer.step
        which = np.flatnonzero(chosen)
        part = Shared(transfer.source.blocks[which], transfer.source.places[which])
        for group, rows in self._rows_of(transfer, part, which, extra=self._barriers(transfer)[which]):
            for barrier, thread, _ in rows:
                waited = np.array([thread] if waits else [], dtype=np.int64)
                key: Key = ("fetch", thread) if transfer.signal is None else ("mbarrier", barrier)
                group.races.asynchronous.fetched((number, thread), key, waited)

    def transfer_landed(self, by: Step, transfer: Transfer, chosen: BoolArray) -> None:  # noqa: ARG002 - the observer's signature
        """The target is written, and the mbarrier told of it."""
        signal, target = transfer.signal, transfer.target
        if isinstance(target, Shared) and signal is not None:
            site = self._site(transfer.step.instruction)
            told = np.flatnonzero(chosen[transfer.rows])
            part = Shared(target.blocks[told], target.places[told])
            for group, rows in self._rows_of(transfer, part, transfer.rows[told], extra=self._barriers(transfer)[told]):
                for key, thread, address in rows:
                    group.races.asynchronous.landed(thread, address, site, ("mbarrier", key))
        if transfer.over.all():
            self._names.pop(id(transfer), None)
            self._stores = [store for store in self._stores if store[0] is not transfer]

    def _barriers(self, transfer: Transfer) -> Array:
        """Where the mbarriers lie that a copy tells, by row of its target, in the cluster's windows."""
        signal = transfer.signal
        if signal is None:
            return np.zeros(len(transfer.rows), dtype=np.int64)
        return np.asarray(signal.blocks % self._fold.size * self._fold.stride + signal.offsets)

    def _rows_of(
        self, transfer: Transfer, side: Shared, threads: Array, extra: Array | None = None
    ) -> list[tuple[Group, list[tuple[int, int, Array]]]]:
        """Each group with (extra, issuing thread, chunk addresses) of the rows of a side, in the cluster's terms.

        `threads` (rows,) are those of the copy that the rows belong to; `extra` (rows,) is a number of each row, about
        which the clusters of a group agree, too.
        """
        block, warp, lane = (axis[threads] for axis in transfer.lanes)
        size, warps = self._fold.size, self._fold.shape[1]
        thread = block % size * warps * WARP + warp * WARP + lane
        address = (side.blocks % size * self._fold.stride)[:, None] + side.places
        table = np.column_stack([thread if extra is None else extra, thread, address])
        return [
            (group, [(int(row[0]), int(row[1]), row[2:]) for row in rows])
            for group, rows in self._tabled(block // size, table)
        ]

    def _tabled(self, clusters: Array, table: Array) -> list[tuple[Group, Array]]:
        """Each group with its own rows of a table whose rows belong to `clusters`, ascending."""
        if not len(table):
            return []
        count = self._fold.shape[0] // self._fold.size
        turn = np.arange(len(clusters)) - np.searchsorted(clusters, clusters)
        padded = np.full((count, int(turn.max()) + 1, table.shape[1]), -1, dtype=np.int64)
        padded[clusters, turn] = table
        self._agree(padded)
        found = []
        for group in self._groups:
            rows = padded[group.members[0]]
            rows = rows[rows[:, 1] >= 0]
            if len(rows):
                found.append((group, rows))
        return found

    def _number(self, operation: object) -> int:
        """The number of an operation in flight."""
        if id(operation) not in self._names:
            self._count += 1
            self._names[id(operation)] = (self._count, operation)  # keeps it alive, and so its id
        return self._names[id(operation)][0]

    def _issued_globally(self, transfer: Transfer, side: Global, site: int) -> None:
        """A copy reads or writes global memory: against other blocks, and against other copies in flight."""
        block, warp, lane = transfer.lanes
        rows = transfer.rows if side is transfer.target else np.arange(len(transfer.group))
        threads = thread_of(self._first_block + block, warp * WARP + lane)[rows]
        spread = np.broadcast_to(threads[:, None], side.addresses.shape)
        inside = np.ones(side.addresses.shape, dtype=np.bool_) if side.inside is None else side.inside
        writes = side is transfer.target
        kind = "ld" if not writes else "st" if transfer.reduce is None else "atom"
        if kind == "atom" and (".f" in transfer.instruction.opcode or ".bf" in transfer.instruction.opcode):
            self._may_differ("how sums of floats are rounded", transfer.instruction)
        addresses, threads = side.addresses[inside], spread[inside]
        instruction = transfer.step.instruction
        self._report("global", self._memory.record(kind, threads, addresses, side.unit, site), instruction, None)
        if kind == "ld":
            self._check_proxies(transfer, addresses, threads)
        if kind == "st":
            source = transfer.source
            places = source.places[transfer.rows][inside] if isinstance(source, Shared) else np.arange(addresses.size)
            self._check_stores(transfer, addresses, threads, places)

    def _check_proxies(self, transfer: Transfer, addresses: Array, threads: Array) -> None:
        """A copy reads what threads of its own block have written: ordered before it, with a proxy fence between."""
        for writers, times, sites, chosen in self._memory.written_within(addresses, threads):
            for thread in np.unique(threads[chosen]):
                mine = chosen[threads[chosen] == thread]
                number, local = block_and_thread(int(thread))
                group, offset = self._group_of(number - self._first_block)
                theirs = places_of(writers[mine])[1] + offset
                one = np.full(len(mine), local + offset)
                ordered = group.races.clocks.ordered(one, theirs, times[mine])
                fenced = group.races.clocks.fenced_globally(local + offset, theirs, times[mine])
                for kind, wrong in (("RAW", ~ordered), ("proxy", ordered & ~fenced)):
                    for site in np.unique(sites[mine][wrong]):
                        at = np.flatnonzero(wrong & (sites[mine] == site))
                        first = block_and_thread(int(writers[mine][at[0]]))[1]
                        blocks, address = (number, number), int(addresses[mine][at[0]])
                        found = Finding(kind, int(site), address, first, local, len(at), blocks)
                        self._report("global", [found], transfer.step.instruction, None)

    def _group_of(self, block: int) -> tuple[Group, int]:
        """The group of a block of the slice, and the number of its first thread in the cluster."""
        cluster, rank = divmod(block, self._fold.size)
        group = next(each for each in self._groups if cluster in each.members)
        return group, rank * self._fold.shape[1] * WARP

    def _check_stores(self, transfer: Transfer, addresses: Array, threads: Array, places: Array) -> None:
        """Bytes that two copies in flight write are written in any order, also if one thread issued both.

        Lanes of one warp that copy the same bytes, at `places`, in one instruction do no harm.
        """
        order = np.argsort(addresses, kind="stable")
        own, mine, source = addresses[order], threads[order], places[order]
        same = (source[1:] == source[:-1]) & (mine[1:] // WARP == mine[:-1] // WARP)
        twice = np.flatnonzero((own[1:] == own[:-1]) & ~same)
        meets = [(transfer, own[twice], mine[twice], mine[twice + 1])]
        for other, theirs, whose in self._stores:
            at, its, ours = np.intersect1d(theirs, own, return_indices=True)  # whole pieces: see `boxes`
            meets.append((other, at, whose[its], mine[ours]))
        for other, at, one, two in meets:
            if at.size:
                (first, thread), (second, late) = (block_and_thread(int(each[0])) for each in (one, two))
                site, count = self._site(other.step.instruction), np.unique(two).size
                finding = Finding("in-flight write", site, int(at[0]), thread, late, count, (first, second))
                self._report("global", [finding], transfer.step.instruction, None)
        self._stores.append((transfer, own, mine))


THREADS = WARPS * WARP


@dataclass(frozen=True)
class _Part:
    """What one warpgroup of a cluster reads: its first thread, which of its warps act, addresses of chunks, int64.

    Also where its block's shared memory begins, and the descriptors of A and B.
    """

    first: int
    warps: int  # bits
    address: Array
    base: int
    descriptors: tuple[int, ...]

    @property
    def acting(self) -> Array:
        """The threads of the warps that act."""
        chosen = [self.first + WARP * i + np.arange(WARP) for i in range(WARPS) if self.warps >> i & 1]
        return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)


class Products(Operations):
    """Tells the bookkeeping when products begin and end to read."""

    def product_issued(self, step: Step, product: Product) -> None:
        """Its matrices are read from now on."""
        site, number = self._site(step.instruction), self._number(product)
        everybody = np.array([[(1 << WARPS) - 1]]) if product.warps is None else _bits(product.warps, product)
        for group, parts in self._parts(product, everybody):
            for part in parts:
                threads = part.first + np.arange(THREADS)
                found = group.races.asynchronous.fetch((number, part.first), threads, part.address, site)
                for name, raw, of in zip("AB", part.descriptors, product.descriptors, strict=True):
                    if of is None:
                        continue
                    misfit = group.races.tiles.misfit(name, raw, of[1], part.base)
                    if misfit is not None:
                        sides = misfit.thread, part.first
                        found.append(Finding("descriptor", misfit.copy, misfit.address, *sides, 1, text=misfit.text))
                self._report("shared", found, step.instruction, group)

    def product_done(self, step: Step, product: Product, warps: BoolArray | None) -> None:  # noqa: ARG002 - the observer's signature
        """For warpgroups all of whose warps have waited nothing is read any more, and those who waited last know."""
        number = self._number(product)
        acting = np.array([[(1 << WARPS) - 1]]) if warps is None else _bits(warps, product)
        if product.pending is not None:
            acting = np.where(_bits(product.pending, product) == 0, acting, 0)
        for group, parts in self._parts(product, acting):
            for part in parts:
                key = ("product", part.first)
                group.races.asynchronous.fetched((number, part.first), key, part.acting)
        if product.pending is None or not product.pending.any():
            self._names.pop(id(product), None)

    def _parts(self, product: Product, acting: Array) -> list[tuple[Group, list[_Part]]]:
        """Each group with the warpgroups of a cluster of which some warps act; `acting`: (blocks|1, groups|1) bits."""
        size, blocks = self._fold.size, self._fold.shape[0]
        sides = [product.right] if isinstance(product.left, list) else [product.left, product.right]
        flat = [side.reshape(*side.shape[:2], -1) for side in sides if isinstance(side, np.ndarray)]
        count = len(product.groups)
        raws = [np.zeros((1, 1), np.uint64) if each is None else each[0] for each in product.descriptors]
        alike = len(acting) == 1 and all(len(side) == 1 for side in (*flat, *raws))
        rows = 1 if alike else blocks
        address = np.concatenate([np.broadcast_to(side, (rows, count, side.shape[2])) for side in flat], axis=2)
        named = np.stack([np.broadcast_to(raw, (rows, count)) for raw in raws], axis=2).view(np.int64)
        bits = np.broadcast_to(acting, (rows, count))
        first = np.broadcast_to(product.groups * THREADS, (rows, count))
        threads, stride = self._fold.shape[1] * WARP, self._fold.stride  # of a block
        if alike:
            parts = [
                _part(rank * threads + int(first[0, g]), int(bits[0, g]), rank * stride, named[0, g], address[0, g])
                for rank in range(size)
                for g in range(count)
                if bits[0, g]
            ]
            return [(group, parts) for group in self._groups]
        rank = np.arange(blocks) % size
        first = first + (rank * threads)[:, None]
        base = np.broadcast_to((rank * stride)[:, None], (rows, count))
        columns = (bits[..., None], first[..., None], base[..., None], named, address)
        table = np.concatenate(columns, axis=2).reshape(blocks * count, -1)
        chosen = np.flatnonzero(table[:, 0])
        clusters = np.repeat(np.arange(blocks) // size, count)[chosen]
        return [
            (group, [_part(int(one[1]), int(one[0]), int(one[2]), one[3:5], one[5:]) for one in rows_of])
            for group, rows_of in self._tabled(clusters, table[chosen])
        ]


def _part(first: int, bits: int, base: int, descriptors: Array, address: Array) -> _Part:
    return _Part(first, bits, address + base, base, tuple(int(each) for each in descriptors.view(np.uint64)))


def _bits(warps: BoolArray, product: Product) -> Array:
    """(blocks|1, warps|1) as four bits for each warpgroup that takes part: (blocks|1, groups)."""
    here = np.broadcast_to(warps, (len(warps), max(warps.shape[1], WARPS * (int(product.groups.max()) + 1))))
    four = here[:, (product.groups[:, None] * WARPS + np.arange(WARPS)).reshape(-1)].reshape(len(here), -1, WARPS)
    return np.asarray(four @ (1 << np.arange(WARPS)))
