"""One instruction's accesses to a memory with bookkeeping, flattened."""

from __future__ import annotations

from dataclasses import dataclass

from flashladder.emulator.values import Array


@dataclass(frozen=True)
class Touch:
    """Pairs of a thread (below -1: an agent of `Clocks`) and a unit of memory."""

    threads: Array
    units: Array
