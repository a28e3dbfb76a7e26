"""In which direction a kernel walks through global memory, as the emulator sees it: upwards or downwards.

Why: visiting the KV blocks in reverse changes no count of anything; only the order of the addresses tells. A copy of
the main loop runs once per KV block, so that each of its runs lies above or below its own run before, by one block.
Nothing to run here; `flashladder.emulate.take_reading` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptxemu.machine.core import Machine, Step
from ptxemu.machine.observer import Access, Observer
from ptxemu.values import Array


@dataclass
class CopyOrder(Observer):
    """Counts, per warp, runs of one ``cp.async`` that read above (`upward`) or below (`downward`) its run before.

    Read it after the launch. Slices of the grid, and several launches, add up.
    """

    upward: int = 0
    downward: int = 0
    _blocks: int = 0
    _warps: int = 0
    _last: dict[int, Array] = field(default_factory=dict, repr=False)

    def start(self, machine: Machine) -> None:
        """Forgets the addresses of the slice before: its CTAs are others."""
        self._blocks, self._warps, _ = machine.shape
        self._last.clear()

    def access(self, step: Step, access: Access) -> None:
        """Compares the lowest address of each warp with that of the same instruction's run before."""
        if (access.space, access.kind) != ("global", "cp.async"):
            return
        shape = (self._blocks, self._warps, access.address.shape[2])
        if access.mask is not None:
            shape = (*shape[:2], max(shape[2], access.mask.shape[2]))
        address = np.broadcast_to(access.address, shape).astype(np.int64)
        active = np.broadcast_to(np.True_ if access.mask is None else access.mask, shape)
        none = np.int64(-1)
        lowest = np.where(active, address, np.iinfo(np.int64).max).min(axis=2)
        lowest = np.where(active.any(axis=2), lowest, none)
        before = self._last.get(id(step.instruction), np.full_like(lowest, none))
        both = (lowest != none) & (before != none)
        self.upward += int(np.count_nonzero(both & (lowest > before)))
        self.downward += int(np.count_nonzero(both & (lowest < before)))
        self._last[id(step.instruction)] = np.where(lowest == none, before, lowest)

    def as_dict(self) -> dict[str, int]:
        """The two numbers, by the names that claims use."""
        return {"copies_upward": self.upward, "copies_downward": self.downward}
