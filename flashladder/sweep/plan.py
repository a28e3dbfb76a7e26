"""The plan of a sweep: every cell of a grid in the order of measurement, with its address and estimated time.

A cell's address is a digest of everything that decides its result: subject, machine, settings and code. The address
names the cell's record. So a resumed sweep finds its own records and never uses a stale one. Nothing here measures,
builds or needs a GPU. Dry runs, sweeps, shards and `invoke verify` use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
import json

from flashladder.bench.references import FA2
from flashladder.columns import grouped
from flashladder.files import sha256
from flashladder.ladder.grid import FEWEST_PAIRS, Grid
from flashladder.problem import Problem
from flashladder.results.derive import CELL_EXTRA_BLOCKS
from flashladder.results.derive import Plan as Pairs
from flashladder.results.schema import PROTOCOL_VERSION, PlannedCell
from flashladder.toolchain import load_pins

DIGITS = 16  # hex digits of an address
CPU = "cpu"  # machine key of emulator grids
RUNGS = (2, 2, 4, 8, 8)
"""Pairs per candidate in each rung of a tuning run. Even numbers: kernel and FA2 are launched first equally often."""

# The constants below are for time estimates only.
TFLOPS = {"a100": 190.0, "rtx3090": 65.0, "rtx4090": 150.0, "h100": 330.0, "h200": 340.0}  # FA2's throughput
ROUGH_TFLOPS = 120.0  # FA2's throughput on an unknown GPU
SLOW = 6.0  # FA2's speed over that of iteration 1, which has bank conflicts
PER_CELL_S = 1.0  # inputs, reference, checks, warm-up
EMULATED_FLOPS = 2e8  # per second, of the emulator on one CPU
PTX_S, MACHINE_CODE_S = 1.0, 0.5  # to compile one kernel on one CPU; the emulator needs only PTX
WHEEL_S = 4.0  # other time per wheel: preparing a cached environment, linking, installing
PATIENCE = 20.0  # a cell times out after this many times its estimate


@dataclass(frozen=True)
class Settings:
    """Settings that all cells of a sweep share."""

    machine: str  # its key
    mode: str
    pairs: int = 0  # these three as in `flashladder.results.derive.Plan`; 0 on the emulator
    blocks: int = 0
    min_pairs: int = 0
    protocol: str = PROTOCOL_VERSION


def cell_of(subject: str, config: str, dtype: str, shape: Problem, toolchain: str = "") -> PlannedCell:
    """A cell without a code digest. Skips pydantic's validation, because a grid has thousands of cells."""
    return PlannedCell.model_construct(
        subject=subject, config=config, dtype=dtype, shape=shape, toolchain=toolchain, code="", address=""
    )  # fmt: skip


def with_code(cell: PlannedCell, code: str, settings: Settings) -> PlannedCell:
    """The cell with its code digest and its address."""
    return cell.model_copy(update={"code": code, "address": address_of(cell, code, settings)})


def address_of(cell: PlannedCell, code: str, settings: Settings) -> str:
    """The first 16 hex digits of the SHA-256 of the canonical JSON of cell, code and settings."""
    shape = cell.shape
    sizes: tuple[object, ...] = (shape.batch, shape.seq_len, shape.n_heads, shape.d_head)
    if not shape.is_square:  # other addresses stay as they were before problems had these numbers
        sizes = (*sizes, shape.kv_len, shape.n_kv_heads, shape.mask, *([shape.lengths] if shape.is_packed else []))
    facts = (cell.subject, cell.config, cell.dtype, sizes, cell.toolchain, code)
    parts = (json.dumps(one, sort_keys=True, separators=(",", ":")) for one in (facts, asdict(settings)))
    return sha256("".join(parts))[:DIGITS]


def title(cell: PlannedCell) -> str:
    """The cell as one line of text: ``16 (FP16, ...): ... S=4096 B=16 H=16``, and what is not as usual."""
    name, shape = f"{cell.subject}{f' cuda {cell.toolchain}' if cell.toolchain else ''}", cell.shape
    sizes = f"S={shape.seq_len} B={shape.batch} H={shape.n_heads}"
    return ", ".join(filter(None, (f"{name} {cell.config or cell.dtype} {sizes}", shape.kind)))


@dataclass(frozen=True)
class Plan:
    """All cells of a grid on one machine, in the order of measurement."""

    grid: Grid
    settings: Settings
    cells: tuple[PlannedCell, ...]

    @property
    def unbuilt(self) -> list[PlannedCell]:
        """One cell per kernel that is not built, that is per subject, configuration and toolchain. No references."""
        cells = (cell for cell in self.cells if cell.config and not cell.code)
        return list({(cell.subject, cell.config, cell.toolchain): cell for cell in cells}.values())

    def estimate_s(self, cells: Sequence[PlannedCell]) -> float:
        """Estimated seconds for `cells` on one GPU or one CPU."""
        return sum(estimate_s(cell, self.settings) for cell in cells)


def settings_of(grid: Grid, machine: str) -> Settings:
    """The settings with which a machine measures a grid."""
    if grid.mode == "emulator":
        return Settings(CPU, grid.mode)
    if grid.mode == "tune":  # the smallest rung
        return Settings(machine, grid.mode, min(RUNGS), min(RUNGS), FEWEST_PAIRS)
    pairs = pairs_of(grid.pairs)
    return Settings(machine, grid.mode, pairs.pairs, pairs.blocks, pairs.min_pairs)


def pairs_of(pairs: int) -> Pairs:
    """The timer's plan for this number of pairs per cell: eight blocks, or one per pair if there are fewer pairs."""
    usual = Pairs()
    fewest = min(usual.min_pairs, pairs)
    return Pairs(pairs=pairs, blocks=min(usual.blocks, pairs), extra_blocks=CELL_EXTRA_BLOCKS, min_pairs=fewest)


def wanted(grid: Grid) -> list[PlannedCell]:
    """The cells of a grid, without code digests: first the kernels, grouped by environment, then the references.

    The order keeps cells of one environment together, so its worker stays warm. Within an environment it keeps cells of
    one dtype and shape together, so the worker reuses its inputs.
    """
    pinned = load_pins().cuda
    names = () if grid.mode == "emulator" else (FA2, *grid.references)
    cells: list[PlannedCell] = []
    for toolchain in grid.toolchains:
        other = "" if toolchain == pinned else toolchain
        kernels = (
            cell_of(cell.iteration.description, cell.config.short_form(), cell.config.dtype, cell.shape, other)
            for cell in grid.cells
        )
        for subject in grouped(kernels, lambda one: one.subject).values():
            cells += sorted(subject, key=lambda one: (one.dtype != "fp16", one.shape.seq_len, one.shape.batch))
    cells += [cell_of(name, "", dtype, shape) for dtype in grid.dtypes for shape in grid.shapes for name in names]
    return list(dict.fromkeys(cells))


def make(grid: Grid, machine: str, digests: Callable[[Sequence[PlannedCell]], Sequence[str]]) -> Plan:
    """The plan of a grid on `machine`; `digests` returns each cell's code digest, empty if it is not built."""
    settings, cells = settings_of(grid, machine), wanted(grid)
    planned = (with_code(cell, code, settings) for cell, code in zip(cells, digests(cells), strict=True))
    return Plan(grid, settings, tuple(planned))


def request_of(made: Plan, cell: PlannedCell, settings: Settings, pairs: Pairs, **more: object) -> dict[str, object]:
    """The request for a cell, as JSON that a worker reads; `more` contains the fields of a tuning rung."""
    return {
        "grid": made.grid.name,
        "grid_sha256": made.grid.sha256,
        "mode": settings.mode,
        "cell": cell.model_dump(mode="json"),
        "plan": asdict(pairs),
        "settings": {name: getattr(settings, name) for name in ("pairs", "blocks", "min_pairs")},
        **more,
    }


def shard(cells: Sequence[PlannedCell], part: tuple[int, int] | None, settings: Settings) -> Sequence[PlannedCell]:
    """One part (index, count) of the cells: consecutive cells that take about 1/count of the time. All for None."""
    if part is None:
        return cells
    index, count = part
    ends = [0.0, *accumulate(estimate_s(cell, settings) for cell in cells)]
    each = ends[-1] / count
    return [cell for cell, start in zip(cells, ends, strict=False) if min(int(start / each), count - 1) == index]


def pair_s(shape: Problem, machine: str, slow: float = 1.0) -> float:
    """Estimated seconds of one pair of launches: FA2, and a kernel that is `slow` times slower."""
    return (1 + slow) * (shape.flops / (TFLOPS.get(machine, ROUGH_TFLOPS) * 1e12) + 1e-4)


def estimate_s(cell: PlannedCell, settings: Settings) -> float:
    """Estimated seconds of a cell on its machine."""
    if settings.machine == CPU:
        return 0.3 + cell.shape.flops / EMULATED_FLOPS
    return PER_CELL_S + settings.pairs * pair_s(cell.shape, settings.machine, SLOW if cell.subject == "1" else 1.0)


def build_s(made: Plan, n_jobs: int) -> float:
    """Estimated seconds to build the missing kernels of a plan, `n_jobs` at a time."""
    kernels = made.unbuilt
    if made.settings.machine == CPU:
        return len(kernels) * PTX_S / n_jobs
    wheels = len({(kernel.subject, kernel.toolchain) for kernel in kernels})
    return len(kernels) * (PTX_S + MACHINE_CODE_S) / n_jobs + wheels * WHEEL_S
