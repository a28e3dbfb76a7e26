"""In which order warps that could go on do: all together, the last ones first, or by chance.

Why: a GPU promises no order. A kernel whose result depends on one is wrong, and a single order does not show it. The
usual one lets all lanes that stand at one basic block run together, which is fast. The others let one warp (four, where
warpgroups act as one) of one block run at a time.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from flashladder.emulator.errors import EmulationError
from flashladder.emulator.machine.control import Flow
from flashladder.emulator.machine.register_pool import WARPGROUP
from flashladder.emulator.machine.state import Machine
from flashladder.emulator.values import BoolArray

Pending: TypeAlias = dict[int, "BoolArray | None"]
REVERSE = "reverse"  # the last ones first, of warps as of lanes that may be elected
EARLY = 0.25  # how often something asynchronous finishes before it has to, where the order is by chance


class Schedule:
    """All lanes that stand at the first of the pending basic blocks run together."""

    def take(self, pending: Pending) -> tuple[int, BoolArray | None]:
        """The next basic block and its lanes, which are removed from `pending`."""
        index = min(pending)
        return index, pending.pop(index)

    def early(self) -> bool:
        """Whether something asynchronous finishes now, although nobody needs it yet."""
        return False


class OneByOne(Schedule):
    """One warp or warpgroup at a time, at the first basic block where it stands; `seed` None: the last one first."""

    def __init__(self, machine: Machine, flow: Flow, seed: int | None) -> None:
        self.machine = machine
        opcodes = {each.opcode for block in flow.blocks for each in block.instructions}
        self.unit = WARPGROUP if any(opcode.startswith(("wgmma", "setmaxnreg")) for opcode in opcodes) else 1
        self._random = None if seed is None else np.random.default_rng(seed)

    def take(self, pending: Pending) -> tuple[int, BoolArray | None]:
        """One unit's lanes of the first block in which it has any."""
        warps = np.zeros(self.machine.shape[:2], np.bool_)
        for mask in pending.values():
            lanes = self.machine.live if mask is None else mask
            warps |= np.logical_or.reduce(lanes, axis=2)
        could = np.argwhere(warps)
        block, warp = could[-1 if self._random is None else self._random.integers(len(could))]
        unit = np.zeros((*self.machine.shape[:2], 1), np.bool_)
        first = int(warp) // self.unit * self.unit
        unit[block, first : first + self.unit] = True
        for index in sorted(pending):
            mask = pending[index]
            lanes = self.machine.live if mask is None else mask
            mine = lanes & unit
            if mine.any():
                rest = lanes & ~unit
                del pending[index]
                if rest.any():
                    pending[index] = rest
                return index, mine
        raise AssertionError(pending)  # the unit was chosen because it has lanes

    def early(self) -> bool:
        """Now and then, where the order is by chance."""
        return self._random is not None and bool(self._random.random() < EARLY)


def schedule_of(wanted: str | int, machine: Machine, flow: Flow) -> Schedule:
    """The schedule that a launch asks for: ``together``, ``reverse``, or a seed.

    Raises:
        EmulationError: (arguments) anything else.
    """
    if wanted == "together":
        return Schedule()
    if wanted == REVERSE:
        return OneByOne(machine, flow, None)
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted >= 0:
        return OneByOne(machine, flow, wanted)
    expected = "'together', 'reverse' or a seed, a whole number from 0"
    raise EmulationError("arguments", "schedule of a launch", path=machine.path, expected=expected, found=repr(wanted))
