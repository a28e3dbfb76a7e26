"""Tables of the report as CSV, for programs: the progression, and every cell measured.

Columns are named once, here. A number that there is not is an empty field. Nothing to run here; `invoke report` does.
"""

from __future__ import annotations

from flashladder.names import PUBLISHED_GPU
from flashladder.report.data import MODE, Ladder, Machine, Row
from flashladder.report.tables import STATISTICS, headline, rounded, sets_of

PROGRESSION = (
    "machine", "gpu", "rung", "mode", "dtype", "configs_of", "iteration", "title", "config", "tflops_seq4096",
    "fa2_tflops_seq4096", "sm_clock_mhz_seq4096", "pct_of_fa2_seq4096", "pct_low_seq4096", "pct_high_seq4096",
    "verdict_seq4096", "pct_of_fa2_hmean", "pct_low_hmean", "pct_high_hmean", "a_a_floor_points",
    "published_a100_pct_seq4096", "published_a100_pct_hmean", "published_rtx3090_pct_seq4096",
    "published_rtx3090_pct_hmean", "registers", "spill_store_bytes", "spill_load_bytes", "text_sha256",
)  # fmt: skip
CELLS = (
    "machine", "gpu", "rung", "mode", "iteration", "config", "dtype", "seq_len", "batch", "n_heads", "d_head", "tflops",
    "fa2_tflops", "kernel_us", "fa2_us", "pct_of_fa2", "pct_low", "pct_high", "verdict", "n_pairs", "dropped_share",
    "sm_clock_mhz", "text_sha256",
)  # fmt: skip


def progression(ladder: Ladder) -> list[tuple[object, ...]]:
    """Rows of progression.csv: one per machine, dtype, set of configurations and iteration."""
    sets: list[tuple[Machine | None, str, str]] = [
        (machine, dtype, key) for machine in ladder.machines for dtype, key in sets_of(ladder, machine)
    ]
    return [
        _progression_row(ladder, machine, dtype, key, row)
        for machine, dtype, key in sets or [(None, "fp16", PUBLISHED_GPU)]
        for row in ladder.rows(machine, dtype, key)
    ]


def _progression_row(ladder: Ladder, machine: Machine | None, dtype: str, key: str, row: Row) -> tuple[object, ...]:
    summary, mean, locked = headline(row), row.measured.mean if row.measured else None, row.locked
    cells = [ladder.published.find(row.iteration.number, gpu, s) for gpu in ladder.published.gpus for s in STATISTICS]
    published = [cell.value if cell else None for cell in cells]
    where = (machine.name, machine.gpu.name, "+".join(machine.rungs), MODE) if machine else (None,) * 4
    fa2 = row.measured.fa2 if row.measured else None
    timed = (
        (rounded(row.tflops), rounded(fa2[1]), rounded(summary.sm_clock_mhz, 0), rounded(summary.pct),
         rounded(summary.pct_low), rounded(summary.pct_high), summary.verdict)
        if fa2 and summary else (None,) * 7
    )  # fmt: skip
    means = (rounded(mean.pct), rounded(mean.pct_low), rounded(mean.pct_high)) if mean else (None,) * 3
    floor = rounded(row.measured.floor) if row.measured else None
    code = (
        (locked.registers, locked.spill_stores, locked.spill_loads, locked.text_sha256) if locked else (None,) * 4
    )  # fmt: skip
    iteration = row.iteration
    return (*where, dtype, key, iteration.number, iteration.title, row.config, *timed, *means, floor, *published, *code)


def cells(ladder: Ladder) -> list[tuple[object, ...]]:
    """Rows of cells.csv: every measured kernel at every length."""
    return [
        (
            machine.name, machine.gpu.name, "+".join(machine.rungs), MODE, number, config, one.dtype, length,
            one.shape.batch, one.shape.n_heads, one.shape.d_head, rounded(one.tflops), rounded(one.reference_tflops),
            rounded(one.kernel_us), rounded(one.reference_us), rounded(one.pct), rounded(one.pct_low),
            rounded(one.pct_high), one.verdict, one.n_pairs, rounded(one.dropped_share), rounded(one.sm_clock_mhz, 0),
            measured.kernel.text_sha256,
        )
        for machine in ladder.machines
        for (number, config), measured in sorted(machine.measured.items())
        for length, one in sorted(measured.summaries.items())
    ]  # fmt: skip
