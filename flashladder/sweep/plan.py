"""From a grid to the list of its cells, in the order in which they are measured, with what each is expected to take.

Why: dry run, sweep, resume, shard and verifier must agree on the cells and on their addresses. Nothing here measures,
builds or needs a GPU; ten thousand cells take a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashladder.bench.references import FA2
from flashladder.ladder.grid import FEWEST_PAIRS, Grid
from flashladder.results.blocks import CELL_EXTRA_BLOCKS
from flashladder.results.blocks import Plan as Pairs
from flashladder.results.schema import PlannedCell
from flashladder.sweep.cells import CPU, Settings, Wanted, wanted_of
from flashladder.sweep.halving import RUNGS
from flashladder.toolchain.wheels import load_pins

ROUGH_TFLOPS = 120.0  # of FA2 on an unknown GPU
TFLOPS = {"a100": 190.0, "rtx3090": 65.0, "rtx4090": 150.0, "h100": 330.0, "h200": 340.0}  # of FA2, for estimates only
SLOW = 6.0  # how much slower than FA2 the first iteration is, with its bank conflicts
PER_CELL_S = 1.0  # inputs, reference, checks, warm-up
EMULATED_FLOPS = 2e8  # per second, roughly, of the emulator on one CPU
PTX_S, MACHINE_CODE_S = 1.0, 0.5  # of one CPU, that compiling a kernel takes; of a grid of the emulator its PTX alone
WHEEL_S = 4.0  # the rest of a wheel: its environment, where that is warm, linking, installing
PATIENCE = 20.0  # times the estimate that a cell may take

Digests = Callable[[Sequence[Wanted]], Sequence[str]]
"""The code digest of each cell, ``""`` where nothing is built for it."""


@dataclass(frozen=True)
class Plan:
    """All cells of a grid on one machine.

    Attributes:
        grid: where they come from.
        settings: what is the same for all.
        cells: in the order of measurement.
    """

    grid: Grid
    settings: Settings
    cells: tuple[PlannedCell, ...]

    @property
    def unbuilt(self) -> tuple[PlannedCell, ...]:
        """Cells for whose kernel nothing is built."""
        return tuple(cell for cell in self.cells if not cell.code)

    def estimate_s(self, cells: Sequence[PlannedCell] | None = None) -> float:
        """About how many seconds one GPU, or one CPU, takes for `cells` (default: all)."""
        return sum(estimate_s(cell, self.settings) for cell in (self.cells if cells is None else cells))


def settings_of(grid: Grid, machine: str) -> Settings:
    """How a grid is measured on a machine."""
    if grid.mode == "emulator":
        return Settings(CPU, grid.mode)
    if grid.mode == "tune":  # what every rung has at least (`flashladder.sweep.halving`)
        return Settings(machine, grid.mode, min(RUNGS), min(RUNGS), FEWEST_PAIRS)
    pairs = pairs_of(grid.pairs)
    return Settings(machine, grid.mode, pairs.pairs, pairs.blocks, pairs.min_pairs)


def pairs_of(pairs: int) -> Pairs:
    """The timer's plan for so many pairs per cell: eight blocks, or as many as there are pairs."""
    usual = Pairs()
    fewest = min(usual.min_pairs, pairs)
    return Pairs(pairs=pairs, blocks=min(usual.blocks, pairs), extra_blocks=CELL_EXTRA_BLOCKS, min_pairs=fewest)


def wanted(grid: Grid) -> list[Wanted]:
    """The cells of a grid: kernels by environment, each on its shapes, then references, which a profiler looks at.

    Cells of one environment follow each other, so that its worker stays warm; within one, cells of one dtype and shape
    do, so that it keeps its inputs.
    """
    pinned = load_pins().cuda
    shapes = [(shape.batch, shape.seq_len, shape.n_heads, shape.d_head) for shape in grid.shapes]
    names = () if grid.mode == "emulator" else (FA2, *grid.references)
    cells: list[Wanted] = []
    for toolchain in grid.toolchains:
        by_subject: dict[str, list[Wanted]] = {}
        for cell in grid.cells:
            shape = (cell.shape.batch, cell.shape.seq_len, cell.shape.n_heads, cell.shape.d_head)
            name = cell.iteration.description
            one = Wanted(
                name, cell.config.short_form(), cell.config.dtype, shape, "" if toolchain == pinned else toolchain
            )
            by_subject.setdefault(name, []).append(one)
        for subject in by_subject.values():
            cells += sorted(subject, key=lambda one: (one.dtype != "fp16", one.shape[1], one.shape))
    cells += [Wanted(name, "", dtype, shape) for dtype in grid.dtypes for shape in shapes for name in names]
    return list(dict.fromkeys(cells))


def make(grid: Grid, machine: str, digests: Digests) -> Plan:
    """The plan of a grid on `machine` (key of configs/gpus, or of the emulator), with what is built now."""
    settings = settings_of(grid, machine)
    cells = wanted(grid)
    planned = tuple(cell.planned(code, settings) for cell, code in zip(cells, digests(cells), strict=True))
    return Plan(grid, settings, planned)


def estimate_s(cell: PlannedCell, settings: Settings) -> float:
    """About how many seconds a cell takes on its machine."""
    if settings.machine == CPU:
        return 0.3 + cell.shape.flops / EMULATED_FLOPS
    launch = cell.shape.flops / (TFLOPS.get(settings.machine, ROUGH_TFLOPS) * 1e12) + 1e-4
    slow = SLOW if cell.subject == "1" else 1.0
    return PER_CELL_S + settings.pairs * (1 + slow) * launch


def build_s(cells: Sequence[PlannedCell], settings: Settings, n_jobs: int) -> float:
    """About how many seconds it takes to build the kernels of those `cells` that have none, `n_jobs` at a time."""
    kernels = kernels_of([cell for cell in cells if not cell.code])
    if settings.machine == CPU:
        return len(kernels) * PTX_S / n_jobs
    wheels = len({(kernel.subject, kernel.toolchain) for kernel in kernels})
    return len(kernels) * (PTX_S + MACHINE_CODE_S) / n_jobs + wheels * WHEEL_S


def timeout_s(cell: PlannedCell, settings: Settings) -> float:
    """Seconds after which a cell counts as hanging."""
    return 60.0 + PATIENCE * estimate_s(cell, settings)


def shard(cells: Sequence[PlannedCell], part: tuple[int, int], settings: Settings) -> list[PlannedCell]:
    """One part (index, count) of the cells: runs of neighbours that take about equally long; together all cells."""
    index, count = part
    ends = [0.0]
    for cell in cells:
        ends.append(ends[-1] + estimate_s(cell, settings))
    each = ends[-1] / count
    return [cell for cell, start in zip(cells, ends, strict=False) if min(int(start / each), count - 1) == index]


def kernels_of(cells: Sequence[PlannedCell]) -> list[Wanted]:
    """One cell per kernel that is to be built: subject, configuration and toolchain each once, no reference."""
    kernels: dict[tuple[str, str, str], Wanted] = {}
    for cell in map(wanted_of, cells):
        if not cell.is_reference:
            kernels.setdefault((cell.subject, cell.config, cell.toolchain), cell)
    return list(kernels.values())
