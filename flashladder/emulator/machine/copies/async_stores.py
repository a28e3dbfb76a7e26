"""Asynchronous stores and reductions into the shared memory of the cluster: ``st.async`` and ``red.async``.

They take their values when they are issued, land as late as they may (`deferred`), and then tell the mbarrier, in the
same block as the bytes, how many have come. The race detector does not look at them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashladder.emulator.machine.memory import words_of
from flashladder.emulator.machine.phases.mbarrier_targets import targets_of
from flashladder.emulator.machine.spaces.remote import places
from flashladder.emulator.machine.state import Step
from flashladder.emulator.values import Array

Combine = Callable[[Array, Array], Array]  # (what is there, what comes) -> what is there then


@dataclass(eq=False)
class AsyncStore:
    """One instruction's stores, of all lanes that issued it; arrays are flat.

    Attributes:
        step: the instruction, with the lanes.
        blocks, offsets: where they land.
        barriers: offsets of the mbarriers that are told, in the same blocks.
        words: what is stored, one word of `width` bytes each.
        combine: of a reduction, how it changes memory; None: it replaces it.
    """

    step: Step
    blocks: Array
    offsets: Array
    barriers: Array
    words: Array
    width: int
    combine: Combine | None

    def complete(self) -> None:
        """Lands, then tells the mbarriers."""
        machine = self.step.machine
        gone = ~np.asarray(machine.live.any(axis=(1, 2)))[self.blocks]
        if gone.any():
            block = self.step.block_index(int(self.blocks[gone.argmax()]))
            what = f"the store still writes to the shared memory of block {block}, which has exited"
            hint = "let the block wait for it before it exits: mbarrier.try_wait"
            self.step.fail("exited", what, hint=hint)
        rows, where = machine.shared.rows, self.offsets.astype(np.uint64)
        if self.combine is None:
            rows.put(self.blocks, where, self.width, self.words)
        else:
            for index in range(len(self.words)):  # several may change one word
                one = slice(index, index + 1)
                old = rows.take(self.blocks[one], where[one], self.width).view(self.words.dtype)
                new = self.combine(old, self.words[one]).view(f"u{self.width}")
                rows.put(self.blocks[one], where[one], self.width, new)
        nbytes = np.full(len(self.words), self.width, np.int64)
        machine.mbarriers.complete_tx(self.step, self.blocks, self.barriers, nbytes)


def issue(step: Step, values: Array, width: int, combine: Combine | None = None) -> None:
    """Puts the executing lanes' stores of `values` off; operand 0 is the address, the last one the mbarrier's.

    Raises:
        EmulationError: as `remote.places` and `targets_of`; "mbarrier": it is in another block than the bytes.
    """
    lanes, blocks, offsets = places(step, step.address(0), width)
    targets = targets_of(step, step.address(len(step.instruction.operands) - 1))
    apart = np.flatnonzero(targets.blocks != blocks)
    if apart.size:
        targets.fail(step, "the mbarrier lies in another block than the bytes that it is told of", apart)
    words = values if combine is not None else words_of(values, width)
    flat = np.broadcast_to(words, step.machine.shape)[lanes]
    own = Step(step.machine, step.instruction)
    own.mask = step.lanes().copy()
    step.machine.deferred.add(AsyncStore(own, blocks, offsets, targets.offsets, flat, width, combine))
