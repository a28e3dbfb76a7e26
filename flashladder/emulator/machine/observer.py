"""What counters and the race detector are told while a program runs.

Why: both look at the same events and neither may change what is computed. An observer overrides the events it needs.
Masks and addresses follow the convention of `values`: axes (blocks, warps, lanes), of which any may have length 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashladder.emulator.syntax.tree import Instruction
from flashladder.emulator.values import Array, BoolArray

if TYPE_CHECKING:
    from flashladder.emulator.machine.control import Block
    from flashladder.emulator.machine.in_flight import Copy
    from flashladder.emulator.machine.state import Machine, Step


@dataclass(frozen=True)
class Access:
    """One instruction's access to memory by all lanes that execute it.

    Attributes:
        space: ``shared`` or ``global``.
        kind: ``ld``, ``st``, ``atom``, ``ldmatrix`` or ``cp.async`` (global side: a read; shared side: see `Copy`).
        address: bytes, (blocks|1, warps|1, 32|1); of ``ldmatrix`` (blocks|1, warps|1, 8 x matrices): one row each.
        width: bytes per lane (per row of ``ldmatrix``: 16).
        mask: lanes that take part, None for all; of ``ldmatrix`` (blocks|1, warps|1, 1).
    """

    space: str
    kind: str
    address: Array
    width: int
    mask: BoolArray | None


class Observer:
    """Hears everything, does nothing."""

    def start(self, machine: Machine) -> None:
        """A slice of the grid begins on this machine."""

    def finish(self, machine: Machine) -> None:
        """The slice is done: every thread has exited."""

    def block(self, block: Block, mask: BoolArray | None) -> None:
        """A basic block of the program runs for the lanes of `mask` (None: all)."""

    def follow(self, machine: Machine, instruction: Instruction) -> Callable[[BoolArray | None], None] | None:
        """Asked once per instruction of a slice: what is to be called after each run of it, with the lanes that ran.

        By then the results are in `machine.registers`, and registers that die with the instruction still hold what
        they held. None, the answer of an observer that does not care, costs nothing.
        """

    def access(self, step: Step, access: Access) -> None:
        """An instruction reads or writes memory."""

    def copy_issued(self, step: Step, copy: Copy) -> None:
        """A ``cp.async`` begins: from now on its shared bytes are in flight."""

    def copy_landed(self, step: Step, copy: Copy, lanes: BoolArray | None) -> None:
        """A wait (`step`) guarantees the copy of these lanes: its bytes are written now."""

    def barrier(self, step: Step, number: int, lanes: BoolArray) -> None:
        """These lanes, of the full shape, have met at CTA barrier `number` and go on: everything before is ordered."""

    def barrier_arrive(self, step: Step, number: int, lanes: BoolArray) -> None:
        """These lanes signalled barrier `number` with ``bar.arrive`` and go on without waiting."""

    def warp_sync(self, step: Step, lanes: BoolArray | None) -> None:
        """In each warp these lanes (None: all) have met at ``bar.warp.sync``: everything before is ordered."""
