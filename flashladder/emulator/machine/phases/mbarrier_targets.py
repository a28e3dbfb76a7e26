"""Which mbarriers the lanes of an instruction name, in their own block or in another one of the cluster.

Why flat: lanes of one instruction may name different mbarriers of different blocks; what happens to each is decided
for all of its lanes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from flashladder.emulator.errors import EmulationError
from flashladder.emulator.machine.spaces.remote import refuse_exited
from flashladder.emulator.machine.state import Step
from flashladder.emulator.values import WARP, Array, BoolArray

BYTES = 8  # of an mbarrier in memory


@dataclass(frozen=True)
class Targets:
    """The mbarriers that the lanes of one instruction name: one entry per lane, in order of block, warp, lane.

    Attributes:
        lanes: where the lanes are, three index arrays; empty where no thread is known (bytes that have landed).
        blocks: the block of the slice in whose shared memory each one's mbarrier lies.
        offsets: its offset there, bytes.
    """

    lanes: tuple[Array, ...]
    blocks: Array
    offsets: Array

    def chosen(self, entries: Array) -> Targets:
        """Some of them, by their places."""
        if len(entries) == len(self.blocks):
            return self
        return Targets(tuple(axis[entries] for axis in self.lanes), self.blocks[entries], self.offsets[entries])

    def by_offset(self) -> Iterator[tuple[int, Array]]:
        """Each offset with the entries that name it."""
        if self.offsets.size and (self.offsets == self.offsets[0]).all():
            yield int(self.offsets[0]), np.arange(self.offsets.size)
            return
        for offset in np.unique(self.offsets):
            yield int(offset), np.flatnonzero(self.offsets == offset)

    def fail(
        self,
        step: Step,
        what: str,
        entries: Array,
        *,
        expected: object | None = None,
        found: object | None = None,
        hint: str | None = None,
    ) -> NoReturn:
        """Raises an `EmulationError` of kind "mbarrier" for the first of some entries."""
        first = int(entries[0])
        block, lane = int(self.blocks[first]), None
        if self.lanes:
            block, warp, place = (int(axis[first]) for axis in self.lanes)
            lane = warp * WARP + place
        raise EmulationError(
            "mbarrier",
            what,
            path=step.machine.path,
            instruction=step.instruction,
            block=step.block_index(block),
            lane=lane,
            address=int(self.offsets[first]),
            expected=expected,
            found=found,
            hint=hint,
        )


def targets_of(step: Step, address: Array, mask: BoolArray | None = None, *, own: bool = False) -> Targets:
    """The mbarriers at `address` of the executing lanes, or of those of `mask`; `own`: they lie in their own blocks.

    Raises:
        EmulationError: "misaligned", "out-of-bounds" (a rank that the cluster does not have, too), "exited", "mbarrier"
            (another block's where only one's own will do).
    """
    machine = step.machine
    active = step.lanes() if mask is None else np.broadcast_to(mask, machine.shape)
    far = ~machine.cluster.valid(address) & active
    if far.any():
        step.fail("out-of-bounds", "no block of the cluster has this address", lanes=far, address=address)
    block, offset = machine.cluster.resolve(address)
    odd = (offset % BYTES != 0) & active
    if odd.any():
        step.fail("misaligned", f"an mbarrier is {BYTES} bytes aligned to {BYTES}", lanes=odd, address=address)
    outside = (offset + BYTES > machine.shared.nbytes) & active
    if outside.any():
        what = f"mbarrier past the end of the block's {machine.shared.nbytes} bytes of shared memory"
        step.fail("out-of-bounds", what, lanes=outside, address=address, hint=machine.shared.hint)
    lanes = np.nonzero(active)
    blocks = np.broadcast_to(block, machine.shape)[lanes]
    if own and machine.cluster.mapped_any and (blocks != lanes[0]).any():
        step.fail("mbarrier", "mbarrier of another block, where only arrivals and bytes may go", address=address)
    if machine.cluster.mapped_any:
        refuse_exited(step, lanes, blocks, "use of an mbarrier")
    return Targets(lanes, blocks, np.broadcast_to(offset, machine.shape)[lanes])
