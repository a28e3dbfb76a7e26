"""The barrier of a cluster: who has arrived, and who may go on.

Every thread of the cluster arrives, then waits; one that has exited counts as arrived. A thread that arrives twice
without a wait between, or waits without having arrived, is an error: the ISA leaves both undefined.
Source: PTX ISA 9.0, 9.7.13.4 (barrier.cluster).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashladder.emulator.values import Array, BoolArray

if TYPE_CHECKING:
    from flashladder.emulator.machine.state import Machine, Step


class ClusterBarrier:
    """The barrier of each cluster of a slice.

    Attributes:
        arrivals, waits: how often each thread has arrived and gone on, full shape.
        phases: how often each cluster's barrier was complete, (clusters,).
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.arrivals = np.zeros(machine.shape, np.int64)
        self.waits = np.zeros(machine.shape, np.int64)
        self.phases = np.zeros(machine.shape[0] // machine.cluster.size, np.int64)

    def arrive(self, step: Step) -> None:
        """``barrier.cluster.arrive``.

        Raises:
            EmulationError: "divergent-barrier": a second arrival without a wait.
        """
        lanes = step.lanes()
        again = lanes & (self.arrivals != self.waits)
        if again.any():
            step.fail("divergent-barrier", "a second arrival at the cluster's barrier without a wait", lanes=again)
        self.arrivals[lanes] += 1
        self.machine.meetings += 1
        ordered = ".relaxed" not in step.instruction.opcode
        for observer in self.machine.observers:
            observer.cluster_arrived(step, lanes, ordered=ordered)
        self.settle()

    def settle(self) -> None:
        """Completes the barriers at which every thread that has not exited has arrived."""
        missing = self.machine.live & (self.arrivals <= self._of_threads())
        came = self.arrivals > self._of_threads()
        clusters = len(self.phases)
        done = np.logical_and(came.reshape(clusters, -1).any(axis=1), ~missing.reshape(clusters, -1).any(axis=1))
        if not done.any():
            return
        self.phases[done] += 1
        for observer in self.machine.observers:
            observer.cluster_completed(done)

    def completed(self, step: Step) -> BoolArray:
        """Lanes of the step, of the full shape, that may go on.

        Raises:
            EmulationError: "divergent-barrier": a wait without an arrival.
        """
        lanes = step.lanes()
        alone = lanes & (self.arrivals == self.waits)
        if alone.any():
            what = "a thread waits at the cluster's barrier without having arrived"
            step.fail("divergent-barrier", what, lanes=alone, hint="barrier.cluster.arrive comes first")
        self.settle()
        done: BoolArray = lanes & (self._of_threads() >= self.arrivals)
        return done

    def leave(self, step: Step, lanes: BoolArray) -> None:
        """These lanes go on."""
        self.waits[lanes] += 1
        for observer in self.machine.observers:
            observer.cluster_waited(step, lanes)

    def _of_threads(self) -> Array:
        return np.repeat(self.phases, self.machine.cluster.size).reshape(-1, 1, 1)

    def story(self, step: Step) -> str:
        """Who is missing, for the report of a deadlock."""
        block = int(np.argwhere(step.lanes())[0][0])
        size = self.machine.cluster.size
        first = block - block % size
        missing = self.machine.live & (self.arrivals <= self._of_threads())
        absent = [
            f"{int(missing[peer].sum())} of block {step.block_index(peer)}"
            for peer in range(first, first + size)
            if missing[peer].any()
        ]
        return f"the cluster's barrier, threads that have not arrived: {', '.join(absent) or 'none'}"
