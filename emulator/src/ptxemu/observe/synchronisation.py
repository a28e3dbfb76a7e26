"""Tells the clocks of what orders accesses, for each group of blocks (or clusters) that have done the same so far.

Barriers, mbarriers and clusters order accesses; `hazards` judges those that nothing orders. Blocks of a cluster are
folded into one (`clocks.Folding`), because their threads synchronise, too.
"""

from __future__ import annotations

from collections.abc import Callable
import copy as copying
from dataclasses import dataclass

import numpy as np

from ptxemu.machine.core import Machine, Step
from ptxemu.machine.observer import Observer, Targets
from ptxemu.observe.clocks import Folding, Key
from ptxemu.observe.races import SharedRaces
from ptxemu.syntax.tree import Instruction
from ptxemu.values import Array, BoolArray

CLUSTER: Key = ("cluster", 0)
N_BARRIERS = 16


@dataclass
class Group:
    """Blocks (clusters) of the slice that have done the same so far, and their shared bookkeeping."""

    members: Array  # indices within the slice, ascending
    races: SharedRaces


class Synchronisation(Observer):
    """Keeps the groups of a slice and tells their bookkeeping of everything that orders accesses."""

    def __init__(self) -> None:
        self._groups: list[Group] = []
        self._fold = Folding(1, (0, 0, 0), 0)
        self._unsure: dict[
            str, Instruction | None
        ] = {}  # why another schedule may differ, and where that was seen first
        self._ordering = False  # whether there was a memory fence, a release or an acquire: else words order nothing

    def start(self, machine: Machine) -> None:
        """A slice begins: its blocks are alike."""
        size = machine.cluster_size
        self._fold = Folding.of(size, machine.shape, machine.shared_bytes)
        exists = self._fold.lanes(machine.exists)[0].copy()
        self._groups = [Group(np.arange(machine.shape[0] // size), SharedRaces(exists))]

    def finish(self, machine: Machine) -> None:  # noqa: ARG002 - the observer's signature
        """The slice's shared memory is gone."""
        self._groups = []

    def barrier(self, step: Step, number: int, lanes: BoolArray) -> None:
        """Threads that met at a CTA barrier know of each other."""
        for group, chosen in self._masks(lanes):
            for rank, part in self._fold.ranks(chosen):
                own = number + rank * N_BARRIERS
                if part.any():
                    if not group.races.phases.gather(part, self._block(group, rank), ("bar", own)):
                        self._may_differ("threads that meet at a barrier", step.instruction)
                    group.races.clocks.join(part, own if group.races.clocks.signals else None)
                    group.races.phases.meet(part, ("bar", own))

    def barrier_arrive(self, step: Step, number: int, lanes: BoolArray) -> None:
        """Those who will meet at the barrier will know what these lanes have done until now."""
        for group, chosen in self._masks(lanes):
            for rank, part in self._fold.ranks(chosen):
                if not group.races.phases.signal(part, ("bar", number + rank * N_BARRIERS)):
                    self._may_differ("threads that meet at a barrier", step.instruction)
                group.races.clocks.signal(part, number + rank * N_BARRIERS)

    def warp_sync(self, step: Step, lanes: BoolArray | None) -> None:  # noqa: ARG002 - the observer's signature
        """Lanes of each warp know of each other."""
        if lanes is None:
            for group in self._groups:
                group.races.clocks.join_warps(None)
            return
        for group, chosen in self._masks(lanes):
            group.races.clocks.join_warps(chosen)

    def follow(self, machine: Machine, instruction: Instruction) -> Callable[[BoolArray | None], None] | None:
        """Memory fences, which let relaxed arrivals and waits order something."""
        opcode = instruction.opcode
        if ".sync" in opcode and not opcode.startswith(("bar", "cp", "fence")):

            def together(lanes: BoolArray | None) -> None:
                for group, chosen in self._masks(machine.exists if lanes is None else machine.full(lanes)):
                    group.races.phases.together(chosen)

            return together
        if not opcode.startswith(("fence", "membar")) or opcode.startswith(("fence.proxy", "fence.mbarrier_init")):
            return None

        self._ordering = True

        def fenced(lanes: BoolArray | None) -> None:
            for group, chosen in self._masks(machine.exists if lanes is None else machine.full(lanes)):
                group.races.clocks.order(chosen)

        return fenced

    def mbarrier(self, step: Step, targets: Targets, action: str) -> None:
        """An arrival releases what its thread has done, a wait acquires what all have who arrived in time."""
        relaxed = ".relaxed" in step.instruction.opcode
        for group, address, mask in self._targeted(targets.lanes, targets.blocks, targets.offsets):
            phases = group.races.phases
            for place in np.unique(address[mask]):
                lanes, key = mask & (address == place), ("mbarrier", int(place))
                if action in ("arrive", "expect"):
                    if not phases.arrive(lanes, key):
                        self._may_differ("the phase of an mbarrier for which an arrival counts", step.instruction)
                elif action == "wait":
                    if not phases.wait(lanes, key):
                        self._may_differ("the phase of an mbarrier that a wait finds", step.instruction)
                else:
                    phases.forget(key)
                if action == "arrive":
                    group.races.clocks.release(lanes, key, relaxed=relaxed)
                elif action == "wait":
                    group.races.clocks.acquire(lanes, key, relaxed=relaxed)

    def mbarrier_completed(self, offset: int, blocks: BoolArray) -> None:
        """Who waits for this phase learns what all did who arrived until now."""
        flags = blocks.reshape(-1, self._fold.size, 1)
        self._agree(flags)
        for group in self._groups:
            for rank in np.flatnonzero(flags[group.members[0]]):
                key = ("mbarrier", int(rank) * self._fold.stride + offset)
                if not group.races.phases.complete(key):
                    self._may_differ("who still finds a phase of an mbarrier before the next one is complete")
                group.races.clocks.complete(key)

    def cluster_arrived(self, step: Step, lanes: BoolArray, *, ordered: bool) -> None:  # noqa: ARG002 - the observer's signature
        """Those who wait will know what these lanes have done until now."""
        for group, chosen in self._masks(lanes):
            group.races.clocks.release(chosen, CLUSTER, relaxed=not ordered)
            group.races.mbarriers.arrive(chosen)

    def cluster_completed(self, clusters: BoolArray) -> None:
        """The barriers of these clusters are complete."""
        flags = clusters.reshape(-1, 1, 1)
        self._agree(flags)
        for group in self._groups:
            if flags[group.members[0]].any():
                group.races.clocks.complete(CLUSTER)
                group.races.mbarriers.meet()

    def cluster_waited(self, step: Step, lanes: BoolArray) -> None:  # noqa: ARG002 - the observer's signature
        """These lanes know what all did who arrived."""
        for group, chosen in self._masks(lanes):
            group.races.clocks.acquire(chosen, CLUSTER)
            group.races.remote.meet(chosen)

    def polled(self, step: Step) -> None:
        """Another answer at another time would have led elsewhere."""
        self._may_differ("the answer of a poll", step.instruction)

    def _may_differ(self, what: str, instruction: Instruction | None = None) -> None:
        """Another schedule may differ in something."""
        self._unsure.setdefault(what, instruction)

    def _block(self, group: Group, rank: int) -> BoolArray:
        """The lanes of a block of the cluster, in the cluster's shape."""
        exists = group.races.clocks.exists
        if self._fold.size == 1:
            return exists
        found = np.zeros_like(exists)
        rows = slice(rank * self._fold.shape[1], (rank + 1) * self._fold.shape[1])
        found[rows] = exists[rows]
        return found

    def _masks(self, lanes: BoolArray) -> list[tuple[Group, BoolArray]]:
        """Each group with its own (warps, 32) part of a mask."""
        folded = self._fold.lanes(lanes)
        self._agree(folded)
        shape = (self._fold.warps, self._fold.shape[2])
        return [(group, np.broadcast_to(row(folded, group), shape)) for group in self._groups]

    def _targeted(
        self, lanes: tuple[Array, ...], blocks: Array, offsets: Array
    ) -> list[tuple[Group, Array, BoolArray]]:
        """Each group with its own (warps, lanes) part, address and mask, of accesses that name blocks, flat."""
        address, mask = self._fold.flat(lanes, blocks, offsets)
        self._agree(mask)
        self._agree(address)
        return [(group, row(address, group), row(mask, group)) for group in self._groups]

    def _by_group(self, address: Array, mask: BoolArray | None) -> list[tuple[Group, Array, BoolArray | None]]:
        """Each group with its own (warps, lanes) part of an access, both of which are folded already."""
        if mask is not None:
            if address.shape[0] > 1:
                address = np.where(mask, address, np.uint64(0))  # idle lanes hold garbage: it must not divide blocks
            self._agree(mask)
        self._agree(address)
        return [(group, row(address, group), None if mask is None else row(mask, group)) for group in self._groups]

    def _agree(self, value: Array) -> None:
        """Divides groups until the blocks of each have the same value."""
        if value.shape[0] == 1:
            return
        groups: list[Group] = []
        for group in self._groups:
            rows = value[group.members].reshape(group.members.size, -1)
            if (rows == rows[0]).all():
                groups.append(group)
                continue
            kinds = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
            groups += [
                Group(group.members[kinds == kind], copying.deepcopy(group.races)) for kind in range(kinds.max() + 1)
            ]
        self._groups = groups


def row(value: Array, group: Group) -> Array:
    """The (warps, lanes) part of a value in the group's blocks."""
    return np.asarray(value[0] if value.shape[0] == 1 else value[group.members[0]])
