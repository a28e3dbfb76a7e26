"""Bulk groups: which of a thread's bulk copies ``cp.async.bulk.wait_group`` guarantees.

A copy without an mbarrier belongs to the group that its thread commits next. ``wait_group N`` completes all groups that
the thread has committed but the N most recent ones; ``wait_group.read N`` only has their sources read: what they write
is then still to come, and comes when a wait without ``.read`` or the end of everything else brings it.
Source: PTX ISA 9.0, 9.7.9.25.4.3 and 9.7.9.25.4.4 (commit_group, wait_group).
"""

from __future__ import annotations

import numpy as np

from flashladder.emulator.machine.copies.boxes import Places
from flashladder.emulator.machine.copies.in_flight import Committed
from flashladder.emulator.machine.copies.transfers import Transfer
from flashladder.emulator.machine.state import Machine, Step


class BulkGroups:
    """Each thread's count of committed bulk groups."""

    def __init__(self) -> None:
        self.committed = Committed()
        self._open: list[Transfer] = []  # copies that no wait has covered for all of their threads

    def of(self, machine: Machine, lanes: tuple[Places, Places, Places]) -> Places:
        """The group to which a copy of these lanes belongs that is issued now."""
        return np.asarray(machine.full(self.committed.counts)[lanes])

    def commit(self, step: Step) -> None:
        """``commit_group``: the executing lanes' copies so far (perhaps none) become one group."""
        self.committed.commit(step)

    def start(self, transfer: Transfer) -> None:
        """A copy is issued; without a wait it happens when nothing is left that an mbarrier waits for."""
        deferred = transfer.step.machine.deferred
        if transfer.signal is not None:
            deferred.add(transfer)
            return
        self._open.append(transfer)
        deferred.add(transfer, lambda: all(each in self._open for each in deferred.pending))

    def wait(self, step: Step, newest: int, *, reads_only: bool) -> None:
        """Completes the executing lanes' copies of all committed groups but the `newest`, or reads their sources."""
        machine, executing = step.machine, step.lanes()
        bound = machine.full(self.committed.counts - newest)
        for transfer in self._open:
            covered = executing[transfer.lanes] & (transfer.group < bound[transfer.lanes])
            if reads_only:
                transfer.fetch(covered, step)
            else:
                transfer.land(covered, step)
        machine.deferred.force(lambda operation: isinstance(operation, Transfer) and bool(operation.landed.all()))
        self._open = [transfer for transfer in self._open if not transfer.over.all()]


def groups_of(machine: Machine) -> BulkGroups:
    """The machine's bulk groups, which only programs with bulk copies have."""
    if machine.bulk is None:
        machine.bulk = BulkGroups()
    return machine.bulk
