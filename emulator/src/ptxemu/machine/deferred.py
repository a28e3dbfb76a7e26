"""Asynchronous operations that the program has issued and nothing has forced to happen yet: bulk copies, TMA, wgmma.

Why: on a GPU they usually finish long before the wait that guarantees it, so that a missing or too weak wait goes
unnoticed until it does not. Here each one finishes as late as it may: when a wait covers it (`Deferred.force`), or when
no thread of the slice can go on without it (`Deferred.advance`), the oldest one first. What it reads it reads then, so
that a source which is overwritten too early is wrong numbers on every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ptxemu.machine.state import Step


class Operation(Protocol):
    """One instruction's asynchronous work, of all lanes that issued it together."""

    def complete(self) -> None:
        """Does the work: reads its sources, writes its results, and tells the mbarrier that it signals."""


@runtime_checkable
class Writer(Operation, Protocol):
    """An operation that knows which bytes of shared memory it is to write."""

    step: Step

    def will_write(self, block: int, address: int, width: int) -> bool:
        """Whether it is still to write any of these bytes of a block's shared memory."""


def _always() -> bool:
    return True


@dataclass(frozen=True, eq=False)
class _Entry:
    operation: Operation
    ready: Callable[[], bool]


class Deferred:
    """The operations of a slice that have not finished, in order of issue; `finished` counts those that have."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self.finished = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pending(self) -> tuple[Operation, ...]:
        """What has not finished, oldest first."""
        return tuple(entry.operation for entry in self._entries)

    def add(self, operation: Operation, ready: Callable[[], bool] = _always) -> None:
        """Puts an operation off; it may finish of its own accord whenever `ready` holds."""
        self._entries.append(_Entry(operation, ready))

    def advance(self) -> bool:
        """Finishes the oldest operation that may; False when there is none."""
        for place, entry in enumerate(self._entries):
            if entry.ready():
                del self._entries[place]
                self.finished += 1
                entry.operation.complete()
                return True
        return False

    def force(self, wanted: Callable[[Operation], bool]) -> None:
        """Finishes the operations that a wait guarantees, oldest first, ready or not."""
        chosen = [entry for entry in self._entries if wanted(entry.operation)]
        self._entries = [entry for entry in self._entries if entry not in chosen]
        self.finished += len(chosen)
        for entry in chosen:
            entry.operation.complete()
