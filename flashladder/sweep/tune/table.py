"""All candidates of a tuning run as rows: percent of FA2, pairs, registers, spills, warps that an SM holds.

Why: a ranking says who won; the table says what the losers have in common. Registers and spills are ptxas's, as the
document keeps them; residency follows from them and from the GPU's description. Run: ``python analysis/tuning.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache

from flashladder.columns import csv_text
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.family import Family
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.ladder.iteration import load_iteration
from flashladder.results.schema import BenchResult
from flashladder.results.statistics import stated
from flashladder.sweep.tune.space import resident_warps


@dataclass(frozen=True)
class Row:
    """One candidate.

    Attributes:
        pct: percent of FA2's speed; `low` and `high` end its 95 % interval, None where the pairs are too few for one.
        live: registers per thread that accumulators and fragments take on paper.
        registers: per thread, as compiled; None where the driver compiled it.
        spilled: bytes per thread, stored and loaded.
        warps: that one SM holds at once.
        failure: why there are no times; empty where there are.
    """

    iteration: int
    dtype: str
    tile: str
    config: str
    pct: float | None
    low: float | None
    high: float | None
    pairs: int
    live: int
    registers: int | None
    spilled: int | None
    warps: int | None
    failure: str = ""


def rows_of(document: BenchResult) -> list[Row]:
    """A row per candidate, by iteration and dtype, those with the most pairs and the fastest first; failures last.

    Raises:
        FlashladderError: the document is of no sweep, or of a GPU without a description.
    """
    key = gpu_key(document.gpu.name)
    if document.sweep is None or key is None:
        raise FlashladderError("not a tuning run on a GPU of configs/gpus", found=document.gpu.name)
    if others := [one.kernel for one in document.summaries if one.kernel not in document.kernels]:
        raise FlashladderError("not a tuning run", expected="candidates alone", found=f"{others[0]} beside them")
    gpu, enough = load_gpus()[key], document.settings.min_pairs
    found = []
    for one in stated(document).summaries:
        kernel, config = document.kernels[one.kernel], KernelConfig.parse(document.kernels[one.kernel].config)
        honest, used = one.n_pairs >= enough, kernel.registers
        found.append(
            Row(
                iteration=kernel.iteration,
                dtype=one.dtype,
                tile=config.tile,
                config=config.brief(),
                pct=one.pct,
                low=one.pct_low if honest else None,
                high=one.pct_high if honest else None,
                pairs=one.n_pairs,
                live=_family(kernel.iteration).live_registers(config),
                registers=used,
                spilled=None if kernel.spill_stores is None else kernel.spill_stores + (kernel.spill_loads or 0),
                warps=None if used is None else resident_warps(config, used, gpu),
            )
        )
    found.sort(key=lambda row: (row.iteration, row.dtype, -min(row.pairs, enough), -(row.pct or 0)))
    cells = {cell.address: cell for cell in document.sweep.planned}
    for failure in document.sweep.failures:
        cell, config = cells[failure.address], KernelConfig.parse(cells[failure.address].config)
        told = f"{failure.kind}: {failure.message}"
        found.append(
            Row(
                int(cell.subject), cell.dtype, config.tile, config.brief(), None, None, None, 0,
                _family(int(cell.subject)).live_registers(config), None, None, None, told,
            )
        )  # fmt: skip
    return found


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV; numbers with four digits, an empty cell where there is none."""
    return csv_text(
        [field.name for field in fields(Row)],
        ([f"{cell:.4g}" if isinstance(cell, float) else cell for cell in asdict(row).values()] for row in rows),
    )


@lru_cache
def _family(number: int) -> Family:
    """That of an iteration: asked for every candidate."""
    return load_iteration(number).family
