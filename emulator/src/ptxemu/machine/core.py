"""The core of a running slice of the grid, and what one instruction sees of it.

A slice is a number of whole blocks that run in lockstep: `Machine.shape` is (blocks, warps per block, 32). Registers
are values in the sense of `values`. A `Step` binds one instruction of the program to the machine: it reads operands as
arrays of the wanted type and writes results under the mask of the lanes that execute. Components (barriers, memories,
copies) take a `Machine` and a `Step`; `state.FullMachine` assembles them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ptxemu.errors import EmulationError
from ptxemu.syntax.tree import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)
from ptxemu.values import WARP, Array, BoolArray, Shape3, as_type, constant, fitted, merged

GRID_SYNC = "only the driver sets it, for example for grid sync of cooperative groups, which is not supported"


@dataclass(kw_only=True, eq=False)
class Machine:
    """What every component needs of a slice: its shape, its lanes and its registers.

    Attributes:
        path: the PTX file, for messages.
        blocks: (n, 3) integer array: ``%ctaid`` (x, y, z) of each block of the slice.
        shape: (n, warps, 32).
        exists: full-shape mask of the threads that were launched (the last warp may be partial).
        live: those of them that have not exited.
        registers: value of each register by slot; one that nobody wrote has all bits set (NaN, -1, true).
        slots, widths: slot of each register name; bytes of each slot (predicates: 1).
        unwritten: what each slot holds before anything wrote it.
        specials: values of special registers (``%tid.x``, ...).
        symbols: address of each variable in its own state space (kernel parameters: offset among them); one object per
            launch, shared by its slices.
        cluster_size: blocks of a cluster, 1 without clusters; those of one cluster follow each other in the slice.
        orders_blocks: whether it has what orders accesses of different blocks.
        copies_in_bulk: whether the kernel has bulk copies.
        shared_bytes: where the shared memory of a block ends; `shared_first`: where it begins.
        exited_arrive: whether exited threads count as arrived at a barrier of the whole block.
        issued: instructions issued in lockstep so far, for the budget.
        arrivals: arrivals at barriers so far, and exits: it grows with whatever may let a waiting thread go on.
        swaps: atomics so far that left another value in memory.
    """

    path: str
    blocks: Array
    shape: Shape3
    exists: BoolArray
    live: BoolArray
    slots: Mapping[str, int]
    widths: Sequence[int]
    registers: list[Array]
    specials: Mapping[str, Array]
    symbols: Mapping[str, int]
    unwritten: Sequence[Array] = ()
    cluster_size: int = 1
    shared_bytes: int = 0
    shared_first: int = 0
    copies_in_bulk: bool = False
    orders_blocks: bool = False
    exited_arrive: bool = False
    issued: int = 0
    arrivals: int = 0
    swaps: int = 0

    def full(self, value: Array) -> Array:
        """The value broadcast to the machine's full shape (a read-only view)."""
        return np.broadcast_to(value, self.shape)

    def block_index(self, block: int) -> tuple[int, int, int]:
        """``%ctaid`` of the block that has this place in the slice."""
        x, y, z = (int(axis) for axis in self.blocks[block])
        return x, y, z

    def only(self, *places: Array | int) -> BoolArray:
        """The full-shape mask of the lanes at these blocks, warps and lanes: numbers or index arrays."""
        mask = np.zeros(self.shape, np.bool_)
        mask[places] = True
        return mask


def immediate(operand: Immediate, ptx_type: str) -> Array:
    """A constant as PTX reads it where `ptx_type` is expected: integers wrap, ``0f``/``0d`` bits keep their meaning."""
    if operand.kind == "int":
        return constant(bool(operand.value) if ptx_type == "pred" else operand.value, ptx_type)
    bits = np.uint32 if operand.kind == "f32" else np.uint64
    number = np.array(operand.value, dtype=bits)
    if ptx_type[0] in "bsu":  # mov.b32 %r, 0f3F800000 moves the bits
        return as_type(number.reshape(1, 1, 1), ptx_type)
    as_float = number.view(np.float32 if operand.kind == "f32" else np.float64)
    return constant(as_float.item(), ptx_type)


class Step:
    """One instruction on one machine; `mask` are the lanes that execute it, None when all lanes of the slice do."""

    def __init__(self, machine: Machine, instruction: Instruction) -> None:
        self.machine = machine
        self.instruction = instruction
        self.mask: BoolArray | None = None
        self._constants: dict[tuple[Operand, str], Array] = {}

    def of(self, mask: BoolArray | None) -> Step:
        """The same instruction with a mask of its own, which outlives this execution: a row's step is used again."""
        own = Step(self.machine, self.instruction)
        own.mask = mask
        return own

    def lanes(self) -> BoolArray:
        """The executing lanes as a mask of the full shape (read-only)."""
        return self.machine.full(np.ones((1, 1, 1), np.bool_) if self.mask is None else self.mask)

    def value(self, operand: Operand, ptx_type: str) -> Array:
        """An operand as an array of `ptx_type`, in any broadcastable shape."""
        if isinstance(operand, Register):
            return fitted(self.register(operand), ptx_type)
        if isinstance(operand, Negated):
            return ~self.value(operand.operand, "pred")
        known = self._constants.get((operand, ptx_type))
        if known is None:
            known = self._constants[operand, ptx_type] = self._constant(operand, ptx_type)
        return known

    def register(self, register: Register) -> Array:
        """A register's value as it was last written, in its own type."""
        if register.name not in self.machine.slots:
            self.fail("unsupported", f"undeclared register {register}")
        return self.machine.registers[self.machine.slots[register.name]]

    def _constant(self, operand: Operand, ptx_type: str) -> Array:
        if isinstance(operand, Immediate):
            return immediate(operand, ptx_type)
        if isinstance(operand, Special):
            if operand.name not in self.machine.specials:
                hint = GRID_SYNC if operand.name.startswith("%envreg") else None
                self.fail("unsupported", f"special register {operand} is not supported", hint=hint)
            return self.machine.specials[operand.name].astype(constant(0, ptx_type).dtype)
        if isinstance(operand, Symbol):
            return constant(self.symbol(operand), ptx_type)
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            return constant(self.symbol(operand.base) + operand.offset, ptx_type)
        return self.fail("unsupported", f"operand {operand} as a value is not supported")

    def symbol(self, symbol: Symbol) -> int:
        """The address of a variable in its state space."""
        if symbol.name not in self.machine.symbols:
            self.fail("unsupported", f"{symbol} is no name of a variable")
        return self.machine.symbols[symbol.name]

    def source(self, index: int, ptx_type: str) -> Array:
        """Operand `index` (0 is the first, usually the destination) as an array of `ptx_type`."""
        return self.value(self.instruction.operands[index], ptx_type)

    def vector(self, index: int, ptx_type: str) -> list[Array]:
        """The items of a ``{...}`` operand; a single register counts as a vector of one."""
        operand = self.instruction.operands[index]
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return [self.value(item, ptx_type) for item in items]

    def address(self, index: int) -> Array:
        """The address that operand `index` (``[base+offset]``) names, as ``u64``, in bytes of its state space.

        The sum wraps in the width of the base, as the hardware's does; 32 bits are then zero-extended.
        """
        operand = self.instruction.operands[index]
        if not isinstance(operand, Address):
            self.fail("unsupported", f"operand {operand} stands where an address belongs")
        base = operand.base
        if isinstance(base, Register):
            value = self.register(base)
            unsigned: Array = value.view(f"u{value.dtype.itemsize}")
            if operand.offset:
                unsigned = unsigned + unsigned.dtype.type(operand.offset % (1 << (8 * unsigned.itemsize)))
            return unsigned.astype(np.uint64)
        number = base.value if isinstance(base, Immediate) else self.symbol(base)
        return constant(number + operand.offset, "u64")

    def write(self, index: int, value: Array) -> None:
        """Sets destination operand `index` for the executing lanes."""
        self.assign(self.instruction.operands[index], value)

    def write_vector(self, index: int, values: list[Array]) -> None:
        """Sets the items of a ``{...}`` destination (or a single register)."""
        operand = self.instruction.operands[index]
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if len(items) != len(values):
            self.fail("syntax", "registers of the destination", expected=len(values), found=len(items))
        for item, value in zip(items, values, strict=True):
            self.assign(item, value)

    def write_pair(self, index: int, first: Array, second: Array) -> None:
        """Sets ``first|second``; a destination without ``|`` takes the first alone."""
        operand = self.instruction.operands[index]
        if isinstance(operand, Pair):
            self.assign(operand.first, first)
            self.assign(operand.second, second)
        else:
            self.assign(operand, first)

    def assign(self, operand: Operand, value: Array) -> None:
        """Sets one register for the executing lanes; the sink ``_`` swallows the value."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return
        if not isinstance(operand, Register):
            self.fail("unsupported", f"destination {operand} is not supported")
        slot = self.machine.slots[operand.name]
        bytes_wide = self.machine.widths[slot]
        if value.dtype.itemsize > bytes_wide:
            self.fail(
                "syntax", f"{operand} is narrower than the result", expected=value.dtype.itemsize, found=bytes_wide
            )
        if value.dtype.itemsize < bytes_wide:  # ld.s8 into a 32-bit register: extended by the value's own sign
            signed = value.dtype.kind == "i"
            value = (value if signed else value.view(f"u{value.dtype.itemsize}")).astype(
                f"{'iu'[not signed]}{bytes_wide}"
            )
        self.machine.registers[slot] = merged(self.machine.registers[slot], value, self.mask)

    def refuse(self, wrong: Array, kind: str, what: str, *, found: object | None = None, **facts: Any) -> None:
        """Fails for the first executing lane that is `wrong`, if any; an array `found` is read at that lane."""
        lanes = self.lanes() & wrong
        if lanes.any():
            if isinstance(found, np.ndarray):
                found = int(self.machine.full(found)[lanes][0])
            self.fail(kind, what, lanes=lanes, found=found, **facts)

    def fail(
        self,
        kind: str,
        what: str,
        *,
        lanes: Array | None = None,
        address: Array | None = None,
        expected: object | None = None,
        found: object | None = None,
        hint: str | None = None,
    ) -> NoReturn:
        """Raises an `EmulationError` that names this instruction and the first lane of `lanes`, any broadcastable mask.

        The lanes are intersected with the executing ones; `address` is read at that lane.
        """
        block = lane = where = None
        chosen = self.lanes() if lanes is None else self.lanes() & self.machine.full(lanes)
        if chosen.any():
            b, w, i = (int(axis) for axis in np.argwhere(chosen)[0])
            block, lane = self.machine.block_index(b), w * WARP + i
            if address is not None:
                where = int(self.machine.full(address)[b, w, i])
        raise EmulationError(
            kind,
            what,
            path=self.machine.path,
            instruction=self.instruction,
            block=block,
            lane=lane,
            address=where,
            expected=expected,
            found=found,
            hint=hint,
        )
