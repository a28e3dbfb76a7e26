"""Occupancy beside the ptxas table: each GPU has the code that it would run, in table, CSV and JSON alike."""

from __future__ import annotations

import csv
import io

import pytest

from flashladder.ladder.config import EXAMPLE, KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.machine_code.ptxas import COLUMNS, PtxasRow, PtxasUsage
from flashladder.view.code import occupancy_of, occupancy_table, ptxas_csv

SMEM = KernelConfig.parse(EXAMPLE).smem_bytes


def row(arch: str, registers: int = 255, kernel: str = "16", config: str = EXAMPLE) -> PtxasRow:
    usage = PtxasUsage(arch, registers, 0, 0, 0, 1, 0, None, 1.5)
    return PtxasRow.of(kernel, config, KernelConfig.parse(config).smem_bytes, usage)


def test_a_gpu_runs_the_code_for_its_own_architecture_else_the_latest_that_it_can() -> None:
    rows = [row("sm_80"), row("sm_86"), row("sm_90")]
    assert [set(occupancy_of(one, rows)) for one in rows] == [{"a100"}, {"rtx3090", "rtx4090"}, {"h100", "h200"}]
    assert set(occupancy_of(rows[0], rows[:1])) == {"a100", "rtx3090", "rtx4090"}
    assert set(occupancy_of(rows[1], [row("sm_89", kernel="15"), rows[1]])) == {"rtx3090", "rtx4090"}


def test_the_numbers_are_those_of_the_gpus() -> None:
    (one,) = (row("sm_80", 168),)
    found = occupancy_of(one, [one])
    assert SMEM == 49152
    assert {key: (value.ctas, value.warps, value.limited_by) for key, value in found.items()} == {
        "a100": (3, 12, ("registers", "shared memory")),
        "rtx3090": (2, 8, ("shared memory",)),
        "rtx4090": (2, 8, ("shared memory",)),
    }


def test_the_csv_has_a_column_for_every_fact_of_every_gpu() -> None:
    rows = [row("sm_80"), row("sm_90", 128)]
    first, second = csv.DictReader(io.StringIO(ptxas_csv(rows)))
    assert list(first)[: len(COLUMNS)] == list(COLUMNS)
    assert len(first) == len(COLUMNS) + 4 * len(load_gpus())
    assert (first["a100_ctas"], first["a100_warps"], first["a100_occupancy"], first["a100_limited_by"]) == (
        "2", "8", "0.125", "registers",
    )  # fmt: skip
    assert first["h200_ctas"] == second["a100_ctas"] == ""
    assert (second["h200_ctas"], second["h200_limited_by"]) == ("4", "registers+shared memory")
    assert (second["registers"], second["config"], second["cmem"]) == ("128", EXAMPLE, "")


@pytest.mark.parametrize("limit", [80, 200])
def test_the_table_fits_and_names_what_it_lacks(limit: int) -> None:
    text = occupancy_table([row("sm_80"), row("sm_86"), row("sm_80", 128, "15")], limit)
    lines = text.splitlines()
    assert max(map(len, lines)) <= limit
    assert "2x4 12.5% R" in text
    assert "RTX 3090" in text
    assert "No code for h100, h200: --arch." in text
    assert len([line for line in lines if line.startswith(("15 ", "16 "))]) == 2
    whole = occupancy_table([row(arch) for arch in ("sm_80", "sm_86", "sm_89", "sm_90")], limit)
    assert "No code" not in whole
    assert max(map(len, whole.splitlines())) <= limit
