"""Events as a running kernel sends them, without a kernel: one call per instruction, named by a PTX line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from ptxemu.machine.control import Block
from ptxemu.machine.core import Machine, Step
from ptxemu.machine.observer import Access, Copy, Observer
from ptxemu.syntax.tree import Immediate, Instruction, SourceLine
from ptxemu.values import Array, BoolArray

LANE = np.arange(32, dtype=np.uint64).reshape(1, 1, 32)


def u64(value: object) -> Array:
    """A value of the emulator's shape: numbers become (1, 1, 1)."""
    array = np.asarray(value, dtype=np.uint64)
    return array.reshape((1,) * (3 - array.ndim) + array.shape)


@dataclass
class FakeMachine:
    """What observers look at of a `Machine`."""

    shape: tuple[int, int, int]
    exists: BoolArray
    blocks: Array
    symbols: dict[str, int]
    cluster_size: int = 1
    shared_bytes: int = 1024
    copies_in_bulk: bool = False
    orders_blocks: bool = False
    path: str = "k.ptx"


@dataclass
class Stream:
    """A slice of a grid whose instructions a test dictates."""

    observer: Observer
    warps: int = 2
    blocks: int = 1
    threads: int | None = None  # per block; None: whole warps
    first: int = 0  # %ctaid.x of the first block
    symbols: dict[str, int] = field(default_factory=dict)  # of the launch

    def __post_init__(self) -> None:
        shape = (self.blocks, self.warps, 32)
        index = np.arange(self.warps * 32).reshape(1, self.warps, 32)
        exists = np.broadcast_to(index < (self.threads or self.warps * 32), shape)
        ids = np.zeros((self.blocks, 3), dtype=np.int64)
        ids[:, 0] = self.first + np.arange(self.blocks)
        self.machine = cast("Machine", FakeMachine(shape, exists, ids, self.symbols))
        self.tid = index.astype(np.uint64)
        self.ctaid = np.arange(self.blocks, dtype=np.uint64).reshape(-1, 1, 1)
        self.observer.start(self.machine)

    def step(self, opcode: str, line: int, *operands: Immediate) -> Step:
        """An instruction on its machine."""
        known = self.__dict__.setdefault("_steps", {})
        if (opcode, line) not in known:
            source = SourceLine("kernel.cu", 100 + line)
            known[opcode, line] = Step(self.machine, Instruction(opcode, tuple(operands), line=line, source=source))
        return cast("Step", known[opcode, line])

    def access(
        self, kind: str, address: object, line: int, width: int = 4, mask: Any = None, space: str = "shared"
    ) -> None:
        """A load, store, atomic or ldmatrix by the lanes of the mask."""
        self.observer.access(self.step(kind, line), Access(space, kind, u64(address), width, mask))

    def copy(self, address: object, line: int, width: int = 16, mask: Any = None) -> Copy:
        """A cp.async begins."""
        step = self.step("cp.async.cg.shared.global", line)
        zero = np.zeros((1, 1, 1))
        copy = Copy(step.instruction, u64(address), width, mask, zero, zero)
        self.observer.copy_issued(step, copy)
        return copy

    def wait(self, copy: Copy, line: int, lanes: Any = None) -> None:
        """A wait that covers the copy."""
        self.observer.copy_landed(self.step("cp.async.wait_all", line), copy, lanes)

    def barrier(self, line: int = 99, lanes: Any = True, number: int = 0) -> None:
        """``bar.sync number`` completes for these lanes."""
        step = self.step(f"bar.sync.{number}", line, Immediate(number))
        self.observer.barrier(step, number, np.broadcast_to(np.asarray(lanes), self.machine.shape))

    def arrive(self, number: int, lanes: Any, line: int = 98) -> None:
        """``bar.arrive number``."""
        step = self.step("bar.arrive", line, Immediate(number))
        self.observer.barrier_arrive(step, number, np.broadcast_to(lanes, self.machine.shape))

    def warp_sync(self, line: int = 97, lanes: Any = None) -> None:
        """``bar.warp.sync``."""
        self.observer.warp_sync(self.step("bar.warp.sync", line), lanes)

    def block(self, *opcodes: str, mask: Any = None, times: int = 1) -> None:
        """Visits to a basic block."""
        block = Block(0, tuple(Instruction(opcode) for opcode in opcodes), None, None, None, ())
        for _ in range(times):
            self.observer.block(block, mask)

    def only(self, *warps: int) -> BoolArray:
        """The mask of whole warps."""
        mask: BoolArray = np.isin(np.arange(self.warps), warps).reshape(1, -1, 1)
        return mask


def own(stream: Stream) -> Array:
    """Each thread's own word."""
    return stream.tid * np.uint64(4)


def other(stream: Stream) -> Array:
    """Each thread's word of the same lane in the next warp."""
    return (stream.tid * np.uint64(4) + np.uint64(128)) % np.uint64(128 * stream.warps)
