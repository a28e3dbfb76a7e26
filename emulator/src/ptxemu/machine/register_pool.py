"""Registers that warpgroups give back and take: the rules of ``setmaxnreg``.

A block begins with the same number of registers for every warp: what ``.maxnreg`` says, else as many as 65,536 allow
for the block's threads, in steps of 8, as ptxas gives them; unknown where so few threads leave the register file
unbounded. ``.dec`` gives registers back to the block's pool, ``.inc`` waits until the pool has enough. All four warps
of a warpgroup execute the same ``setmaxnreg`` instructions. Without a bound on the block's threads or registers ptxas
ignores the instruction: it does nothing here, and observers are told. Values of registers are not affected.

Source: PTX ISA 9.0, 9.7.20.5 (setmaxnreg).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptxemu.errors import EmulationError
from ptxemu.machine.core import Machine, Step
from ptxemu.machine.observer import Observer
from ptxemu.syntax.tree import Immediate, Instruction
from ptxemu.values import WARP, Array, BoolArray

FEWEST, MOST, STEP = 24, 256, 8
WARPGROUP = 4  # warps
FILE = 65536  # registers of an SM


UNBOUNDED = 0  # registers at launch where no directive bounds them


def at_launch(threads: int, limits: dict[str, tuple[int, ...]]) -> int | None:
    """Registers of a thread at the start, from an entry's directives; None: as many as it needs, or `UNBOUNDED`."""
    if "maxnreg" in limits:
        return limits["maxnreg"][0]
    if "maxntid" in limits or "reqntid" in limits:
        warps = -(-threads // WARP)
        share = FILE // (warps * WARP) // STEP * STEP
        return share if share < MOST else None
    return UNBOUNDED


class RegisterPool:
    """The registers of each block's warps.

    Attributes:
        owned: registers of a thread, (blocks, warps).
        free: registers of the pool, in units of one register of a whole warp, (blocks,).
    """

    def __init__(self, machine: Machine, launch_registers: int | None, observers: Sequence[Observer]) -> None:
        """`launch_registers`: of a thread at the start; None where they are unknown; or `UNBOUNDED`."""
        self.machine, self.observers, self.bounded = machine, observers, launch_registers != UNBOUNDED
        blocks, warps, _ = machine.shape
        self.known = launch_registers is not None
        self.owned = np.full((blocks, warps), launch_registers or 0, np.int64)
        self.free = np.zeros(blocks, np.int64)
        self._turns: Array = np.zeros((blocks, warps), np.int64)
        self._executed: dict[tuple[int, int, int], Instruction] = {}  # block, warpgroup, turn -> what it executes

    def decrease(self, step: Step) -> None:
        """``setmaxnreg.dec``.

        Fails: "registers": more than the warps have, or another instruction than the warpgroup's others.
        """
        if self._ignored(step):
            return
        warps = self._warps(step)
        count = self._count(step)
        if self.known and (more := warps & (self.owned < count)).any():
            most = f"at most {int(self.owned[more][0])}"
            self._fail(step, "setmaxnreg.dec to more registers than a warp has", more, most)
        self._take(step, warps, count)

    def completed(self, step: Step) -> BoolArray:
        """Lanes of the step whose ``setmaxnreg.inc`` succeeds now, of the full shape; nothing changes yet."""
        if self._ignored(step):
            return step.lanes()
        warps = self._warps(step)
        count = self._count(step)
        if self.known and (fewer := warps & (self.owned > count)).any():
            least = f"from {int(self.owned[fewer][0])}"
            self._fail(step, "setmaxnreg.inc to fewer registers than a warp has", fewer, least)
        wanted = np.cumsum(np.where(warps, count - self.owned, 0), axis=1)
        enough = warps & ((wanted <= self.free[:, None]) if self.known else True)
        return np.broadcast_to(enough[:, :, None], self.machine.shape) & step.lanes()

    def leave(self, step: Step, lanes: BoolArray) -> None:
        """These lanes have their registers."""
        if self.bounded:
            self._take(step, np.logical_or.reduce(lanes, axis=2), self._count(step))

    def finish(self) -> None:
        """At the end of the slice.

        Fails: "registers": a warp of a warpgroup left out a ``setmaxnreg`` that others executed.
        """
        for first in range(0, self.machine.shape[1], WARPGROUP):
            turns = self._turns[:, first : first + WARPGROUP]
            missing = turns < turns.max(axis=1, keepdims=True)
            if missing.any():
                block, warp = (int(place) for place in np.argwhere(missing)[0])
                done = self._executed[block, first // WARPGROUP, int(turns[block, warp])]
                what = f"warp {first + warp} does not execute the setmaxnreg of its warpgroup"
                expected, path = "all four warps of a warpgroup", self.machine.path
                hint = "a warp that returns early or takes another branch must execute it first"
                where = self.machine.block_index(block)
                raise EmulationError(
                    "registers", what, path=path, instruction=done, block=where, expected=expected, hint=hint
                )

    def _ignored(self, step: Step) -> bool:
        if not self.bounded:
            what = "a kernel without a bound on its registers: give it __launch_bounds__(threads), .maxntid or .maxnreg"
            for observer in self.observers:
                observer.ignored(step, what)
        return not self.bounded

    def story(self, step: Step) -> str:
        """What is missing, for the report of a deadlock."""
        block = int(np.argwhere(step.lanes())[0][0])
        free = int(self.free[block]) * WARP
        return f"registers of block {self.machine.block_index(block)}: {free} in the pool for {step.instruction.place}"

    def _take(self, step: Step, warps: BoolArray, count: int) -> None:
        """The warps have `count` registers from now on."""
        for block, warp in np.argwhere(warps):
            key = (int(block), int(warp) // WARPGROUP, int(self._turns[block, warp]))
            known = self._executed.setdefault(key, step.instruction)
            if known is not step.instruction:
                what, mine = "another setmaxnreg than the warpgroup's other warps execute", np.zeros_like(warps)
                mine[block, warp] = True
                self._fail(step, what, mine, known.place)
        if self.known:
            self.free += np.where(warps, self.owned - count, 0).sum(axis=1)
        self.owned = np.where(warps, count, self.owned)
        self._turns = self._turns + warps
        self.machine.arrivals += 1

    def _warps(self, step: Step) -> BoolArray:
        """The warps that execute it, (blocks, warps), all lanes of each."""
        lanes = step.lanes()
        warps: BoolArray = np.logical_or.reduce(lanes, axis=2)
        torn = warps & np.logical_or.reduce(self.machine.exists & ~lanes, axis=2)
        if torn.any():
            self._fail(step, "setmaxnreg executed by part of a warp", torn, "all 32 lanes")
        return warps

    def _count(self, step: Step) -> int:
        operand = step.instruction.operands[0]
        count = operand.value if isinstance(operand, Immediate) else 0
        if not isinstance(operand, Immediate) or not FEWEST <= count <= MOST or count % STEP:
            expected = f"a constant multiple of {STEP} from {FEWEST} to {MOST}"
            step.fail("registers", "register count of setmaxnreg", expected=expected, found=str(operand))
        return count

    def _fail(self, step: Step, what: str, warps: BoolArray, expected: str) -> None:
        step.fail("registers", what, lanes=warps[:, :, None], expected=expected, found=str(step.instruction))
