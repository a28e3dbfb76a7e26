"""The issue of bulk copies: what the operands are for each thread that executes one, checked before anything moves.

Why apart from `transfers`: that is when bytes move; this is what an instruction says, alike for copies of bytes and of
tensors' boxes. Source: PTX ISA 9.0, 9.7.9.25.4 and 9.7.9.25.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashladder.emulator.machine.copies.boxes import Places
from flashladder.emulator.machine.copies.bulk_groups import groups_of
from flashladder.emulator.machine.copies.transfers import PIECE, Global, Reduce, Shared, Signal, Transfer
from flashladder.emulator.machine.phases.mbarrier_targets import targets_of
from flashladder.emulator.machine.state import Step
from flashladder.emulator.values import Array

Lanes = tuple[Places, Places, Places]


@dataclass(frozen=True)
class Issue:
    """One bulk instruction of the threads that execute it: their lanes, and what its operands are for each of them."""

    step: Step
    lanes: Lanes

    @classmethod
    def of(cls, step: Step) -> Issue:
        """The executing lanes, in order of block, warp and lane; with a step of their own: `step` is used again."""
        own = Step(step.machine, step.instruction)
        own.mask = step.mask
        block, warp, lane = np.nonzero(step.lanes())
        return cls(own, (block, warp, lane))

    def take(self, value: Array) -> Places:
        """A value of each thread, int64."""
        return np.asarray(self.step.machine.full(value)[self.lanes]).astype(np.int64)

    def number(self, operand: int) -> Places:
        """Operand `operand`, an unsigned 32-bit number, of each thread."""
        return self.take(self.step.source(operand, "u32"))

    def refuse(
        self,
        wrong: Array,
        kind: str,
        what: str,
        *,
        expected: object = None,
        found: Array | None = None,
        hint: str | None = None,
    ) -> None:
        """Fails for the first thread of which `wrong` (n,) holds, if there is one."""
        if not wrong.any():
            return
        first = int(wrong.argmax())
        mask = np.zeros(self.step.machine.shape, dtype=np.bool_)
        mask[tuple(int(axis[first]) for axis in self.lanes)] = True
        shown = None if found is None else int(found[first])
        self.step.fail(kind, what, lanes=mask, expected=expected, found=shown, hint=hint)

    def shared(self, operand: int, nbytes: Places, alignment: int = PIECE) -> tuple[Places, Places]:
        """(block of the slice, offset) that a shared-memory operand names, valid for `nbytes` from there."""
        address = self.step.address(operand)
        cluster, memory = self.step.machine.cluster, self.step.machine.shared
        self.refuse(
            ~self.take(cluster.valid(address)).astype(np.bool_),
            "out-of-bounds",
            "no block of the cluster has this address",
        )
        block, offset = (self.take(each) for each in cluster.resolve(address))
        self.refuse(
            offset % alignment != 0,
            "misaligned",
            "shared memory of a bulk copy",
            expected=f"a multiple of {alignment}",
            found=offset,
        )
        self.refuse(
            offset + nbytes > memory.nbytes,
            "out-of-bounds",
            f"the shared memory of a bulk copy ends behind the block's {memory.nbytes} bytes",
            found=offset + nbytes,
        )
        return block, offset

    def signal(self, operand: int, target: Places, nbytes: Places) -> tuple[Places, Places]:
        """(block, offset) of the mbarrier of each thread's copy, which has to lie where the bytes go."""
        targets = targets_of(self.step, self.step.address(operand))
        what = "an mbarrier in another block than the bytes that it counts"
        self.refuse((targets.blocks != target) & (nbytes >= 0), "mbarrier", what)
        return targets.blocks, targets.offsets

    def destinations(self, operand: int) -> tuple[Places, Places]:
        """Of a multicast: (thread, block of the slice) for every bit of the threads' masks, operand `operand`."""
        masks = self.take(self.step.source(operand, "u16"))
        size = self.step.machine.cluster.size
        what = f"the mask of a multicast names blocks that a cluster of {size} does not have"
        self.refuse((masks >> size) != 0, "arguments", what, found=masks)
        self.refuse(masks == 0, "arguments", "the mask of a multicast names no block")
        rows, ranks = np.nonzero((masks[:, None] >> np.arange(size)) & 1)
        own = self.lanes[0][rows]
        return rows, own - own % size + ranks

    def groups(self) -> Places:
        """The bulk group that each thread's copy belongs to."""
        return groups_of(self.step.machine).of(self.step.machine, self.lanes)

    def start(self, transfer: Transfer) -> None:
        """Puts a copy off, and tells the observers of it."""
        groups_of(self.step.machine).start(transfer)
        for observer in self.step.machine.observers:
            observer.transfer_issued(transfer)

    def some(self, chosen: Array) -> Issue:
        """The same for some of the threads."""
        step = Step(self.step.machine, self.step.instruction)
        block, warp, lane = (axis[chosen] for axis in self.lanes)
        step.mask = np.zeros(step.machine.shape, dtype=np.bool_)
        step.mask[block, warp, lane] = True
        return Issue(step, (block, warp, lane))


def run_of(start: Places, nbytes: int) -> Places:
    """(n, pieces) places of runs of bytes that begin at `start` (n,)."""
    return np.asarray(start[:, None] + np.arange(0, nbytes, PIECE))


def by_size(issue: Issue, sizes: Places) -> list[Issue]:
    """The threads, apart where they copy different numbers of bytes, which are multiples of 16."""
    wanted = f"a multiple of {PIECE}"
    issue.refuse(sizes % PIECE != 0, "misaligned", "bytes of a bulk copy", expected=wanted, found=sizes)
    kinds = np.unique(sizes)
    return [issue] if len(kinds) <= 1 else [issue.some(sizes == size) for size in kinds]


def into_shared(
    issue: Issue,
    source: Shared | Global,
    target: tuple[Places, Places],
    places: Places,
    barrier: int,
    *,
    nbytes: Places | None = None,
    fill: Array | None = None,
    reduce: Reduce | None = None,
) -> None:
    """Starts copies into shared memory that tell mbarriers (operand `barrier`), perhaps in several blocks at once.

    Args:
        issue: the threads.
        source: what they read.
        target: (block, offset) of each thread's destination.
        places: (n, pieces) offsets that are written.
        barrier: the operand that names the mbarrier; a mask of blocks is the one behind it.
        nbytes: that the mbarriers are told of; None: all pieces.
        fill: what stands for elements outside of a tensor.
        reduce: how the bytes are combined with those that are there.
    """
    count = np.full(len(places), places.shape[1] * PIECE, dtype=np.int64) if nbytes is None else nbytes
    blocks, offsets = issue.signal(barrier, target[0], count)
    rows = np.arange(len(places))
    where = target[0]
    if ".multicast::cluster" in issue.step.instruction.opcode:
        rows, where = issue.destinations(barrier + 1)
        blocks = where
    issue.start(
        Transfer(
            issue.step,
            issue.lanes,
            source,
            Shared(where, places[rows]),
            rows,
            Signal(blocks, offsets[rows], count[rows]),
            np.zeros(len(places), dtype=np.int64),
            fill,
            reduce,
            box=nbytes is not None,
        )
    )


def out_of_shared(
    issue: Issue,
    source: Shared,
    target: Global,
    reduce: Reduce | None = None,
    *,
    box: bool = False,
) -> None:
    """Starts copies of bulk groups into global memory."""
    issue.refuse(source.blocks != issue.lanes[0], "out-of-bounds", "the source of a bulk copy lies in another block")
    rows = np.arange(len(source.blocks))
    issue.start(Transfer(issue.step, issue.lanes, source, target, rows, None, issue.groups(), reduce=reduce, box=box))
