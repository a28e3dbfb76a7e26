"""What counters and the race detector are told while a program runs.

An observer overrides the events it needs, and changes nothing of what is computed. Masks and addresses follow the
convention of `values`: axes (blocks, warps, lanes), of which any may have length 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from ptxemu.errors import EmulationError
from ptxemu.machine.control import Block
from ptxemu.machine.core import Machine, Step
from ptxemu.machine.memory import RED_ZONE
from ptxemu.syntax.tree import Instruction
from ptxemu.values import WARP, Array, BoolArray

if TYPE_CHECKING:
    from ptxemu.machine.tensor_map import TensorMap
    from ptxemu.machine.warpgroups import Shape


Places: TypeAlias = npt.NDArray[np.int64]
PIECE = 16  # bytes of shared memory that a bulk copy moves at once
Combine: TypeAlias = Callable[[Array, Array], Array]  # (memory's elements, the copy's) -> memory's new ones
Reduce: TypeAlias = tuple[Combine, np.dtype[np.generic]]  # and the type of the elements


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

    @property
    def buffer(self) -> int:
        """Of a global access: which array argument of the launch the first lane's address is in, counted from 0."""
        return int(self.address.flat[0]) // RED_ZONE - 1


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


@dataclass(frozen=True, eq=False)
class Copy:
    """One ``cp.async`` of all lanes that executed it.

    Attributes:
        instruction: the ``cp.async``.
        address: where it lands, bytes of the shared window, u64, (blocks|1, warps|1, 32|1).
        width: bytes written per lane: 4, 8 or 16.
        mask: lanes that issued it, None for all.
        group: number of groups that each lane had committed before, int64, broadcastable: the group it belongs to.
        data: what lands, with zeros for bytes that were not read; u32, u64, or (..., 4) of u32 for 16 bytes.
    """

    instruction: Instruction
    address: Array
    width: int
    mask: BoolArray | None
    group: Array
    data: Array


@dataclass(frozen=True)
class Targets:
    """The mbarriers that the lanes of one instruction name: one entry per lane, in order of block, warp, lane.

    Attributes:
        lanes: where the lanes are, three index arrays; empty where no thread is known (bytes that have landed).
        blocks: the block of the slice in whose shared memory each one's mbarrier lies.
        offsets: its offset there, bytes.
    """

    lanes: tuple[Array, ...]
    blocks: Array
    offsets: Array

    def chosen(self, entries: Array) -> Targets:
        """Some of them, by their places."""
        if len(entries) == len(self.blocks):
            return self
        return Targets(tuple(axis[entries] for axis in self.lanes), self.blocks[entries], self.offsets[entries])

    def by_offset(self) -> Iterator[tuple[int, Array]]:
        """Each offset with the entries that name it."""
        if self.offsets.size and (self.offsets == self.offsets[0]).all():
            yield int(self.offsets[0]), np.arange(self.offsets.size)
            return
        for offset in np.unique(self.offsets):
            yield int(offset), np.flatnonzero(self.offsets == offset)

    def fail(self, step: Step, what: str, entries: Array, **facts: Any) -> NoReturn:
        """Raises an `EmulationError` of kind "mbarrier" for the first entry; `facts`: expected, found, hint."""
        first = int(entries[0])
        block, lane = int(self.blocks[first]), None
        if self.lanes:
            block, warp, place = (int(axis[first]) for axis in self.lanes)
            lane = warp * WARP + place
        path, instruction, address = step.machine.path, step.instruction, int(self.offsets[first])
        facts |= {"block": step.machine.block_index(block), "lane": lane, "address": address}
        raise EmulationError("mbarrier", what, path=path, instruction=instruction, **facts)


@dataclass(frozen=True, eq=False)
class Shared:
    """Pieces of shared memory: `places` (n, pieces) in `blocks` (n,) of the slice."""

    blocks: Places
    places: Places


@dataclass(frozen=True, eq=False)
class Global:
    """Units of global memory: `addresses` (n, units) of `unit` bytes; `inside` which of them exist (None: all).

    A copy that reads them changes their elements by `convert`: f32 to tf32.
    """

    unit: int
    addresses: Places
    inside: BoolArray | None = None
    convert: Callable[[Array], Array] | None = None


@dataclass(frozen=True, eq=False)
class Signal:
    """The mbarriers that a copy tells: in `blocks`, at `offsets`, of `nbytes` each, all (m,)."""

    blocks: Places
    offsets: Places
    nbytes: Places


@dataclass(eq=False)
class Transfer:
    """One bulk copy of the n threads that issued it together.

    Attributes:
        step: the instruction, with the mask of those who issued it.
        lanes: where they are: block, warp and lane, (n,) each.
        source, target: what is read and written; of a multicast the target has m = n x blocks rows.
        rows: (m,) the thread that each row of the target belongs to.
        signal: the mbarriers that are told, by row of the target; None: it belongs to a bulk group.
        group: (n,) bulk groups that each thread had committed before.
        fill: the word, of the unit's width, that stands for what lies outside of the tensor.
        reduce: how what arrives is combined with what is there; None: it replaces it.
        box: whether it moves boxes of a tensor.
        tile: of a box that is loaded: its map, and the place in the box of each of the target's pieces.
        read, landed: (n,) whose source was read, whose target written.
        known, over: (n,) the same as far as the program may know: of a bulk group after the wait that covers it.
    """

    step: Step
    lanes: tuple[Places, Places, Places]
    source: Shared | Global
    target: Shared | Global
    rows: Places
    signal: Signal | None
    group: Places
    fill: Array | None = None
    reduce: Reduce | None = None
    box: bool = False
    tile: tuple[TensorMap, Places] | None = None
    read: BoolArray = field(init=False)
    landed: BoolArray = field(init=False)
    known: BoolArray = field(init=False)
    over: BoolArray = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is read, nothing has landed."""
        self.read, self.landed, self.known, self.over = np.zeros((4, len(self.group)), dtype=np.bool_)

    @property
    def instruction(self) -> Instruction:
        """What issued it."""
        return self.step.instruction

    @property
    def nbytes(self) -> int:
        """Bytes that each thread's copy moves, what lies outside of the tensor included."""
        side = self.source if isinstance(self.source, Shared) else self.target
        return side.places.shape[1] * PIECE if isinstance(side, Shared) else 0  # one of them is shared memory


@dataclass(eq=False)
class Product:
    """One ``wgmma.mma_async`` of all warpgroups that executed it together.

    Attributes:
        step: the instruction and the lanes that issued it.
        groups: the warpgroups' numbers, ascending; some blocks may lack some of them (`warps`).
        warps: (blocks|1, warps) who issued it; None: all warps of all blocks.
        batch: how many groups each warp had committed before, (blocks|1, warps|1): the one that it belongs to.
        results, operands: names of the accumulators' registers and, where A is in registers, of A's.
        left: A: its registers' values when it was issued, or chunk addresses, int64, (blocks|1, groups|1, *chunks).
        right: B: chunk addresses.
        descriptors: of A and B, u64, (blocks|1, groups|1), and the matrix that they describe; None: A is in registers.
        keeps: whether D is added to, by (blocks|1, groups|1).
        pending: warps for which it has not happened, as `warps`.
    """

    step: Step
    groups: Array
    warps: BoolArray | None
    batch: Array
    results: tuple[str, ...]
    operands: tuple[str, ...]
    left: Array | Sequence[Array]
    right: Array
    keeps: BoolArray
    descriptors: tuple[tuple[Array, Shape] | None, ...] = ()
    pending: BoolArray | None = None

    def __post_init__(self) -> None:
        self.pending = self.warps
        self.result_names, self.operand_names = frozenset(self.results), frozenset(self.operands)

    @property
    def instruction(self) -> Instruction:
        """The ``wgmma.mma_async``."""
        return self.step.instruction

    @property
    def shape(self) -> str:
        """``m64n128k16``: products of one shape on the same accumulators follow each other without a fence."""
        return self.instruction.opcode.split(".")[4]


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

    def store_issued(self, step: Step, access: RemoteAccess) -> None:
        """An ``st.async`` begins: from now on its bytes may be written at any time."""

    def store_landed(self, step: Step, access: RemoteAccess, barriers: Array) -> None:
        """It has landed; the mbarriers at these offsets (n,) of the same blocks are told next."""

    def copy_issued(self, step: Step, copy: Copy) -> None:
        """A ``cp.async`` begins: from now on its shared bytes are in flight."""

    def copy_landed(self, step: Step, copy: Copy, lanes: BoolArray | None) -> None:
        """A wait (`step`) guarantees the copy of these lanes: its bytes are written now."""

    def copy_told(self, step: Step, copy: Copy, lanes: BoolArray, targets: Targets) -> None:
        """The copy of these lanes is written now, and the mbarriers that they name are told next."""

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

    def ignored(self, step: Step, why: str) -> None:
        """An instruction does nothing."""

    def polled(self, step: Step) -> None:
        """A poll's answer matters: false, because nobody can go on otherwise, or true where false leads elsewhere."""

    def cluster_arrived(self, step: Step, lanes: BoolArray, *, ordered: bool) -> None:
        """These lanes, of the full shape, have arrived at the barrier of their cluster."""

    def cluster_completed(self, clusters: BoolArray) -> None:
        """The barriers of these clusters are complete."""

    def cluster_waited(self, step: Step, lanes: BoolArray) -> None:
        """These lanes, of the full shape, go on from the barrier of their cluster."""
