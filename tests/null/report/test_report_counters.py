"""The report's table of counters: committed bytes, every iteration, honest about what was not measured."""

from __future__ import annotations

import csv
import io
from pathlib import Path
import shutil

import pytest

from flashladder.columns import csv_text
from flashladder.emulate.reading import EmulatedCounters, load_reading
from flashladder.report import (
    command as report,
)
from flashladder.report import (
    counters as report_counters,
)
from flashladder.report import (
    data as report_data,
)
from flashladder.report import (
    tables as report_tables,
)
from flashladder.results.published import PUBLISHED


@pytest.fixture(scope="module")
def reading() -> EmulatedCounters:
    return load_reading()


@pytest.fixture(scope="module")
def ladder() -> report_data.Ladder:
    return report_data.collect()


def test_the_committed_tables_are_rendered_byte_for_byte(ladder: report_data.Ladder, reading: EmulatedCounters) -> None:
    assert ladder.emulated == reading
    assert (report.REPORT / "counters.md").read_text(encoding="utf-8") == report_counters.document(ladder, reading)
    rows = report_counters.csv_rows(ladder, reading)
    assert (report.REPORT / "counters.csv").read_bytes() == csv_text(report_counters.COLUMNS, rows).encode()


def test_counters_stand_beside_the_speed_of_the_same_kernel(
    ladder: report_data.Ladder, reading: EmulatedCounters
) -> None:
    text = csv_text(report_counters.COLUMNS, report_counters.csv_rows(ladder, reading))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [int(row["iteration"]) for row in rows] == list(range(1, 29))
    assert int(rows[0]["shared_ld_conflicts"]) > 0
    assert rows[1]["shared_ld_conflicts"] == "0"
    machine = report_tables.headline_machine(ladder)
    assert machine is not None
    for row, line in zip(ladder.rows(machine, "fp16", "a100"), rows, strict=True):
        assert line["config"] == row.config
        summary = report_tables.headline(row)
        if summary is None:
            assert (row.iteration.number > 19, line["pct_of_fa2_seq4096"]) == (True, "")
            continue
        assert float(line["pct_of_fa2_seq4096"]) == pytest.approx(summary.pct, abs=1e-3)
        shared = [int(line[f"shared_ld_{name}"]) for name in ("wavefronts", "wavefronts_ideal", "conflicts")]
        assert shared[0] == shared[1] + shared[2]


def test_without_measurements_there_are_counters_only(tmp_path: Path, reading: EmulatedCounters) -> None:
    shutil.copytree(PUBLISHED, tmp_path / "published")
    bare = report_data.collect(tmp_path)
    assert bare.emulated is None
    assert not any(name.startswith("counters") for name in report.render(bare))
    text = report_counters.document(bare, reading)
    assert "% of FA2" not in text
    assert "33,849,344" in text
    assert report_counters.csv_rows(bare, reading)[0][-5:-1] == (None, None, None, None)
