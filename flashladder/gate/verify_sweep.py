"""A packed sweep against its plan: every planned cell measured once or failed, nothing else, each under its own name.

Why: a cell that was taken out of a document together with its samples leaves tables that follow from the rest; the plan
that the document carries misses it. A cell's address follows from the cell, its code and how it was measured, so that
neither can be exchanged for another. Nothing to run here; `invoke verify` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
import re

from flashladder.bench.references import FA2
from flashladder.files import relative, sha256
from flashladder.ladder.grid import load_grid
from flashladder.paths import CONFIGS
from flashladder.results.cells import EmulatedCell, PlannedCell, Sweep
from flashladder.results.machine import machine_name
from flashladder.results.origin import Kernel, kernel_key
from flashladder.results.schema import A_A, BenchResult, EmulatedSweepResult, Shape
from flashladder.sweep.plan import CPU, Settings, address_of, title, wanted, wanted_of

GRIDS = CONFIGS / "grids"
Swept = BenchResult | EmulatedSweepResult


def problems(result: Swept) -> list[str]:
    """One line per cell that is missing, doubled, not planned, or not what its address says."""
    if result.sweep is None:
        return []
    settings = _settings(result)
    found = [line for cell in result.sweep.planned for line in _of_cell(cell, result, settings)]
    return [*found, *_counted(result, result.sweep)]


def grid_note(sweep: Sweep) -> str | None:
    """What became of the grid since: None where its file and its cells are those that were measured.

    Cells change with the iterations too, when a tuned configuration is written there; so that this is no failure.
    """
    path = GRIDS / f"{sweep.grid}.yaml"
    if not path.is_file():
        return f"{relative(path)} is no more"
    if sha256(path.read_bytes()) != sweep.grid_sha256:
        return f"{relative(path)} was changed since"
    now, then = set(wanted(load_grid(sweep.grid))), set(map(wanted_of, sweep.planned))
    told = f"{relative(path)} gives {len(now - then)} other cells today, and {len(then - now)} no more"
    return None if now == then else told


def key_of(cell: PlannedCell) -> str:
    """How series name what a cell measures."""
    if cell.subject == FA2:
        return A_A
    number, variant = _subject(cell)
    return kernel_key(number, cell.config, variant) if cell.config else cell.subject


def _subject(cell: PlannedCell) -> tuple[int, str]:
    """Iteration and variant of a kernel's cell; zero for a reference."""
    digits = re.match(r"\d*", cell.subject, re.ASCII)
    number = digits[0] if digits else ""
    variant = cell.subject.removeprefix(number) + (f" cuda {cell.toolchain}" if cell.toolchain else "")
    return int(number or 0), variant


def _settings(result: Swept) -> Settings:
    """How the cells were measured, as their addresses know it."""
    if isinstance(result, EmulatedSweepResult):
        return Settings(CPU, "emulator", protocol=result.protocol_version)
    mode = "tune" if result.purpose == "tune" else result.mode
    own = result.settings
    return Settings(
        machine_name(result.gpu.name), mode, own.pairs, own.blocks, own.min_pairs, protocol=result.protocol_version
    )


def _of_cell(cell: PlannedCell, result: Swept, settings: Settings) -> Iterator[str]:
    """What is wrong with one planned cell: its address, its configuration, its code."""
    address = address_of(wanted_of(cell), cell.code, settings)
    if address != cell.address:
        yield f"cell {title(cell)}: address {cell.address} does not follow from it: expected {address}"
    failed = {failure.address for failure in result.sweep.failures} if result.sweep else set()
    if cell.address in failed:
        return
    if cell.config:
        yield from _code(cell, result.kernels.get(key_of(cell)))
    elif isinstance(result, BenchResult):
        reference = result.reference if cell.subject == FA2 else result.references.get(cell.subject)
        if reference is None:
            yield f"cell {title(cell)}: the result does not say which {cell.subject} this is"


def _code(cell: PlannedCell, kernel: Kernel | None) -> Iterator[str]:
    if kernel is None:
        yield f"cell {title(cell)}: the result does not say which machine code this is"
        return
    code = kernel.text_sha256 or kernel.build
    if code != cell.code:
        yield f"cell {title(cell)}: code {str(code)[:12]}, planned {cell.code[:12] or 'none'}"
    if kernel.dtype != cell.dtype:
        yield f"cell {title(cell)}: dtype {cell.dtype}, of a kernel for {kernel.dtype}"


def _counted(result: Swept, sweep: Sweep) -> list[str]:
    """Cells against measurements: each once, or failed and not at all; a tuning run times survivors again."""
    failed = {failure.address for failure in sweep.failures}
    if isinstance(result, EmulatedSweepResult):
        names = {cell.address: cell.address for cell in sweep.planned}
        measured = Counter(cell.address for cell in result.cells)
        found = [f"cell {cell.address}: wrong, and no failure" for cell in result.cells if not _is_right(cell)]
    else:
        names = {cell.address: _series(key_of(cell), cell.dtype, cell.shape) for cell in sweep.planned}
        every = ((series, group) for group in result.groups for series in group.series if series.pairs)
        measured = Counter(_series(series.kernel, group.dtype, group.shape) for series, group in every)
        found = []
    again = isinstance(result, BenchResult) and result.purpose == "tune"
    for cell in sweep.planned:
        n, due = measured[names[cell.address]], int(cell.address not in failed)
        if n != due and not (again and n > due > 0):
            found.append(f"cell {title(cell)}: measured {n} times, expected {due}" + ", as it failed" * (not due))
    planned = Counter(names.values())
    found += [f"{name}: planned twice" for name, n in planned.items() if n > 1]
    return found + [f"{name}: measured, not planned" for name in measured if name not in planned]


def _series(kernel: str, dtype: str, shape: Shape) -> str:
    return f"{kernel} {dtype} S={shape.seq_len} B={shape.batch} H={shape.n_heads} D={shape.d_head}"


def _is_right(cell: EmulatedCell) -> bool:
    return cell.accuracy.ok and not cell.hazards
