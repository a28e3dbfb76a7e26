"""Asynchronous operations that the program has issued and that have not finished: bulk copies, asynchronous stores.

On a GPU they usually finish long before the wait that guarantees it, so that a missing or too weak wait goes unnoticed.
Here each one finishes as late as it may: when a wait covers it (`Deferred.force`), or when no thread of the slice can
go on without it (`Deferred.advance`), the oldest one first. It reads its source only then, so that a source which is
overwritten too early gives wrong numbers on every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from ptxemu.syntax.tree import Instruction


class Operation(Protocol):
    """One instruction's asynchronous work, of all lanes that issued it together."""

    def complete(self) -> None:
        """Does the work: reads its sources, writes its results, and tells the mbarrier that it signals."""


@runtime_checkable
class Writer(Operation, Protocol):
    """An operation that knows which bytes of shared memory it is to write."""

    @property
    def instruction(self) -> Instruction:
        """What issued it."""

    def will_write(self, block: int, address: int, width: int) -> bool:
        """Whether it is still to write any of these bytes of a block's shared memory."""


Ready: TypeAlias = Callable[[], bool]


class Deferred:
    """The operations of a slice that have not finished, in order of issue; `finished` counts those that have."""

    def __init__(self) -> None:
        self._entries: list[tuple[Operation, Ready]] = []
        self.finished = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pending(self) -> tuple[Operation, ...]:
        """What has not finished, oldest first."""
        return tuple(operation for operation, _ in self._entries)

    def writer_of(self, block: int, address: int, width: int) -> Instruction | None:
        """What is still to write any of these bytes of a block's shared memory."""
        for operation, _ in self._entries:
            if isinstance(operation, Writer) and operation.will_write(block, address, width):
                return operation.instruction
        return None

    def add(self, operation: Operation, ready: Ready = lambda: True) -> None:
        """Puts an operation off; it may finish of its own accord whenever `ready` holds."""
        self._entries.append((operation, ready))

    def advance(self) -> bool:
        """Finishes the oldest operation that may; False when there is none."""
        for place, (operation, ready) in enumerate(self._entries):
            if ready():
                del self._entries[place]
                self.finished += 1
                operation.complete()
                return True
        return False

    def force(self, wanted: Callable[[Operation], bool]) -> None:
        """Finishes the operations that a wait guarantees, oldest first, ready or not."""
        chosen = [operation for operation, _ in self._entries if wanted(operation)]
        self._entries = [entry for entry in self._entries if entry[0] not in chosen]
        self.finished += len(chosen)
        for operation in chosen:
            operation.complete()
