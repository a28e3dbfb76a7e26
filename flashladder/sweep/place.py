"""Where a sweep runs: lanes, locked while it lasts; what is built there, and the plan that follows.

Used by the sweep's command, by tuning and by Slurm's submission alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from flashladder.bench.references import INSTALL
from flashladder.errors import FlashladderError
from flashladder.ladder.grid import Grid
from flashladder.paths import BUILD
from flashladder.sweep import plan
from flashladder.sweep.cells import CPU, Wanted
from flashladder.sweep.lanes.lane import Device
from flashladder.sweep.measure import devices, environments
from flashladder.sweep.screen import to_build

FOLDER = BUILD / "sweep"


@dataclass(frozen=True)
class Place:
    """Where a sweep runs: lanes, the machine's key, the architecture of its code, and another GPU it was made for."""

    lanes: tuple[Device, ...]
    machine: str
    arch: str
    made_for: str | None = None


@contextmanager
def place_of(grid: Grid, options: argparse.Namespace) -> Iterator[Place]:
    """What the grid is measured on, locked while this lasts.

    Raises:
        FlashladderError: no such GPU, another model, or another process measures on it.
    """
    if grid.mode == "emulator":
        if options.gpus != "all":
            raise FlashladderError("the grid runs on this machine's CPUs", expected="no --gpus", found=options.gpus)
        yield Place(tuple(devices.cpus()), CPU, "")
        return
    found = devices.chosen(devices.cards(), options.gpus)
    fit, other = devices.fitting(found, grid.gpu, anyway=options.anyway)
    with devices.locked(fit) as lanes:
        yield Place(tuple(lanes), devices.machine_of(fit), fit[0].arch, other)


def available(grid: Grid) -> tuple[Grid, list[str]]:
    """The grid without references that are not installed here, and a line about each of these."""
    missing = [name for name in grid.references if environments.reference_version(name) is None]
    lines = [
        f"{name} is not installed here: not timed; {INSTALL.get(name, 'pip install torch')} brings it"
        for name in missing
    ]
    return replace(grid, references=tuple(name for name in grid.references if name not in missing)), lines


def make_plan(grid: Grid, place: Place, *, build: bool, compiled: bool = True, quiet: bool = True) -> plan.Plan:
    """The plan of a grid at a place, after building what is missing if that is allowed.

    Args:
        grid: what to measure.
        place: where.
        build: build kernels that are missing; else their cells stay without a code digest.
        compiled: False for a dry run on the emulator, which must not compile.
        quiet: do not say how many kernels are built, and about how long that takes.

    Raises:
        FlashladderError: a build failed.
    """
    build = build and compiled
    if place.machine == CPU:
        if not quiet and build:
            _tell(plan.make(grid, CPU, _cpu_known))
        return plan.make(grid, CPU, _cpu_digests if build else _cpu_known)
    made = plan.make(grid, place.machine, lambda cells: environments.digests(cells, place.arch))
    if build and made.unbuilt:
        from flashladder.sweep.measure.builds import build_all

        if not quiet:
            _tell(made)
        build_all(plan.kernels_of(made.unbuilt), place.arch)
        environments.forget()
        made = plan.make(grid, place.machine, lambda cells: environments.digests(cells, place.arch))
    return made


def _tell(made: plan.Plan) -> None:
    if made.unbuilt:
        print(to_build(made, made.cells), flush=True)


def _cpu_digests(cells: Sequence[Wanted]) -> list[str]:
    from flashladder.sweep.measure import cpu as measure_cpu

    measure_cpu.build(cells)
    return [measure_cpu.code_digest(cell.subject, cell.config) for cell in cells]


def _cpu_known(cells: Sequence[Wanted]) -> list[str]:
    from flashladder.sweep.measure import cpu as measure_cpu

    return measure_cpu.known_digests(cells)


def require_built(made: plan.Plan) -> None:
    """Raises `FlashladderError` when a kernel of the plan is not built here."""
    if unbuilt := plan.kernels_of(made.unbuilt):
        first = unbuilt[0]
        raise FlashladderError(
            f"{len(unbuilt)} kernels of the grid are not built here",
            found=f"iteration {first.subject}: {first.config}",
            hint=f"leave out --no-build, or: invoke build '{first.subject}' --configs '{first.config}'",
        )
