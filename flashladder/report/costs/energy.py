"""Speed, clock, power and energy per FLOP of runs that last for seconds: results/report/energy_<machine>.md and .csv.

Why: beside the paired timings it says what holds a kernel at each length, the power limit or its structure.
`python -m flashladder.bench.energy` measures on a GPU, into ``results/<machine>/energy*.json.gz``; `invoke report`
renders all files of a machine on one page, and the gate compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from flashladder.bench.table import LEGEND, Steady, steady
from flashladder.columns import csv_text, markdown
from flashladder.files import files_in
from flashladder.report.sweeps import named
from flashladder.report.tables import DASH, plain
from flashladder.results.files import load_as
from flashladder.results.schema import EnergyResult, Reference

FILES = "energy*.json.gz"
HEADER = ("S", "#", "configuration", "TFLOP/s", "MHz", "W", "pJ/FLOP", "limited by")
CSV = (
    "file", "subject", "dtype", "seq_len", "batch", "n_heads", "turn", "launches", "seconds", "joules", "tflops",
    "sm_clock_mhz", "watts", "pj_per_flop",
)  # fmt: skip


def render(results: Path) -> dict[str, bytes]:
    """Page and table of every machine whose runs are there, by name."""
    files: dict[str, bytes] = {}
    for folder in sorted({path.parent for path in files_in(results, f"*/{FILES}")}):
        found = {path.name: load_as(path, EnergyResult) for path in files_in(folder, FILES)}
        files[f"energy_{folder.name}.md"] = page(list(found.values())).encode()
        rows = [row for name, result in found.items() for row in _rows(name, result)]
        files[f"energy_{folder.name}.csv"] = csv_text(CSV, rows).encode()
    return files


def page(results: Sequence[EnergyResult]) -> str:
    """A machine's page: a section per file and dtype."""
    about = (
        "Kernels, FA2 and other libraries, launched back to back in turn, without a flush between launches; medians of "
        f"their turns. Power is that between two ticks of the GPU's energy counter. {LEGEND}"
    )
    parts = [f"# Speed, power and energy of seconds on end on an {plain(results[0].gpu.name)}", about]
    for result in results:
        parts.append(_where(result))
        found = steady(result)
        for dtype in dict.fromkeys(one.dtype for one in found):
            own = sorted((one for one in found if one.dtype == dtype), key=lambda one: one.seq_len)
            parts += [f"## {dtype}, at least {result.seconds:g} s a run", _table(own, result)]
    return "\n\n".join(parts) + "\n"


def _where(result: EnergyResult) -> str:
    gpu, turns = result.gpu, 1 + max((run.turn for run in result.runs), default=0)
    limit = f"{gpu.power_limit_w:.0f} W" if gpu.power_limit_w else DASH
    highest = f"{gpu.max_sm_clock_mhz} MHz" if gpu.max_sm_clock_mhz else DASH
    beside = [f"FA2 of torch {result.reference.torch}", *map(_told, sorted(result.references.items()))]
    return (
        f"At least {result.seconds:g} s a run, {turns} turn{'s' if turns > 1 else ''}: power limit {limit}, highest "
        f"clock {highest}, driver {gpu.driver}; {', '.join(beside)}."
    )


def _told(reference: tuple[str, Reference]) -> str:
    name, one = reference
    return f"{name} {one.version or f'of torch {one.torch}'}"


def _table(own: Sequence[Steady], result: EnergyResult) -> str:
    rows = [
        (
            str(one.seq_len), *named(one.subject, result.kernels), f"{one.tflops:.1f}",
            DASH if one.mhz is None else f"{one.mhz:.0f}", f"{one.watts:.0f}", f"{one.pj_per_flop:.3f}", one.limit,
        )
        for one in own
    ]  # fmt: skip
    return markdown(HEADER, rows, left=3)


def _rows(name: str, result: EnergyResult) -> Iterator[tuple[object, ...]]:
    """One row per run."""
    for run in result.runs:
        shape = run.shape
        yield (
            name, run.subject, run.dtype, shape.seq_len, shape.batch, shape.n_heads, run.turn, run.launches,
            run.seconds, run.joules, f"{run.tflops:.3f}", run.sm_clock_mhz, f"{run.watts:.2f}",
            f"{run.pj_per_flop:.4f}",
        )  # fmt: skip
