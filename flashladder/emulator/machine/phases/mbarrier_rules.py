"""What the counts of an mbarrier may be, and who initialises one: the rules of the ISA that are errors here.

Source: PTX ISA 9.0, 9.7.13.15 (mbarrier).
"""

from __future__ import annotations

import numpy as np

from flashladder.emulator.machine.phases.mbarrier_state import Mbarrier
from flashladder.emulator.machine.phases.mbarrier_targets import Targets
from flashladder.emulator.machine.state import Step
from flashladder.emulator.values import Array

MOST = (1 << 20) - 1  # the largest count of arrivals, and of bytes either way


def check_bytes(step: Step, slot: Mbarrier, targets: Targets, entries: Array) -> None:
    """Refuses a tx-count out of range."""
    wrong = np.abs(slot.bytes) > MOST
    if wrong.any():
        block = int(wrong.argmax())
        targets.fail(
            step,
            "tx-count of an mbarrier out of range",
            entries[targets.blocks[entries] == block],
            expected=f"-{MOST} to {MOST}",
            found=int(slot.bytes[block]),
        )


def check_range(step: Step, targets: Targets, entries: Array, counts: Array, least: int) -> None:
    """Refuses counts below `least` or too large."""
    wrong = (counts < least) | (counts > MOST)
    if wrong.any():
        what = "count of an mbarrier out of range"
        targets.fail(step, what, entries[wrong], expected=f"{least} to {MOST}", found=int(counts[wrong][0]))


def check_alone(step: Step, targets: Targets, entries: Array) -> None:
    """Refuses an mbarrier that several threads initialise."""
    blocks, counts = np.unique(targets.blocks[entries], return_counts=True)
    if (counts > 1).any():
        several = entries[targets.blocks[entries] == blocks[counts > 1][0]]
        what = f"{len(several)} threads initialise one mbarrier"
        targets.fail(step, what, several, hint="let one thread of the block do it")
