"""A race that was found: both instructions, and where and when they met."""

from __future__ import annotations

from dataclasses import dataclass

from flashladder.emulator.syntax.tree import Instruction

KINDS = {
    "RAW": "read after write by another thread",
    "WAR": "write after read by another thread",
    "WAW": "write after write by another thread",
    "in-flight read": "read of bytes that an asynchronous copy still writes: a wait is missing",
    "in-flight write": "write to bytes that an asynchronous copy still writes: a wait is missing",
    "async overwrite": "write to bytes that an asynchronous operation may still read: a wait is missing",
    "proxy": "asynchronous access to bytes that were written in the ordinary way: a fence.proxy.async is missing",
    "mbarrier": "an mbarrier used by a thread that nothing orders after its init, or ended while others may use it",
    "mbarrier fence": "an mbarrier that a bulk copy tells of bytes: a fence.mbarrier_init after its init is missing",
    "exit": "access of another block's shared memory, which may have exited by then: a cluster barrier is missing",
    "same-instruction write": "two lanes of one instruction write the same byte",
}


@dataclass(frozen=True)
class Hazard:
    """Two instructions that touch the same byte, in the order in which the emulator ran them.

    Attributes:
        kind: a key of `KINDS`.
        space: ``shared`` or ``global``.
        first, second: the instructions, with their PTX lines and, where known, CUDA source lines.
        address: the first byte found, in bytes of its state space.
        block: (x, y, z) of the second access; `first_block` of the first one, the same in shared memory.
        first_thread, second_thread: linear index of the threads in their blocks.
        count: how many times a thread's second access raced with the first instruction, over all blocks.
        path: the PTX file.
    """

    kind: str
    space: str
    first: Instruction
    second: Instruction
    address: int
    block: tuple[int, int, int]
    first_block: tuple[int, int, int]
    first_thread: int
    second_thread: int
    count: int
    path: str = "<ptx>"

    def render(self) -> str:
        """One readable line."""
        times = "once" if self.count == 1 else f"{self.count} times"
        elsewhere = "" if self.first_block == self.block else f" of block {self.first_block}"
        return (
            f"{self.path}:{self.second.line}: {self.space} {self.kind} ({KINDS[self.kind]}) at {self.address:#x}, "
            f"block {self.block}: thread {self.second_thread} in {self.second.place}, not ordered after "
            f"thread {self.first_thread}{elsewhere} in {self.first.place}; {times}"
        )
