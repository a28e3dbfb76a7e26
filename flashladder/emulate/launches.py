"""What mutants are launched on, and what a launch showed: numbers, bank conflicts, races.

Why apart from `flashladder.emulate.mutation`: that makes mutants and judges them, whatever they were launched on. The
quickest launch comes first and ends at its first race, so that most mutants are caught in a tenth of a second. Nothing
to run here.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import prod

import numpy as np

from flashladder.emulate.executions import launch_of
from flashladder.emulate.kernel import MULTIPROCESSORS, forward, make_tensors
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.names import CONFLICTS
from flashladder.results.schema import Shape
import ptxemu
from ptxemu import Array

__all__ = ["ORDERS", "Observed", "Planned", "Seen", "alone", "launches_of", "look", "observe"]

BLOCKS = 4  # key/value tiles: prologue, two rounds of the main loop and the last tile are all reached
ORDERS = ("together", "reverse")  # of warps; the second where the first shows nothing on the same shape

Planned = tuple[Shape, int]  # a launch: its shape, and of how many multiprocessors


@dataclass(frozen=True)
class Seen:
    """What one launch showed; `out`: bits of O."""

    out: Array
    conflicts: int
    races: tuple[str, ...]


@dataclass(frozen=True)
class Observed:
    """What the launches on all of `launches_of` showed, one after another."""

    launches: tuple[Seen, ...]

    @property
    def out(self) -> Array:
        """All elements of all outputs."""
        return np.concatenate([one.out.ravel() for one in self.launches])

    @property
    def conflicts(self) -> int:
        """Bank conflicts of all launches."""
        return sum(one.conflicts for one in self.launches)

    @property
    def races(self) -> tuple[str, ...]:
        """Those of the last launch: after a race there is no other."""
        return self.launches[-1].races


class RaceFound(Exception):
    """Ends a launch at its first race: what more it would show is not asked."""


def launches_of(iteration: Iteration, config: KernelConfig) -> tuple[Planned, ...]:
    """What a kernel is observed on, and on how many multiprocessors, the quickest first: one head of `BLOCKS` tiles.

    A persistent kernel has one CTA for four tiles of one block, in which nothing but Q's own ring holds the producer;
    then for three tiles of three blocks, an odd number, so that tiles begin and end in either direction of two buffers;
    then for four of four blocks, from which on a maximum may be kept, so that nobody waits for O up to the end. One
    that splits tiles has seven of seven blocks besides, each on a cluster, whose parts are of different lengths.
    """

    def heads(count: int, length: int) -> Shape:
        return Shape(batch=1, seq_len=length, n_heads=count, d_head=config.d_head)

    usual = heads(1, max(config.B_r, BLOCKS * config.B_c))
    if not launch_of(iteration, config, usual, 1).resident:
        return ((usual, 1),)
    on_one = [(one, 1) for one in (heads(4, config.B_c), heads(1, 3 * config.B_c), heads(1, 4 * config.B_c))]
    shared = heads(1, (BLOCKS + 3) * config.B_c)
    is_split = prod(launch_of(iteration, config, shared).cluster) > 1
    return (*on_one, *([(shared, MULTIPROCESSORS)] if is_split else []))


def alone(iteration: Iteration, config: KernelConfig, planned: Planned) -> bool:
    """Whether a CTA, or a cluster, of this launch does what all do, to rows of its own: the first one tells of all."""
    launch = launch_of(iteration, config, *planned)
    return not launch.resident or prod(launch.cluster) > 1


def look(
    iteration: Iteration,
    config: KernelConfig,
    planned: Planned,
    kernel: ptxemu.Kernel | None = None,
    *,
    schedule: str | int = "together",
) -> Seen:
    """One launch, with counters and the race detector; of another `kernel` than the iteration's own up to a race.

    The reverse order, in which one warp runs at a time, is the first CTA's or cluster's where it is `alone`.
    """
    shape, multiprocessors = planned
    first = 1 if schedule == "reverse" and alone(iteration, config, planned) else None
    tensors = make_tensors(iteration, config, shape, seed=1)
    counters, hazards = ptxemu.Counters(), ptxemu.Hazards()

    def stop(_: int) -> None:
        if hazards.reports:
            raise RaceFound

    with suppress(RaceFound):
        forward(
            iteration, config, tensors, kernel=kernel, observers=(counters, hazards),
            multiprocessors=multiprocessors, first=first, schedule=schedule,
            progress=None if kernel is None else stop,
        )  # fmt: skip
    found = counters.as_dict()
    conflicts = sum(int(found[CONFLICTS.format(kind)]) for kind in ("ld", "st"))
    races = tuple(report.render() for report in hazards.reports)
    return Seen(tensors[3].view(np.uint16), conflicts, races)


def observe(
    iteration: Iteration,
    config: KernelConfig,
    kernel: ptxemu.Kernel | None = None,
    *,
    schedule: str | int = "together",
) -> Observed:
    """Runs a kernel (None: the iteration's own) on `launches_of`, up to a launch with a race."""
    launches = list[Seen]()
    for planned in launches_of(iteration, config):
        launches.append(look(iteration, config, planned, kernel, schedule=schedule))
        if launches[-1].races:
            break
    return Observed(tuple(launches))
