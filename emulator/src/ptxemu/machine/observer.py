"""What counters and the race detector are told while a program runs.

Why: both look at the same events and neither may change what is computed. An observer overrides the events it needs.
Masks and addresses follow the convention of `values`: axes (blocks, warps, lanes), of which any may have length 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxemu.syntax.tree import Instruction
from ptxemu.values import Array, BoolArray

if TYPE_CHECKING:
    from ptxemu.machine.async_copies import Copy
    from ptxemu.machine.bulk_copies import Transfer
    from ptxemu.machine.control import Block
    from ptxemu.machine.mbarriers import Targets
    from ptxemu.machine.state import Machine, Step
    from ptxemu.machine.warpgroups import Product


@dataclass(frozen=True)
class Access:
    """One instruction's access to memory by all lanes that execute it.

    Attributes:
        space: ``shared`` or ``global``.
        kind: ``ld``, ``st``, ``atom``, ``ldmatrix``, ``stmatrix`` or ``cp.async`` (global side: a read; shared side:
            see `Copy`).
        address: bytes, (blocks|1, warps|1, 32|1); of ``ldmatrix`` (blocks|1, warps|1, 8 x matrices): one row each.
        width: bytes per lane (per row of ``ldmatrix``: 16).
        mask: lanes that take part, None for all; of ``ldmatrix`` (blocks|1, warps|1, 1).
    """

    space: str
    kind: str
    address: Array
    width: int
    mask: BoolArray | None


@dataclass(frozen=True)
class RemoteAccess:
    """One instruction's access to shared memory by addresses that name a block of the cluster; all arrays flat.

    Attributes:
        kind: ``ld``, ``st`` or ``atom``.
        lanes: where the executing lanes are: three index arrays (block, warp, lane).
        blocks: whose shared memory each one accesses, as indices in the slice.
        offsets: bytes there.
        width: bytes per lane.
    """

    kind: str
    lanes: tuple[Array, ...]
    blocks: Array
    offsets: Array
    width: int


class Observer:
    """Hears everything, does nothing."""

    def start(self, machine: Machine) -> None:
        """A slice of the grid begins on this machine."""

    def finish(self, machine: Machine) -> None:
        """The slice is done: every thread has exited."""

    def block(self, block: Block, mask: BoolArray | None) -> None:
        """A basic block of the program runs for the lanes of `mask` (None: all)."""

    def follow(self, machine: Machine, instruction: Instruction) -> Callable[[BoolArray | None], None] | None:
        """Asked once per instruction of a slice: what is to be called after each run of it, with the lanes that ran.

        By then the results are in `machine.registers`, and registers that die with the instruction still hold what
        they held. None, the answer of an observer that does not care, costs nothing.
        """

    def access(self, step: Step, access: Access) -> None:
        """An instruction reads or writes memory."""

    def remote(self, step: Step, access: RemoteAccess) -> None:
        """An instruction reads or writes shared memory of the cluster."""

    def copy_issued(self, step: Step, copy: Copy) -> None:
        """A ``cp.async`` begins: from now on its shared bytes are in flight."""

    def copy_landed(self, step: Step, copy: Copy, lanes: BoolArray | None) -> None:
        """A wait (`step`) guarantees the copy of these lanes: its bytes are written now."""

    def transfer_issued(self, transfer: Transfer) -> None:
        """A bulk copy begins: from now on its sources may be read and its targets written at any time."""

    def transfer_read(self, by: Step, transfer: Transfer, chosen: BoolArray) -> None:
        """The sources of some of its threads (n,) have been read: `by` guarantees it, or soon its mbarrier does."""

    def transfer_landed(self, by: Step, transfer: Transfer, chosen: BoolArray) -> None:
        """The targets of some of its threads (n,) are written: `by` guarantees it, or its mbarriers are told."""

    def proxy_fence(self, step: Step) -> None:
        """A ``fence.proxy.async``: what its threads know to be written may be read asynchronously from now on."""

    def product_issued(self, step: Step, product: Product) -> None:
        """A ``wgmma.mma_async`` begins: from now on it may read its matrices in shared memory."""

    def product_done(self, step: Step, product: Product, warps: BoolArray | None) -> None:
        """A wait (`step`) guarantees the product of these warps, (blocks|1, warps|1): it no longer reads anything."""

    def mbarrier_fence(self, step: Step) -> None:
        """A ``fence.mbarrier_init``: the mbarriers that its threads have initialised may be told of bytes."""

    def barrier(self, step: Step, number: int, lanes: BoolArray) -> None:
        """These lanes, of the full shape, have met at CTA barrier `number` and go on: everything before is ordered."""

    def barrier_arrive(self, step: Step, number: int, lanes: BoolArray) -> None:
        """These lanes signalled barrier `number` with ``bar.arrive`` and go on without waiting."""

    def warp_sync(self, step: Step, lanes: BoolArray | None) -> None:
        """In each warp these lanes (None: all) have met at ``bar.warp.sync``: everything before is ordered."""

    def exited(self, lanes: BoolArray, by: Instruction | None) -> None:
        """These lanes, of the full shape, have exited; `by` is None at the end of the text."""

    def mbarrier(self, step: Step, targets: Targets, action: str) -> None:
        """Lanes use mbarriers: ``init``, ``inval``, ``arrive`` (before it counts), ``expect``, ``wait`` (and go on)."""

    def mbarrier_completed(self, offset: int, blocks: BoolArray) -> None:
        """The mbarriers at this offset of these blocks have completed a phase."""

    def cluster_arrived(self, step: Step, lanes: BoolArray, *, ordered: bool) -> None:
        """These lanes, of the full shape, have arrived at the barrier of their cluster."""

    def cluster_completed(self, clusters: BoolArray) -> None:
        """The barriers of these clusters are complete."""

    def cluster_waited(self, step: Step, lanes: BoolArray) -> None:
        """These lanes, of the full shape, go on from the barrier of their cluster."""
