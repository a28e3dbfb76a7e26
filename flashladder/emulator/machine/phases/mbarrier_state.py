"""The counts of the mbarriers at one offset of every block, and the opaque state that an arrival returns."""

from __future__ import annotations

from collections import deque

import numpy as np

from flashladder.emulator.syntax.tree import Instruction
from flashladder.emulator.values import Array, BoolArray

PHASE_SHIFT = 40  # a state: phase (modulo 2^20), expected and pending count, 20 bits each
PHASES = (1 << 20) - 1
SHOWN = 32  # arrival instructions that are remembered


class Mbarrier:
    """The mbarriers at one offset of every block of the slice; arrays of int64 by block.

    Attributes:
        live: whether the block has one there now.
        expected: arrivals that a phase takes.
        pending: arrivals that the current one still needs.
        bytes: its tx-count: bytes that it still needs.
        phase: how many phases are complete.
        places: what initialised each, by block.
    """

    def __init__(self, blocks: int) -> None:
        self.live = np.zeros(blocks, np.bool_)
        self.expected, self.pending, self.bytes, self.phase = (np.zeros(blocks, np.int64) for _ in range(4))
        self.places: dict[int, Instruction] = {}
        self._arrivals: deque[tuple[Instruction, Array, Array, Array]] = deque(maxlen=SHOWN)

    def note(self, instruction: Instruction, blocks: Array, lanes: tuple[Array, ...]) -> None:
        """Remembers who arrives, for messages: the block of each one's mbarrier, and where it is itself."""
        self._arrivals.append((instruction, blocks, np.stack(lanes[:2]), self.phase[blocks]))

    def arrived(self, block: int, phase: int) -> str:
        """Who arrived at a block's mbarrier in a phase, of those that are remembered."""
        found: dict[str, set[int]] = {}
        for instruction, blocks, places, phases in self._arrivals:
            for owner, warp in places[:, (blocks == block) & (phases == phase)].T:
                peer = "" if owner == block else ", of another block"
                found.setdefault(f"(line {instruction.line}{peer})", set()).add(int(warp))
        return ", ".join(
            f"warp{'s' if len(warps) > 1 else ''} {', '.join(map(str, sorted(warps)))} {where}"
            for where, warps in found.items()
        )

    def settle(self) -> BoolArray:
        """Begins the next phase where the current one is complete; returns where."""
        done: BoolArray = self.live & (self.pending == 0) & (self.bytes == 0) & (self.expected > 0)
        self.phase[done] += 1
        self.pending[done] = self.expected[done]
        return done


def states_before(slot: Mbarrier, blocks: Array, counts: Array) -> Array:
    """The state that each of several arrivals finds, one after the other."""
    pending = slot.pending[blocks].copy()
    for block in np.unique(blocks):
        mine = blocks == block
        pending[mine] -= np.cumsum(counts[mine]) - counts[mine]
    expected = slot.expected[blocks]
    turns = np.maximum(0, -(-(1 - pending) // np.maximum(1, expected)))  # phases that earlier arrivals complete
    pending += turns * expected
    states: Array = (((slot.phase[blocks] + turns) & PHASES) << PHASE_SHIFT) | (expected << 20) | pending
    return states.astype(np.uint64)


def summed(blocks: Array, counts: Array, size: int) -> Array:
    """Sums of the counts by block."""
    total = np.zeros(size, np.int64)
    np.add.at(total, blocks, counts)
    return total
