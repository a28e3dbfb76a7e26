"""One instruction on a machine made by hand: registers of any shape, any mask, a record of what observers hear."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ptxemu.machine.core import Step
from ptxemu.machine.observer import Access, Observer
from ptxemu.machine.state import FullMachine, FullStep
from ptxemu.syntax.tree import Address, Immediate, Instruction, Operand, Register, Vector
from ptxemu.table import ROWS
from ptxemu.values import Array, BoolArray


class Ears(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.synced: list[BoolArray | None] = []
        self.accesses: list[Access] = []

    def warp_sync(self, step: Step, lanes: BoolArray | None) -> None:
        """Keeps the lanes."""
        self.synced.append(lanes)

    def access(self, step: Step, access: Access) -> None:
        """Keeps the access."""
        self.accesses.append(access)


class Bench:
    """A machine of `blocks` x `warps` x 32 lanes whose registers are set and read by name.

    Destinations begin with all bits set in every lane: what an instruction leaves alone shows.
    """

    def __init__(self, blocks: int = 1, warps: int = 1, shared: Any = None) -> None:
        self.shape = (blocks, warps, 32)
        self.ears = Ears()
        everyone = np.ones(self.shape, np.bool_)
        absent: Any = SimpleNamespace()
        self.machine = FullMachine(
            path="bench.ptx",
            blocks=np.array([(b, 0, 0) for b in range(blocks)]),
            shape=self.shape,
            exists=everyone,
            live=everyone,
            registers=[],
            slots={},
            widths=[],
            specials={},
            symbols={},
            parameters=b"",
            memory=absent,
            observers=(self.ears,),
        )
        if shared is not None:
            self.machine.shared = shared
        self.slots: dict[str, int] = {}
        self.widths: list[int] = []
        self.machine.slots, self.machine.widths = self.slots, self.widths

    def set(self, name: str, value: Array) -> Register:
        """Gives a register this array as its value."""
        if name not in self.slots:
            self.slots[name] = len(self.widths)
            self.widths.append(value.dtype.itemsize)
            self.machine.registers.append(value)
        self.machine.registers[self.slots[name]] = value
        return Register(name)

    def get(self, name: str) -> Array:
        """A register's value as it is stored."""
        return self.machine.registers[self.slots[name]]

    def step(self, opcode: str, *operands: Operand, mask: BoolArray | None = None) -> FullStep:
        """The instruction bound to the machine; run it with ``ROWS[opcode].function(step)``."""
        step = FullStep(self.machine, Instruction(opcode, operands, line=7))
        step.mask = mask
        return step

    def run(self, opcode: str, *operands: Operand, mask: BoolArray | None = None) -> None:
        """Runs one instruction for the lanes of a mask."""
        with np.errstate(all="ignore"):
            ROWS[opcode].function(self.step(opcode, *operands, mask=mask))

    def destination(self, name: str, dtype: Any = np.uint32) -> Register:
        """A register of 4 bytes (or a predicate) that holds all bits set."""
        return self.set(name, np.full((1, 1, 1), 1 if dtype == np.bool_ else 0xFFFFFFFF).astype(dtype))

    def fragment(self, name: str, values: Sequence[Array]) -> Vector:
        """Registers name0, name1, ... as a ``{...}`` operand."""
        return Vector(tuple(self.set(f"{name}{index}", value) for index, value in enumerate(values)))


def number(value: int) -> Immediate:
    """An integer constant."""
    return Immediate(value)


def at(register: Register, offset: int = 0) -> Address:
    """``[register+offset]``."""
    return Address(register, offset)
