"""The report of a deadlock: every warp that waits, for what, and who has arrived so far.

Why one report: threads that wait at an mbarrier usually wait for others that wait elsewhere. The first block that
stands still is told in full, with the other blocks of its cluster; of the rest only how many there are.
"""

from __future__ import annotations

import numpy as np

from flashladder.emulator.machine.barriers import Barriers
from flashladder.emulator.machine.cluster_barrier import ClusterBarrier
from flashladder.emulator.machine.phases.mbarrier_state import Mbarrier
from flashladder.emulator.machine.phases.mbarrier_targets import targets_of
from flashladder.emulator.machine.phases.waits import Suspended, Waits
from flashladder.emulator.machine.register_pool import RegisterPool
from flashladder.emulator.machine.state import Machine, Step
from flashladder.emulator.machine.warpgroup.warpgroup_fence import WarpgroupFence
from flashladder.emulator.values import Array, BoolArray

SITUATIONS = {
    "mbarrier": "threads wait for a phase of an mbarrier that never completes",
    "barrier": "threads wait at the cluster's barrier for others that never reach it",
    "setmaxnreg": "warps wait for registers that nobody gives back",
    "wgmma": "warps wait at wgmma.fence for others of their warpgroup",
}
HINTS = {
    "mbarrier": "a phase needs all arrivals and bytes that the mbarrier expects: check counts, parity and who arrives",
    "barrier": "every thread of the cluster that has not exited has to come to barrier.cluster.arrive",
    "wgmma": "all four warps of a warpgroup execute the same wgmma.fence; none may have exited",
    "setmaxnreg": "setmaxnreg.dec of other warpgroups has to give back what setmaxnreg.inc takes",
}


def refuse(waits: Waits, barriers: Barriers) -> None:
    """Raises the error of threads that wait although nothing can move any more.

    Raises:
        EmulationError: "deadlock", unless nobody waits.
    """
    if not waits.suspended:
        barriers.deadlock()
        return
    machine = waits.machine
    waiting = np.zeros(machine.shape, np.bool_)
    for each in waits.suspended:
        waiting |= each.step.lanes()
    stuck = np.flatnonzero(waiting.any(axis=(1, 2)))
    size = machine.cluster.size
    first = int(stuck[0]) - int(stuck[0]) % size
    blocks = np.arange(first, first + size)
    stories = [story for each in waits.suspended for story in _stories(waits, each, blocks)]
    stories += [story for block in blocks for story in barriers.stories(int(block))]
    gone = int((machine.exists[blocks] & ~machine.live[blocks]).sum())
    stories += [f"threads that have exited: {gone}"] if gone else []
    more = int((~np.isin(stuck, blocks)).sum())
    stories += [f"other blocks that stand still: {more}"] if more else []
    chosen = next(each.step for each in waits.suspended if each.step.lanes()[blocks].any())
    kind = chosen.instruction.opcode.partition(".")[0]
    chosen.fail(
        "deadlock", SITUATIONS[kind], lanes=_within(chosen.lanes(), blocks), found="; ".join(stories), hint=HINTS[kind]
    )


def _within(lanes: BoolArray, blocks: Array) -> BoolArray:
    part = np.zeros_like(lanes)
    part[blocks] = lanes[blocks]
    return part


def _stories(waits: Waits, waiting: Suspended, blocks: Array) -> list[str]:
    """What the threads of some blocks wait for at one instruction, one sentence for each thing waited for."""
    step = Step(waits.machine, waiting.step.instruction)
    step.mask = _within(waiting.step.lanes(), blocks)
    if not step.mask.any():
        return []
    place = waits.place(step)
    if place is not None:
        return [f"{_who(waits.machine, np.nonzero(step.mask))} at {step.instruction.place}: {_other(place, step)}"]
    targets = targets_of(step, step.address(1))
    found = []
    for offset, entries in targets.by_offset():
        for block in np.unique(targets.blocks[entries]):
            mine = entries[targets.blocks[entries] == block]
            who = _who(waits.machine, tuple(axis[mine] for axis in targets.lanes))
            slot = waits.machine.mbarriers.at[offset]
            found.append(
                f"{who} at {step.instruction.place}: mbarrier {offset:#x}, {_phase(step, mine, targets.lanes)}; "
                f"{_counts(slot, int(block))}"
            )
    return found


def _other(place: ClusterBarrier | RegisterPool | WarpgroupFence, step: Step) -> str:
    return place.story(step)


def _phase(step: Step, entries: Array, lanes: tuple[Array, ...]) -> str:
    """The phase that is waited for."""
    if ".parity" not in step.instruction.opcode:
        return "the phase of a state"
    parity = step.machine.full(step.source(2, "u32"))[tuple(axis[entries] for axis in lanes)]
    return f"parity {', '.join(str(int(each)) for each in np.unique(parity))}"


def _counts(slot: Mbarrier, block: int) -> str:
    """Where the mbarrier of a block stands, and who has arrived."""
    phase = int(slot.phase[block])
    text = (
        f"it is in phase {phase}, {int(slot.pending[block])} of {int(slot.expected[block])} arrivals and "
        f"{int(slot.bytes[block])} bytes outstanding"
    )
    now, before = slot.arrived(block, phase), slot.arrived(block, phase - 1)
    text += f", arrived so far: {now or 'nobody'}"
    return text + (f", in the phase before: {before}" if before and before != now else "")


def _who(machine: Machine, lanes: tuple[Array, ...]) -> str:
    """Warps by their blocks."""
    text = []
    for block in np.unique(lanes[0]):
        x, y, z = (int(axis) for axis in machine.blocks[block])
        warps = np.unique(lanes[1][lanes[0] == block])
        text.append(f"{_numbers('warp', warps)} of block {(x, y, z)}")
    return ", ".join(text)


def _numbers(what: str, numbers: Array) -> str:
    """``warp 3``, ``warps 4 to 7`` or ``warps 0, 2``."""
    if numbers.size == 1:
        return f"{what} {int(numbers[0])}"
    if numbers[-1] - numbers[0] == numbers.size - 1:
        return f"{what}s {int(numbers[0])} to {int(numbers[-1])}"
    return f"{what}s {', '.join(str(int(each)) for each in numbers)}"
