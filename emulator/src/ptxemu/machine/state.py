"""The whole machine of a slice: its core and all components, assembled in one place; and the steps of table rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass

from ptxemu.machine.async_copies import AsyncCopies
from ptxemu.machine.barriers import ClusterBarrier
from ptxemu.machine.bulk_copies import BulkCopies
from ptxemu.machine.core import Machine, Step
from ptxemu.machine.deferred import Deferred
from ptxemu.machine.mbarriers import Mbarriers
from ptxemu.machine.memory import GlobalMemory
from ptxemu.machine.observer import Observer
from ptxemu.machine.register_pool import RegisterPool
from ptxemu.machine.shared import Cluster, LocalMemory, SharedMemory
from ptxemu.machine.warpgroups import WarpgroupFence, Warpgroups
from ptxemu.syntax.tree import Instruction
from ptxemu.values import BoolArray


@dataclass(kw_only=True, eq=False)
class FullMachine(Machine):
    """A machine with its memories and everything asynchronous.

    Attributes:
        parameters: the kernel's parameter bytes.
        memory, shared, local: the state spaces.
        cluster: shared memory by addresses that name a block of the cluster.
        deferred: what is asynchronous and has not finished: bulk copies, asynchronous stores and arrivals.
        mbarriers, cluster_barrier: barriers in shared memory; those of the clusters.
        copies, bulk: ``cp.async`` and bulk copies in flight.
        warpgroups, fence: matrix products in flight, and who has come to a ``wgmma.fence``.
        register_pool: the registers of the blocks' warps.
        observers: counters, race detector.
        undefined: told of lanes to which a shuffle gave an undefined value; None: such a shuffle is an error.
        elects_last: whether ``elect.sync`` names the highest lane and not the lowest.
    """

    parameters: bytes
    memory: GlobalMemory
    observers: tuple[Observer, ...] = ()
    local_bytes: InitVar[int] = 0
    products: InitVar[Sequence[str]] = ()  # registers that matrix products of the kernel name
    launch_registers: InitVar[int | None] = None  # of a thread, where the entry bounds them
    undefined: Callable[[Step, BoolArray], None] | None = None
    elects_last: bool = False

    def __post_init__(self, local_bytes: int, products: Sequence[str], launch_registers: int | None) -> None:
        """Makes the components, each from the core and the components that it needs."""
        self.shared = SharedMemory(self.shape[0], self.shared_bytes, self.shared_first)
        self.local = LocalMemory(self.shape, local_bytes)
        self.deferred = Deferred()
        self.cluster = Cluster(self, self.shared)
        self.mbarriers = Mbarriers(self.cluster, self.observers)
        self.copies = AsyncCopies(self.shared, self.observers)
        self.bulk = BulkCopies(self, self.memory, self.mbarriers, self.deferred, self.observers)
        self.warpgroups = Warpgroups(self, products)
        self.fence = WarpgroupFence(self, self.warpgroups)
        self.cluster_barrier = ClusterBarrier(self, self.observers)
        self.register_pool = RegisterPool(self, launch_registers, self.observers)
        self.shared.writers = [self.copies.writer_of, self.deferred.writer_of]

    def progress(self) -> int:
        """A number that grows with everything that might let a waiting thread go on."""
        return self.arrivals + self.mbarriers.events + self.deferred.finished


class FullStep(Step):
    """One instruction on the whole machine: what a row of the table takes."""

    machine: FullMachine

    def __init__(self, machine: FullMachine, instruction: Instruction) -> None:
        super().__init__(machine, instruction)
