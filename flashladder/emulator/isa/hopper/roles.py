"""What divides the warps of a block into roles: registers moved between warpgroups, an elected lane, dependent grids.

Source: PTX ISA 9.0, 9.7.20.5 (setmaxnreg), 9.7.13.14 (elect.sync), 9.7.13.13 (griddepcontrol).
"""

from __future__ import annotations

import numpy as np

from flashladder.emulator.isa.warp import LANE, meet
from flashladder.emulator.machine.state import Step
from flashladder.emulator.table import machine


@machine("setmaxnreg.dec.sync.aligned.u32", "the warpgroup gives registers back")
def decrease(step: Step) -> None:
    """``setmaxnreg.dec.sync.aligned.u32 n``."""
    step.machine.register_pool.decrease(step)


@machine("setmaxnreg.inc.sync.aligned.u32", "the warpgroup takes registers, and waits for them", kind="control")
def increase(step: Step) -> None:
    """``setmaxnreg.inc.sync.aligned.u32 n``: `Waits` carries it out."""
    step.fail("unsupported", "a wait inside a basic block")


@machine("elect.sync", "elects one lane of those in the membermask: p is true for it, d its number")
def elect(step: Step) -> None:
    """``elect.sync d|p, membermask``: any lane may be elected, always the same for the same mask.

    Here it is the lowest, as on an H200, and the highest where the last ones go first.
    """
    together = meet(step, 1)
    chosen = together if step.machine.elects_last else together & (~together + np.uint32(1))
    leader = np.log2(chosen.astype(np.float64)).astype(np.uint32)
    step.write_pair(0, leader, leader == LANE)


@machine("griddepcontrol.{launch_dependents,wait}", "nothing: the launches of a program run one after another")
def dependents(_step: Step) -> None:
    """Between launches everything is complete: there is nothing to wait for (9.7.13.13)."""
