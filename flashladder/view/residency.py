"""How many CTAs of each kernel an SM of every GPU holds, and what limits them: beside the ptxas table, and its CSV.

Why: registers and shared memory matter by the warps that they leave room for. A GPU runs the machine code for its own
architecture where that is among the rows, else the latest that it can run, as its driver chooses.

Run: ``invoke ptxas 16 --arch sm_80,sm_86,sm_89,sm_90``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
import textwrap

from flashladder.columns import csv_text, natural_width, table
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import Gpu, load_gpus
from flashladder.machine_code.ptxas import COLUMNS, Occupancy, PtxasRow

FACTS = ("ctas", "warps", "occupancy", "limited_by")  # of a GPU, in the CSV
_LETTERS = {"registers": "R", "shared memory": "S", "warps": "W", "CTAs": "C", "barriers": "B"}
LEGEND = (
    "CTAs of an SM x warps of a CTA, occupancy, limited by: R registers, S shared memory, W warps, C CTAs, B barriers."
)
Residency = Mapping[str, Occupancy]  # GPU to what its SM holds


def residency_of(row: PtxasRow, rows: Sequence[PtxasRow]) -> Residency:
    """What an SM holds of a kernel, on each GPU that would run the machine code of this row.

    Args:
        row: one of `rows`.
        rows: of the table; those of the same kernel for other architectures may serve a GPU better.
    """
    arches = {one.arch for one in rows if (one.kernel, one.config) == (row.kernel, row.config)}
    return {key: _of(row, gpu) for key, gpu in _described().items() if _best(gpu, arches) == row.arch}


def _described() -> Mapping[str, Gpu]:
    """The GPUs whose files describe an SM."""
    return {key: gpu for key, gpu in load_gpus().items() if gpu.describes_sm}


def _best(gpu: Gpu, arches: set[str]) -> str | None:
    """The latest of the architectures whose machine code a GPU runs."""
    return max((arch for arch in arches if gpu.runs(arch)), key=lambda arch: int(arch[3:].rstrip("af")), default=None)


def _of(row: PtxasRow, gpu: Gpu) -> Occupancy:
    threads = KernelConfig.parse(row.config).n_threads
    shared = row.smem_static + row.smem_dynamic
    return gpu.occupancy(registers=row.registers, threads=threads, shared_bytes=shared, barriers=row.barriers)


def as_data(row: PtxasRow, rows: Sequence[PtxasRow]) -> dict[str, object]:
    """A row with its occupancy, for JSON."""
    found = {
        gpu: {"ctas": one.ctas, "warps": one.warps, "occupancy": one.fraction, "limited_by": list(one.limited_by)}
        for gpu, one in residency_of(row, rows).items()
    }
    return {**asdict(row), "occupancy": found}


def to_csv(rows: Sequence[PtxasRow]) -> str:
    """The ptxas table with four columns for each GPU, empty where it runs another row; lines end in a newline."""
    gpus = list(_described())
    lines = []
    for row in rows:
        found, cells = residency_of(row, rows), list[object](asdict(row).values())
        for gpu in gpus:
            one = found.get(gpu)
            cells += [None] * len(FACTS) if one is None else [
                one.ctas, one.warps, f"{one.fraction:.4g}", "+".join(one.limited_by),
            ]  # fmt: skip
        lines.append(cells)
    return csv_text([*COLUMNS, *(f"{gpu}_{fact}" for gpu in gpus for fact in FACTS)], lines)


def render(rows: Sequence[PtxasRow], limit: int) -> str:
    """The occupancy of each kernel on each GPU: CTAs x warps of a CTA, percentage, and letters of what limits them.

    Args:
        rows: of the ptxas table, at least one.
        limit: columns of the terminal; where they are too few, a kernel's configuration has a line of its own.
    """
    gpus = _described()
    served: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells = served.setdefault((row.kernel, row.config), {})
        cells.update({gpu: _cell(one) for gpu, one in residency_of(row, rows).items()})
    shown = [key for key in gpus if any(key in cells for cells in served.values())]
    names = [(number, KernelConfig.parse(config)) for number, config in served]
    values = [[cells.get(key, "-") for key in shown] for cells in served.values()]
    titles = [gpus[key].title for key in shown]
    wide = [("#", "dtype", "configuration", *titles)]
    wide += [(n, c.dtype, c.brief(), *cells) for (n, c), cells in zip(names, values, strict=True)]
    if natural_width(wide) <= limit:
        lines = table(wide, limit, right={0})
    else:
        lines = []
        below = table([tuple(titles), *map(tuple, values)], limit - 2)
        for (number, config), line in zip(names, below[1:], strict=True):
            lines += [f"{number} {config.dtype} {config.brief()}", f"  {line}"]
        lines.insert(0, f"  {below[0]}")
    absent = [key for key in gpus if key not in shown]
    legend = LEGEND + (f" No code for {', '.join(absent)}: --arch." if absent else "")
    return "\n".join([*lines, "", *textwrap.wrap(legend, limit)]) + "\n"


def _cell(one: Occupancy) -> str:
    letters = "".join(_LETTERS[name] for name in one.limited_by)
    return f"{one.ctas}x{one.warps_per_cta} {100 * one.fraction:.1f}% {letters}"
