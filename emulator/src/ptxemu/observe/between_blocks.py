"""What blocks tell each other through global memory: flags, tickets, locks.

A thread *releases* what it knows with an atomic or a strong store that is a release itself or stands behind a fence of
the GPU's scope; a thread that finds it with an atomic or a strong load *acquires* it, if that is an acquire or a fence
follows. `GlobalRaces` asks `ordered` about accesses of two blocks. Which store a load finds is up to the schedule, so
verdicts of such kernels are about the orders that ran.

Source: PTX ISA 9.0, 8.7 and 8.8 (release and acquire patterns, synchronizes-with).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ptxemu.observe.clocks import Clocks
from ptxemu.values import Array, BoolArray

MOST = 4096  # pairs of block and address of one instruction that are followed; beyond, nothing is any more
Known = dict[int, Array]  # what is known of each block: a time for each of its threads
Place = Callable[[int], tuple[Clocks, int]]  # of a block: its clocks, and the number of its first thread there


def is_device_fence(opcode: str) -> bool:
    """Whether a fence orders memory between blocks."""
    words = opcode.split(".")
    return words[0] in ("membar", "fence") and "proxy" not in words and not {"gl", "gpu", "sys"}.isdisjoint(words)


@dataclass
class Acquired:
    """What a thread has learned, and when."""

    thread: int
    time: int
    known: Known


@dataclass
class BetweenBlocks:
    """Releases and acquires of a launch.

    Attributes:
        place: where the clocks of a block of the present slice are.
        released: by address, what who reads there learns.
        acquired: by block, what its threads have learned.
        pending: by block and thread, what they learn from their next fence on.
        lost: whether there was too much to follow.
    """

    place: Place
    released: dict[int, Known] = field(default_factory=dict)
    acquired: dict[int, list[Acquired]] = field(default_factory=dict)
    pending: dict[tuple[int, int], list[Known]] = field(default_factory=dict)
    lost: bool = False

    def access(self, opcode: str, blocks: Array, threads: Array, addresses: Array) -> None:
        """Atomics, strong loads and strong stores of threads (in their blocks) to addresses, flat."""
        if self.lost or len(blocks) > MOST:
            self.lost = True
            return
        words = set(opcode.split("."))
        loads, stores = not opcode.startswith(("st", "red")), not opcode.startswith("ld")
        acquires, releases = not words.isdisjoint({"acquire", "acq_rel"}), not words.isdisjoint({"release", "acq_rel"})
        for block, thread, address in zip(blocks.tolist(), threads.tolist(), addresses.tolist(), strict=True):
            found = self.released.get(address)
            if loads and found:
                if acquires:
                    self._learn(block, thread, found)
                else:
                    self.pending.setdefault((block, thread), []).append(dict(found))
            if stores:
                told = self._told(block, thread, always=releases)
                kept = {} if opcode.startswith("st") or not found else found  # a store ends what others had released
                self.released[address] = _joined(kept, told)

    def fence(self, blocks: Array, threads: Array) -> None:
        """Fences of the GPU's scope; the clocks know of them already."""
        if not self.pending:
            return
        for key in zip(blocks.tolist(), threads.tolist(), strict=True):
            for known in self.pending.pop(key, []):
                self._learn(*key, known)

    def ordered(self, one: Array, first: Array, times: Array, two: int, second: Array) -> BoolArray:
        """Whether what threads `first` of blocks `one` did at `times` comes before what `second` of block `two` do."""
        found = np.zeros(len(one), np.bool_)
        if not (learned := self.acquired.get(two)):
            return found
        clocks, offset = self.place(two)
        for each in learned:
            who = np.full(len(second), each.thread + offset)
            aware = clocks.ordered(second + offset, who, np.full(len(second), each.time))
            for block, row in each.known.items():
                mine = np.flatnonzero((one == block) & aware & ~found)
                found[mine] = row[first[mine]] >= times[mine]
        return found

    def lacks_fence(self, one: int, first: int, time: int, two: int) -> bool:
        """Whether a thread of block `two` has found what tells of an action of block `one`, without a fence since."""
        found = (known for (block, _), each in self.pending.items() if block == two for known in each)
        return any(one in known and known[one][first] >= time for known in found)

    def _learn(self, block: int, thread: int, known: Known) -> None:
        clocks, _ = self.place(block)
        clocks.tick()
        self.acquired.setdefault(block, []).append(Acquired(thread, clocks.now, dict(known)))

    def _told(self, block: int, thread: int, *, always: bool) -> Known:
        """What a release of a thread tells; nothing without a fence before it, unless it is one itself (`always`)."""
        clocks, offset = self.place(block)
        row = clocks.released(thread + offset, always=always)
        if row is None:
            return {}
        told = {block: row[offset:]}
        for each in self.acquired.get(block, []):
            if row[each.thread + offset] >= each.time:
                told = _joined(told, each.known)
        return told


def _joined(one: Known, two: Known) -> Known:
    both = dict(one)
    for block, row in two.items():
        both[block] = np.maximum(both[block], row) if block in both else row
    return both
