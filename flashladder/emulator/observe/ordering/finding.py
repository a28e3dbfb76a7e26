"""What the bookkeeping of a block finds: two instructions whose accesses nothing orders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A race of one instruction with one earlier one.

    Attributes:
        kind: a key of `hazards.KINDS`.
        first: the earlier instruction, as the number that the caller gave it.
        address: the first byte, in bytes of its state space.
        first_thread, second_thread: linear index in the block.
        count: threads of the second instruction that race.
        blocks: indices of the first and the second thread's blocks; None within one block.
    """

    kind: str
    first: int
    address: int
    first_thread: int
    second_thread: int
    count: int
    blocks: tuple[int, int] | None = None
