"""Paired timings against what the manifest says that they are: settings, processes, every cell, bounds of every look.

Why apart from `flashladder.gate.evidence.manifest`: that reads a folder; this compares one document.
Nothing to run here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from flashladder.cases.inputs import SEQ_LENS, shape_of
from flashladder.gate.evidence import bounds
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.ladder.grid import load_grid
from flashladder.ladder.manifest import Kernels, Timings
from flashladder.results.schema import A_A, BenchResult, Shape, kernel_key

Cell = tuple[str, str, Shape]  # series, dtype, shape
MEBIBYTE = 2**20


def problems(result: BenchResult, spec: Timings) -> Iterator[str]:
    """One phrase per thing that a timing lacks or holds otherwise."""
    settings = result.settings
    for name, expected, found in (
        ("purpose", spec.purpose, result.purpose),
        ("mode", spec.mode, result.mode),
        ("protocol_version", spec.protocol, result.protocol_version),
        ("settings.pairs", spec.pairs, settings.pairs),
        ("settings.blocks", spec.blocks, settings.blocks),
        ("settings.min_pairs", spec.min_pairs, settings.min_pairs),
        ("grid", spec.grid, result.sweep.grid if result.sweep else None),
        ("references", sorted(spec.references), sorted(result.references)),
    ):
        if expected != found:
            yield f"{name}: expected {expected}, found {found}"
    yield from _flush(result)
    yield from _processes(result, spec)
    yield from cells(result, spec)
    yield from _looks(result)


def _flush(result: BenchResult) -> Iterator[str]:
    """The L2 that the file claims could be edited together with the flush; that of configs/gpus stands apart."""
    key = gpu_key(result.gpu.name)
    described = load_gpus()[key].peaks.get("l2") if key else None
    if described is None:
        return
    least = int(2 * described.value * MEBIBYTE)
    if result.settings.flush_bytes < least:
        told = f"twice the L2 of configs/gpus/{key}.yaml, found {result.settings.flush_bytes}"
        yield f"settings.flush_bytes: expected at least {least}, {told}"


def _processes(result: BenchResult, spec: Timings) -> Iterator[str]:
    if [one.index for one in result.processes] != list(range(spec.processes)):
        yield f"processes: expected {spec.processes}, found {len(result.processes)}"
    for one in result.processes:
        if not one.started_utc.startswith(spec.day):
            yield f"process {one.index}: expected a start on {spec.day}, found {one.started_utc}"
        for when, others in (("before", one.foreign_before), ("after", one.foreign_after)):
            if others != 0:
                yield f"process {one.index}: expected no foreign processes {when}, found {others}"


def keys(of: Kernels) -> list[tuple[str, str]]:
    """Names and dtypes of the kernels that a manifest means, as result files write them."""
    found = of.configurations().items()
    return [(kernel_key(number, one.short_form()), one.dtype) for number, configs in found for one in configs]


def wanted(spec: Timings) -> list[tuple[str, str]]:
    """Every series and its dtype: kernels, then references and the floor in each dtype."""
    named = [(key, KernelConfig.parse(key[key.index("(") :]).dtype) for key in spec.kernels]
    kernels = [*(keys(spec.of) if spec.of else ()), *named]
    dtypes = dict.fromkeys(dtype for _, dtype in kernels)
    return [*kernels, *((name, dtype) for name in (*spec.references, A_A) for dtype in dtypes)]


def lengths(grid: str | None) -> tuple[int, ...]:
    """Lengths that a timing of a grid has, each once; without one the ladder's own."""
    return SEQ_LENS if grid is None else tuple(dict.fromkeys(shape.seq_len for shape in load_grid(grid).shapes))


def asked(spec: Timings) -> dict[int, tuple[Shape, ...]]:
    """Shapes at each length that a manifest names: those of the sweep's grid, none where it lacks that length."""
    if spec.grid is None:
        return {length: (shape_of(length),) for length in spec.seq_lens}
    shapes = [Shape(**asdict(shape)) for shape in load_grid(spec.grid).shapes]
    return {length: tuple(shape for shape in shapes if shape.seq_len == length) for length in spec.seq_lens}


def cells(result: BenchResult, spec: Timings) -> Iterator[str]:
    """Cells that are missing, doubled or too many; a length that is gone as a whole is one line."""
    measured: Counter[Cell] = Counter(
        (series.kernel, group.dtype, group.shape) for group in result.groups for series in group.series if series.pairs
    )
    by_length = asked(spec)
    known = ", ".join(map(str, lengths(spec.grid)))
    no_such = f"the grid {spec.grid} has no such length: expected one of {known}"
    yield from (f"S={n}: {no_such}" for n, shapes in by_length.items() if not shapes)
    series, shapes = wanted(spec), [shape for found in by_length.values() for shape in found]
    due = {(name, dtype, shape) for name, dtype in series for shape in shapes}
    for shape in shapes:
        for dtype in dict.fromkeys(dtype for _, dtype in series):
            own = [(name, dtype, shape) for name, other in series if other == dtype]
            yield from _at(own, measured, several=spec.purpose == "tune" and spec.grid is not None)
    yield from (f"{_told(cell)}: measured, and not in the manifest" for cell in measured if cell not in due)
    found, expected = set(result.kernels), {name for name, _ in series} - {A_A, *spec.references}
    yield from (f"kernel {name}: is missing" for name in sorted(expected - found))
    yield from (f"kernel {name}: is not in the manifest" for name in sorted(found - expected))


def _at(own: Sequence[Cell], measured: Counter[Cell], *, several: bool) -> Iterator[str]:
    """The cells of one dtype and shape."""
    _, dtype, shape = own[0]
    if not any(measured[cell] for cell in own):
        yield f"{dtype} S={shape.seq_len}: all of {len(own)} cells are missing"
        return
    for cell in own:
        n = measured[cell]
        if n == 0 or (n > 1 and not several):
            yield f"{_told(cell)}: expected 1 measurement, found {n or 'none'}"


def _told(cell: Cell) -> str:
    name, dtype, shape = cell
    return f"cell {name} {dtype} S={shape.seq_len} B={shape.batch} H={shape.n_heads}"


def _looks(result: BenchResult) -> Iterator[str]:
    """Bounds by which the outputs before and after timing were judged."""
    for group in result.groups:
        for series in group.series:
            for when, look in (("before", series.before), ("after", series.after)):
                if look is not None:
                    where = f"{_told((series.kernel, group.dtype, group.shape))}: {when} timing"
                    yield from (f"{where}: {line}" for line in bounds.problems(look, group.dtype, group.shape))
