"""Whether the four warps of a warpgroup execute the same ``wgmma`` instructions in the same order.

Why: each ``wgmma`` is .aligned over its warpgroup: mma_async and fence, where the four meet, but commit_group and
wait_group as well, which a warp executes for itself here as on a GPU. A wait in a branch that only some of the warps
take gives right numbers nearly always; PTX leaves open what happens. What a warp has executed beyond the others is kept
until they have done the same; another instruction in its place is an error that names both.
Source: PTX ISA 9.0, 9.7.15.7 (all threads in the warpgroup must execute the same instruction).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashladder.emulator.machine.register_pool import WARPGROUP as WARPS
from flashladder.emulator.machine.state import Machine, Step
from flashladder.emulator.syntax.tree import Instruction
from flashladder.emulator.values import Array, BoolArray, Shape3

WHAT = "the four warps of a warpgroup execute the same wgmma instructions in the same order"
HINT = (
    "let no branch around a wgmma instruction depend on what is not the same in all four warps of the warpgroup, such "
    "as a vote of one warp"
)
NOBODY = 0  # in the place of an instruction's number


class SameOrder:
    """What warps of a slice have executed that others of their warpgroup have not: (blocks, warpgroups, 4) arrays."""

    def __init__(self, shape: Shape3) -> None:
        """No warp has executed any ``wgmma`` instruction."""
        blocks, self._warps = shape[:2]
        # How many instructions each warp has executed since all four had done the same.
        self._ahead = np.zeros((blocks, -(-self._warps // WARPS), WARPS), np.int64)
        self._log: list[Array] = []  # (blocks, warpgroups): the number of the first, second, ... of them
        self._instructions: list[Instruction] = []
        self._numbers: dict[int, int] = {}  # of instructions, from 1, by their identity

    def executed(self, step: Step, warps: BoolArray | None) -> None:
        """These warps, (blocks|1, warps|1), None for all, execute a ``wgmma`` instruction.

        Raises:
            EmulationError: ``divergent-warp``: another warp of a warpgroup has executed something else in its place.
        """
        if warps is None and not self._log and self._warps % WARPS == 0:
            return
        here = self._by_group(warps)
        some = np.logical_or.reduce(here, axis=2)
        if not self._log and not (some & ~np.logical_and.reduce(here, axis=2)).any():
            return
        number = self._number(step.instruction)
        for place in np.unique(self._ahead[here]):
            if place == len(self._log):
                self._log.append(np.full(some.shape, NOBODY))
            now = here & (self._ahead == place)
            groups = np.logical_or.reduce(now, axis=2)
            before = self._log[place]
            wrong = groups & (before != NOBODY) & (before != number)
            if wrong.any():
                self._refuse(step, int(place), now, wrong)
            before[groups] = number
        self._ahead += here
        self._forget()

    def finish(self, machine: Machine) -> None:
        """When all threads have exited.

        Raises:
            EmulationError: ``divergent-warp``: a warp has executed an instruction that another one has not.
        """
        if not self._log:
            return
        block, group = self._first(np.logical_or.reduce(self._ahead, axis=2))
        place = int(self._ahead[block, group].min())
        step = Step(machine, self._instructions[int(self._log[place][block, group]) - 1])
        who = self._ahead[block, group] > place
        first = group * WARPS
        step.fail(
            "divergent-warp",
            WHAT,
            lanes=self._lanes(block, group, who),
            expected=f"warps {first} to {first + WARPS - 1}",
            found=f"only {_warps(first, who)}",
            hint=HINT,
        )

    def _refuse(self, step: Step, place: int, now: BoolArray, wrong: BoolArray) -> None:
        block, group = self._first(wrong)
        other = self._instructions[int(self._log[place][block, group]) - 1]
        first = group * WARPS
        step.fail(
            "divergent-warp",
            WHAT,
            lanes=self._lanes(block, group, now[block, group]),
            expected=f"{other.place}, which {_warps(first, self._ahead[block, group] > place)} executed",
            found=f"{step.instruction.place} in {_warps(first, now[block, group])}",
            hint=HINT,
        )

    def _forget(self) -> None:
        """What all four warps have executed is no difference any more."""
        same: BoolArray = (self._ahead == self._ahead[:, :, :1]).all(axis=2)
        self._ahead[same] = 0
        if not self._ahead.any():
            self._log.clear()
        for numbers in self._log:
            numbers[same] = NOBODY

    def _by_group(self, warps: BoolArray | None) -> BoolArray:
        size = (len(self._ahead), self._warps)
        everyone = np.broadcast_to(np.ones((1, 1), np.bool_) if warps is None else warps, size)
        return np.pad(everyone, ((0, 0), (0, -self._warps % WARPS))).reshape(self._ahead.shape)

    def _number(self, instruction: Instruction) -> int:
        if id(instruction) not in self._numbers:
            self._instructions.append(instruction)
            self._numbers[id(instruction)] = len(self._instructions)
        return self._numbers[id(instruction)]

    def _lanes(self, block: int, group: int, who: BoolArray) -> BoolArray:
        """A mask of the lanes of these of a warpgroup's warps."""
        warps = np.zeros(self._ahead.shape, np.bool_)
        warps[block, group] = who
        return warps.reshape(len(warps), -1)[:, : self._warps, None]

    @staticmethod
    def _first(groups: Array) -> tuple[int, int]:
        block, group = np.argwhere(groups)[0]
        return int(block), int(group)


def _warps(first: int, who: Sequence[bool] | BoolArray) -> str:
    """``warps 0, 2``: those of a warpgroup's warps that are set."""
    found = [str(first + int(place)) for place in np.flatnonzero(who)]
    return f"warp{'s' if len(found) > 1 else ''} {', '.join(found)}"
