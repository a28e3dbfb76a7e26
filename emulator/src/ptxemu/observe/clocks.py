"""Happens-before between the threads of a block or cluster, as clocks.

Two accesses race when no chain of barriers leads from the one to the other, in whatever order the emulator happens to
run them. Time counts the accesses of the block. ``known[i, j]`` is the time up to which everything that j did comes
before whatever i does next. A barrier joins its members: each then knows what any of them knew, and all that they did
until now.

Whole warps share one row and column: as long as every barrier and ``bar.warp.sync`` takes all threads of the warps
that it takes at all, the clocks of a warp's lanes are equal, and the diagonal holds the time of the warp's last
convergence. The first one that takes part of a warp switches to a row and column for each thread. In clusters of more
than `MOST_THREADS` it stands for the whole warp instead, so that races within a warp may be missed there.

Programs with asynchronous operations have more columns, which barriers hand on with the others: beside each thread's
column one for what is ordered *through a proxy fence*, and one for each *agent*, which stands for asynchronous work
such as the copies that tell one mbarrier. In arrays of threads an agent is a number below -1.

Threads of a cluster access each other's shared memory: `Folding` gives each block's warps and addresses a place of
their own in the cluster, and the races of a cluster are then found as those of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ptxemu.values import WARP, Array, BoolArray, Shape3


@dataclass(frozen=True)
class Accesses:
    """Pairs of a thread (below -1: an agent of `Clocks`) and a unit of memory."""

    threads: Array
    units: Array


@dataclass(frozen=True)
class Finding:
    """A race of one instruction with one earlier one.

    Attributes:
        kind: a key of `hazards.KINDS`.
        first: the earlier instruction, as the number that the caller gave it.
        address: the first byte, in bytes of its state space.
        first_thread, second_thread: linear index in the block.
        count: threads of the second instruction that race.
        blocks: indices of the first and the second thread's blocks; None within one block.
        text: what else is to be said.
    """

    kind: str
    first: int
    address: int
    first_thread: int
    second_thread: int
    count: int
    blocks: tuple[int, int] | None = None
    text: str = ""


Key: TypeAlias = tuple[str, int]  # what is arrived at: ("mbarrier", address), ("word", address) or ("cluster", 0)


MOST_THREADS = 4096  # for which there may be a row each: 64 MiB


class Clocks:
    """The clocks of one block.

    Attributes:
        exists: (warps, 32) mask of the threads of the block.
        now: the time: how many accesses there were.
        known: int32, (warps, warps) or (threads, threads), see the module.
        per_warp: whether `known` has a row per warp.
    """

    def __init__(self, exists: BoolArray) -> None:
        self.exists = exists
        self.now = 1
        self.warps = exists.shape[0]
        self.known: Array = np.zeros((self.warps, self.warps), dtype=np.int32)
        self.per_warp = True
        self._shift = 5  # thread >> shift: its row
        self._signals: dict[int, Array] = {}  # what those know who arrived at a barrier without waiting
        self._open: dict[Key, Array] = {}  # what those know who arrived at an mbarrier, in all phases so far
        self._done: dict[Key, Array] = {}  # the same when its last phase completed
        self._before: Array | None = None  # what each row knew at its last memory fence
        self._fenced = np.zeros(self.warps, dtype=np.int32)  # and when that was: it orders what each thread itself did
        self._seen: Array | None = None  # what it found by relaxed waits, and knows from its next memory fence on
        self._horizon: Array | None = None
        self._device: dict[int, Array] = {}  # by row: what it knew at its last fence of the GPU's scope
        self._global: Array | None = None  # what each row knew at its last proxy fence of global memory
        self._global_time: Array | None = None  # and when that was
        self._wide = False
        self._agents: dict[Key, int] = {}
        self._met: bytes | None = None  # the ``bar.warp.sync`` since which nothing happened

    def tick(self) -> None:
        """Time goes on: something was accessed."""
        self.now += 1
        self._met = None

    def ordered(self, threads: Array, others: Array, times: Array) -> BoolArray:
        """Whether what `others` did at `times` comes before what `threads` do now; arrays of one shape."""
        columns = others >> self._shift
        if self._agents:
            columns = np.where(others < -1, 2 * len(self.known) - 2 - others, columns)
        result: BoolArray = times <= self.known[threads >> self._shift, columns]
        result |= threads == others
        return result

    def all_ordered(self, threads: Array, others: Array, times: Array, *, fenced: bool = False) -> BoolArray:
        """Whether what `others` did at `times` (n,) comes before what all of `threads` do now together.

        With `fenced` a proxy fence has to stand between, also behind the threads' own actions; agents need none. Of
        what one of several threads did all the others have to know.
        """
        rows = np.unique(threads >> self._shift)
        known = self.known[rows]
        if not self.per_warp:
            known[np.arange(rows.size), rows] = np.iinfo(np.int32).max
        row = known.min(axis=0)
        count = len(self.known)
        columns = others >> self._shift
        if fenced:
            return np.asarray((times <= row[columns + count]) if self._wide else times == 0) | (others < 0)
        columns = np.where(others < -1, 2 * count - 2 - others, columns)
        ordered = np.asarray(times <= row[columns])
        return ordered | (others == threads[0]) if threads.size == 1 else ordered

    def fence(self, lanes: BoolArray) -> None:
        """A proxy fence of these lanes, (warps, 32): what they know now is ordered for asynchronous operations, too."""
        self.tick()
        rows = self._rows(lanes)
        self._widen()
        count = len(self.known)
        fenced = self.known[:, count : 2 * count]
        fenced[rows] = np.maximum(fenced[rows], self.known[rows, :count])
        fenced[rows, rows] = self.now

    def order_device(self, lanes: BoolArray) -> None:
        """A memory fence of these lanes between blocks."""
        self.tick()
        for row in self._rows(lanes).tolist():
            known = self.known[row, : len(self.known)].copy()
            known[row] = self.now
            self._device[row] = known

    def released(self, thread: int, *, always: bool) -> Array | None:
        """What a release by a thread tells: a time for each thread; None: there was no fence, and it is none itself."""
        row = thread >> self._shift
        if always:
            self.tick()
            known = self.known[row, : len(self.known)].copy()
            known[row] = self.now
        elif row in self._device:
            known = self._device[row]
        else:
            return None
        return np.repeat(known, WARP) if self.per_warp else known

    def fence_global(self, lanes: BoolArray) -> None:
        """A proxy fence of these lanes orders what they know of global memory."""
        self.tick()
        rows = self._rows(lanes)
        count = len(self.known)
        if self._global is None or self._global_time is None:
            self._global, self._global_time = np.zeros((count, count), np.int32), np.zeros(count, np.int32)
        self._global[rows] = self.known[rows, :count]
        self._global[rows, rows] = self._global_time[rows] = self.now

    def fenced_globally(self, thread: int, others: Array, times: Array) -> BoolArray:
        """Whether a proxy fence of global memory, of which a thread knows, follows what `others` did at `times`."""
        if self._global is None or self._global_time is None:
            return np.zeros(others.shape, np.bool_)
        row, count = thread >> self._shift, len(self.known)
        known = self._global_time <= self.known[row, :count]
        known[row] = True
        known &= self._global_time > 0
        fenced: Array = np.where(known[:, None], self._global, -1).max(axis=0)
        return np.asarray(times <= fenced[others >> self._shift])

    def agent(self, key: Key) -> int:
        """The number that stands for an agent in arrays of threads: -2 or below."""
        if key not in self._agents:
            self._widen()
            self._agents[key] = len(self._agents)
            self._change(lambda table: np.append(table, np.zeros_like(table[..., :1]), axis=-1))
        return -2 - self._agents[key]

    def tell(self, threads: Array, key: Key) -> None:
        """These threads learn what an agent has done until now."""
        lanes = np.zeros(self.exists.shape, dtype=np.bool_)
        lanes.reshape(-1)[threads] = True
        rows = self._rows(lanes)
        column = 2 * len(self.known) - 2 - self.agent(key)
        self.known[rows, column] = self.now

    def act(self, key: Key) -> None:
        """The agent of an mbarrier has done something, of which those learn who find the next phase complete."""
        column = 2 * len(self.known) - 2 - self.agent(key)
        self._open[key] = self._open.get(key, np.zeros_like(self.known[0])).copy()
        self._open[key][column] = self.now

    def announce(self, key: Key, agent: Key) -> int:
        """A phase of the mbarrier `key` is about to complete; who finds it complete knows so by this agent's time."""
        self.tick()
        column = 2 * len(self.known) - 2 - self.agent(agent)
        self._open[key] = self._open.get(key, np.zeros_like(self.known[0])).copy()
        self._open[key][column] = self.now
        return self.now

    def learn(self, lanes: BoolArray, agent: Key) -> int:
        """These lanes know that the agent acts now; the time."""
        self.tick()
        rows, number = self._rows(lanes), self.agent(agent)
        self.known[rows, 2 * len(self.known) - 2 - number] = self.now
        return self.now

    def whole(self, lanes: BoolArray) -> BoolArray:
        """These lanes, or all of their warps while lanes of a warp have one clock."""
        return self.exists & lanes.any(axis=1, keepdims=True) if self.per_warp else lanes

    def knows(self, lanes: BoolArray, agent: Key, time: int) -> bool:
        """Whether all these lanes know what an agent did at a time."""
        rows, number = self._rows(lanes), self.agent(agent)
        return bool((self.known[rows, 2 * len(self.known) - 2 - number] >= time).all())

    def told(self, key: Key, threads: Array, time: int) -> bool:
        """Whether those who arrived at an mbarrier so far knew what all these threads did at a time."""
        if key not in self._open:
            return False
        return bool((self._open[key][threads >> self._shift] >= time).all())

    def told_one(self, key: Key, threads: Array, time: int) -> bool:
        """As `told`, of any of these threads."""
        return bool((self._open[key][threads >> self._shift] >= time).any()) if key in self._open else False

    def order(self, lanes: BoolArray) -> None:
        """A memory fence of these lanes: relaxed arrivals after it release what comes before, and likewise waits."""
        rows, self._met = self._rows(lanes), None
        if self._seen is not None:
            self.known[rows] = np.maximum(self.known[rows], self._seen[rows])
            self._horizon = None
        if self._before is None:
            self._before = np.zeros_like(self.known)
        self._before[rows] = self.known[rows]
        self._fenced[rows] = self.now

    def _widen(self) -> None:
        if not self._wide:
            self._wide = True
            count = len(self.known)
            self._change(lambda table: np.append(table, np.zeros_like(table[..., :count]), axis=-1))

    def _change(self, function: Callable[[Array], Array]) -> None:
        """Gives all rows other columns."""
        self.known = function(self.known)
        tables: tuple[dict[Any, Array], ...] = (self._signals, self._open, self._done)
        for rows in tables:
            rows.update({key: function(row) for key, row in rows.items()})
        self._before = None if self._before is None else function(self._before)
        self._seen = None if self._seen is None else function(self._seen)

    def horizon(self, threads: Array) -> Array:
        """(n, warps): a time up to which all lanes of each warp are ordered before n threads: a quick filter."""
        if self.per_warp:
            return np.asarray(self.known[threads >> 5, : self.warps])
        if self._horizon is None:
            own = self.known[:, : len(self.known)]
            self._horizon = own.reshape(-1, self.warps, WARP).min(axis=2)
        return self._horizon[threads]

    def concurrent(self, threads: Array, warps: Array, times: Array, lanes: Array) -> BoolArray:
        """(n, 32): lanes, of those set in the bits of `lanes`, of `warps` whose actions at `times` are not ordered."""
        lane = np.arange(WARP)
        bits = (lanes[:, None] >> lane.astype(np.uint32)) & np.uint32(1)
        others = warps[:, None] * WARP + lane
        late: BoolArray = ~self.ordered(threads[:, None], others, times[:, None])
        late &= bits != 0
        return late

    def join(self, lanes: BoolArray, barrier: int | None = None) -> None:
        """These lanes, (warps, 32), meet; they also learn what was signalled to `barrier`, which starts afresh."""
        self._meet(self._rows(lanes), None if barrier is None else self._signals.pop(barrier, None))
        self._met = None

    def signal(self, lanes: BoolArray, barrier: int) -> None:
        """These lanes arrive at a barrier and do not wait: who completes it learns what they know now."""
        rows = self._rows(lanes)
        if not rows.size:
            return
        learned = self.known[rows].max(axis=0)
        learned[rows] = self.now
        self._signals[barrier] = np.maximum(self._signals.get(barrier, learned), learned)

    @property
    def signals(self) -> bool:
        """Whether anybody has arrived at a barrier without waiting, and it is not complete."""
        return bool(self._signals)

    def release(self, lanes: BoolArray, key: Key, *, relaxed: bool = False) -> None:
        """These lanes, (warps, 32), arrive at an mbarrier (or a cluster's barrier) and go on."""
        rows = self._rows(lanes)
        learned = self._before if relaxed else self.known
        if not rows.size or learned is None:
            return
        learned = learned[rows].max(axis=0)
        learned[rows] = np.maximum(learned[rows], self._fenced[rows] if relaxed else self.now)
        self._open[key] = np.maximum(self._open.get(key, learned), learned)

    def complete(self, key: Key) -> None:
        """A phase is complete: whoever finds it so learns what all who arrived so far had done."""
        if key in self._open:
            self._done[key] = self._open[key]

    def forget(self, key: Key) -> None:
        """Nobody has arrived."""
        self._open.pop(key, None)
        self._done.pop(key, None)

    def acquire(self, lanes: BoolArray, key: Key, *, relaxed: bool = False) -> None:
        """These lanes find the last phase complete."""
        rows = self._rows(lanes)
        if relaxed and rows.size and key in self._done:
            if self._seen is None:
                self._seen = np.zeros_like(self.known)
            self._seen[rows] = np.maximum(self._seen[rows], self._done[key])
        elif rows.size and key in self._done:
            self.known[rows] = np.maximum(self.known[rows], self._done[key])
            self._horizon = None
        self._met = None

    def met(self, threads: Array, warps: slice) -> BoolArray:
        """Whether each of these threads knows anything that any thread of these warps has done, its start at least."""
        columns = np.flatnonzero(self.exists.reshape(-1)[warps.start * WARP : warps.stop * WARP]) + warps.start * WARP
        known: Array = self.known[threads >> self._shift][:, np.unique(columns >> self._shift)]
        return np.asarray(known.max(axis=1) > 0)

    def learned(self, lanes: BoolArray) -> Array:
        """What any of these lanes knows: a time for each thread, (threads,); their own actions are all known."""
        rows = self._rows(lanes)
        known = self.known[rows].max(axis=0)
        known[rows] = np.iinfo(np.int32).max
        known = known[: len(self.known)]
        return np.repeat(known, WARP) if self.per_warp else known

    def join_warps(self, lanes: BoolArray | None) -> None:
        """In each warp these lanes, (warps, 32), meet; None: all lanes of all warps."""
        key = b"all" if lanes is None else lanes.tobytes()
        if key == self._met:
            return
        self._met = key
        rows = self._rows(self.exists if lanes is None else lanes)
        if self.per_warp:
            self.known[rows, rows] = self.now
            return
        for members in np.split(rows, np.flatnonzero(np.diff(rows >> 5)) + 1):
            self._meet(members, None)

    def _meet(self, rows: Array, learned: Array | None) -> None:
        if not rows.size:
            return
        row = self.known[rows].max(axis=0)
        row = row if learned is None else np.maximum(row, learned)
        row[rows] = self.now
        self.known[rows] = row
        self._horizon = None

    def _rows(self, lanes: BoolArray) -> Array:
        """Rows of the lanes; switches to one row per thread when a warp takes part with some of its threads only."""
        lanes = lanes & self.exists
        if self.per_warp:
            present = lanes.any(axis=1)
            if self.exists.size > MOST_THREADS or (lanes[present] == self.exists[present]).all():
                return np.flatnonzero(present)
            self._split()
        return np.flatnonzero(lanes)

    def _split(self) -> None:
        self.per_warp, self._shift = False, 0
        ends = len(self.known) * (2 if self._wide else 1)
        self.known, self._fenced = np.repeat(self.known, WARP, axis=0), np.repeat(self._fenced, WARP)
        self._before = None if self._before is None else np.repeat(self._before, WARP, axis=0)
        self._device = {
            WARP * row + lane: np.repeat(known, WARP) for row, known in self._device.items() for lane in range(WARP)
        }
        if self._global is not None and self._global_time is not None:
            self._global = np.repeat(np.repeat(self._global, WARP, axis=0), WARP, axis=1)
            self._global_time = np.repeat(self._global_time, WARP)
        self._seen = None if self._seen is None else np.repeat(self._seen, WARP, axis=0)
        self._change(lambda table: np.concatenate([np.repeat(table[..., :ends], WARP, axis=-1), table[..., ends:]], -1))
        absent = np.flatnonzero(~self.exists.reshape(-1))
        self.known[:, absent] = np.iinfo(np.int32).max  # threads that never do anything


ALIGNMENT = 1024  # of the window of each block


@dataclass(frozen=True)
class Folding:
    """How the blocks of a slice become clusters.

    Attributes:
        size: blocks of a cluster; 1: nothing changes.
        shape: of the machine, (blocks, warps, 32).
        stride: bytes from the window of one block to the next one's.
    """

    size: int
    shape: Shape3
    stride: int

    @classmethod
    def of(cls, size: int, shape: Shape3, nbytes: int) -> Folding:
        """For blocks of `nbytes` of shared memory."""
        return cls(size, shape, max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT))

    @property
    def warps(self) -> int:
        """Warps of a cluster."""
        return self.size * self.shape[1]

    def lanes(self, value: Array) -> Array:
        """(blocks|1, warps|1, n) as (clusters|1, warps of the cluster, n)."""
        if self.size == 1:
            return value
        rows = self.size if value.shape[0] == 1 else value.shape[0]
        folded: Array = np.broadcast_to(value, (rows, self.shape[1], value.shape[2])).reshape(
            rows // self.size, self.warps, value.shape[2]
        )
        return folded

    def address(self, value: Array) -> Array:
        """Addresses of each block's own window as addresses in the cluster's."""
        if self.size == 1:
            return value
        rank = np.repeat(np.arange(self.size, dtype=np.uint64), self.shape[1]).reshape(1, -1, 1)
        return np.asarray(self.lanes(value) + rank * np.uint64(self.stride))

    def flat(self, lanes: tuple[Array, ...], blocks: Array, offsets: Array) -> tuple[Array, BoolArray]:
        """Flat accesses of single lanes to single blocks as (address, mask) of the cluster's shape."""
        address, mask = np.zeros(self.shape, np.uint64), np.zeros(self.shape, np.bool_)
        address[lanes] = (blocks % self.size * self.stride + offsets).astype(np.uint64)
        mask[lanes] = True
        return self.lanes(address), self.lanes(mask)

    def ranks(self, lanes: BoolArray) -> Iterator[tuple[int, BoolArray]]:
        """The part of each block in a mask (warps of the cluster, 32), where it has any."""
        if self.size == 1:
            yield 0, lanes
            return
        for rank in range(self.size):
            part = np.zeros_like(lanes)
            rows = slice(rank * self.shape[1], (rank + 1) * self.shape[1])
            part[rows] = lanes[rows]
            if part.any():
                yield rank, part

    def place(self, thread: int) -> tuple[int, int]:
        """(rank, linear index in its block) of a thread of the cluster."""
        return divmod(thread, self.shape[1] * WARP)
