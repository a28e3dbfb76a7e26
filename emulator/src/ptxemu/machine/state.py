"""The state of a running slice of the grid, and what one instruction sees of it.

A slice is a number of whole blocks that run in lockstep: `Machine.shape` is (blocks, warps per block, 32). Registers
are values in the sense of `values`. A `Step` binds one instruction of the program to the machine: it reads operands as
arrays of the wanted type and writes results under the mask of the lanes that execute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ptxemu.errors import EmulationError
from ptxemu.machine.observer import Observer
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
from ptxemu.values import WARP, Array, BoolArray, Shape3, constant, fitted, immediate, merged

if TYPE_CHECKING:
    from ptxemu.machine.async_copies import AsyncCopies
    from ptxemu.machine.barriers import ClusterBarrier
    from ptxemu.machine.bulk_copies import BulkGroups
    from ptxemu.machine.deferred import Deferred
    from ptxemu.machine.mbarriers import Mbarriers
    from ptxemu.machine.memory import GlobalMemory
    from ptxemu.machine.register_pool import RegisterPool
    from ptxemu.machine.shared import Cluster, LocalMemory, SharedMemory
    from ptxemu.machine.warpgroups import Warpgroups
    from ptxemu.run.undefined import Undefined


@dataclass
class Machine:
    """Everything that a slice of the grid owns while it runs.

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
        symbols: address of each variable in its own state space (kernel parameters: offset in `parameters`).
        parameters: the kernel's parameter bytes.
        memory, shared, local: the state spaces.
        copies: asynchronous copies in flight.
        cluster: how its blocks form clusters.
        deferred: what else is asynchronous and has not finished: bulk copies, matrix instructions of warpgroups.
        mbarriers: the barriers in shared memory.
        warpgroups: matrix products in flight.
        observers: counters, race detector.
        exited_arrive: whether exited threads count as arrived at a barrier of the whole block.
        undefined: follows what shuffles read from absent lanes; None: such a shuffle is an error.
        elects_last: whether ``elect.sync`` names the highest lane and not the lowest.
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
    parameters: bytes
    memory: GlobalMemory
    shared: SharedMemory
    local: LocalMemory
    copies: AsyncCopies
    cluster: Cluster
    deferred: Deferred
    mbarriers: Mbarriers
    warpgroups: Warpgroups
    observers: tuple[Observer, ...] = ()
    exited_arrive: bool = False
    unwritten: Sequence[Array] = ()
    undefined: Undefined | None = None
    elects_last: bool = False
    bulk: BulkGroups | None = None  # the groups of bulk copies, once there is one
    issued: int = 0  # instructions issued in lockstep so far, for the budget
    meetings: int = 0  # arrivals at barriers so far, and exits

    launch_registers: int | None = None  # of a thread, where the entry bounds them

    @cached_property
    def register_pool(self) -> RegisterPool:
        """The registers of the blocks' warps, looked at from the first ``setmaxnreg`` on."""
        from ptxemu.machine.register_pool import RegisterPool  # it needs this module

        return RegisterPool(self)

    @cached_property
    def cluster_barrier(self) -> ClusterBarrier:
        """The barriers of the clusters, made when the first thread comes to one."""
        from ptxemu.machine.barriers import ClusterBarrier  # it needs this module

        return ClusterBarrier(self)

    def progress(self) -> int:
        """A number that grows with everything that might let a waiting thread go on."""
        return self.meetings + self.mbarriers.events + self.deferred.finished

    def full(self, value: Array) -> Array:
        """The value broadcast to the machine's full shape (a read-only view)."""
        return np.broadcast_to(value, self.shape)


class Step:
    """One instruction on one machine; `mask` are the lanes that execute it, None when all lanes of the slice do."""

    def __init__(self, machine: Machine, instruction: Instruction) -> None:
        self.machine = machine
        self.instruction = instruction
        self.mask: BoolArray | None = None
        self._constants: dict[tuple[Operand, str], Array] = {}

    def lanes(self) -> BoolArray:
        """The executing lanes as a mask of the full shape (read-only)."""
        mask = np.ones((1, 1, 1), dtype=np.bool_) if self.mask is None else self.mask
        return self.machine.full(mask)

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
                self.fail("unsupported", f"special register {operand}")
            return self.machine.specials[operand.name].astype(constant(0, ptx_type).dtype)
        if isinstance(operand, Symbol):
            return constant(self.symbol(operand), ptx_type)
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            return constant(self.symbol(operand.base) + operand.offset, ptx_type)
        return self.fail("unsupported", f"operand {operand} as a value")

    def symbol(self, symbol: Symbol) -> int:
        """The address of a variable in its state space."""
        if symbol.name not in self.machine.symbols:
            self.fail("unsupported", f"unknown name {symbol}")
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
            self.fail("unsupported", f"operand {operand} where an address belongs")
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
            self.fail("unsupported", f"destination {operand}")
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
            block, lane = self.block_index(b), w * WARP + i
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

    def block_index(self, block: int) -> tuple[int, int, int]:
        """``%ctaid`` of the block that has this place in the slice."""
        x, y, z = (int(axis) for axis in self.machine.blocks[block])
        return x, y, z
