"""Where the warps of a warpgroup meet before a product: ``wgmma.fence`` holds each one until all four are there.

Why: each warp goes its own way to the fence, perhaps past an mbarrier of its own, but from there on the four execute
each ``wgmma`` together. Meeting orders no memory. A warp that can no longer come (it has exited, or the block has no
such warp) is an error at once; one that waits elsewhere for ever is part of the report of a deadlock.
Source: PTX ISA 9.0, 9.7.15.7 (wgmma.fence: all threads in the warpgroup execute the same instruction).
"""

from __future__ import annotations

import numpy as np

from flashladder.emulator.machine.state import Machine, Step
from flashladder.emulator.machine.warpgroup.warpgroups import WARPS
from flashladder.emulator.values import BoolArray


class WarpgroupFence:
    """Who has come to which ``wgmma.fence`` of a slice, by instruction: (blocks, warps) who came, and who went on."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._came: dict[int, BoolArray] = {}
        self._left: dict[int, BoolArray] = {}

    def completed(self, step: Step) -> BoolArray:
        """Lanes of the step, of the full shape, whose warpgroup is complete.

        Raises:
            EmulationError: ``divergent-warp``: part of a warp, or of a warpgroup whose other warps cannot come.
        """
        if step.mask is None and self.machine.shape[1] % WARPS == 0:
            return np.ones(self.machine.shape, np.bool_)
        lanes = step.lanes()
        warps = np.logical_or.reduce(lanes, axis=2)
        torn = warps & ~np.logical_and.reduce(lanes, axis=2)
        if torn.any():
            step.fail(
                "divergent-warp", "wgmma.fence is .aligned: all 32 lanes of a warp execute it", lanes=torn[..., None]
            )
        alive = np.logical_or.reduce(self.machine.live, axis=2)
        refuse_torn(step, warps | alive & groups_of(warps, any_of=True), warps)
        came, left = self._tables(step)
        came |= warps & ~left
        whole: BoolArray = groups_of(came, any_of=False) & warps & ~left
        return np.broadcast_to(whole[..., None], self.machine.shape) & lanes

    def leave(self, step: Step, lanes: BoolArray) -> None:
        """These lanes go on: the fence has happened for their warps."""
        if step.mask is None and lanes.all():
            self.machine.warpgroups.same_order.executed(step, None)
            self.machine.warpgroups.fence(None)
            return
        warps = np.logical_or.reduce(lanes, axis=2)
        self.machine.warpgroups.same_order.executed(step, warps)
        self.machine.warpgroups.fence(warps)
        came, left = self._tables(step)
        left |= warps
        gone = groups_of(left, any_of=False)
        came &= ~gone
        left &= ~gone
        self.machine.meetings += 1

    def story(self, step: Step) -> str:
        """Who is missing, for the report of a deadlock."""
        warps = np.logical_or.reduce(step.lanes(), axis=2)
        block = int(np.argwhere(warps)[0][0])
        missing = np.flatnonzero((groups_of(warps, any_of=True) & ~self._tables(step)[0])[block])
        return f"without warp{'s' if missing.size > 1 else ''} {', '.join(map(str, missing))} of the warpgroup"

    def _tables(self, step: Step) -> tuple[BoolArray, BoolArray]:
        key = id(step.instruction)
        if key not in self._came:
            self._came[key], self._left[key] = (np.zeros(self.machine.shape[:2], np.bool_) for _ in range(2))
        return self._came[key], self._left[key]


def groups_of(warps: BoolArray, *, any_of: bool) -> BoolArray:
    """(blocks, warps): the warps of all warpgroups of which any (or all four) are set."""
    blocks, count = warps.shape
    four = np.pad(warps, ((0, 0), (0, -count % WARPS))).reshape(blocks, -1, WARPS)
    chosen = np.logical_or.reduce(four, axis=2) if any_of else np.logical_and.reduce(four, axis=2)
    return np.repeat(chosen, WARPS, axis=1)[:, :count]


def refuse_torn(step: Step, present: BoolArray, warps: BoolArray) -> None:
    """Fails where `warps`, (blocks|1, warps), belong to a warpgroup of which not all four are `present`."""
    torn = groups_of(warps, any_of=True) & ~groups_of(present, any_of=False)
    if not torn.any():
        return
    block, warp = (int(axis) for axis in np.argwhere(torn)[0])
    first = warp - warp % WARPS
    lanes = np.zeros((len(warps), step.machine.shape[1], 1), np.bool_)
    lanes[block, first : first + WARPS] = True
    found = [first + int(i) for i in np.flatnonzero(present[block, first : first + WARPS])]
    step.fail(
        "divergent-warp",
        "wgmma takes all four warps of a warpgroup together",
        lanes=lanes,
        expected=f"warps {first} to {first + WARPS - 1}",
        found=f"warp{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}",
    )
