"""The tables of counters and of KV blocks, and the page of the emulator's speed."""

from __future__ import annotations

from pathlib import Path
import shutil

import pytest

from flashladder.emulate.reading import load_reading
from flashladder.files import dump_json, write_atomic
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_all
from flashladder.names import GPUS
from flashladder.paths import ROOT
from flashladder.report import command as report
from flashladder.report import counters as report_counters
from flashladder.report import data as report_data
from flashladder.report.counters import costs
from flashladder.results.files import read_json
from flashladder.results.published import PUBLISHED


def test_without_measurements_there_are_counters_only(tmp_path: Path) -> None:
    shutil.copytree(PUBLISHED, tmp_path / "published")
    bare = report_data.collect(tmp_path)
    assert bare.emulated is None
    assert not any(name.startswith("counters") for name in report.render(bare))
    text, table = (data.decode() for data in report_counters.render(bare, load_reading()).values())
    assert "% of FA2" not in text
    assert "33,849,344" in text
    assert ",,,,," in table.splitlines()[1]


@pytest.mark.parametrize("gpu", GPUS)
def test_every_iteration_multiplies_as_much(gpu: str) -> None:
    """64 x 64 scores take 2 x 64 x 64 x 128 multiply-adds, an mma 16 x 8 x 16; all else differs."""
    found = costs(gpu)
    assert list(found) == [one.number for one in load_all() if load_gpus()[gpu].arch in one.family.targets.arches]
    assert {cost.kinds["tensor"] for cost in found.values()} == {2 * 64 * 64 * 128 / (16 * 8 * 16)}
    assert len({cost.total for cost in found.values()}) > 8


def test_a_slower_sample_changes_page_and_plot(tmp_path: Path) -> None:
    document = read_json(ROOT / report_counters.SAMPLES)
    write_atomic(tmp_path / report_counters.SAMPLES, dump_json(document))
    before = report_counters.speed(tmp_path)
    document["runs"][0]["seconds"] = [10 * seconds for seconds in document["runs"][0]["seconds"]]
    write_atomic(tmp_path / report_counters.SAMPLES, dump_json(document))
    after = report_counters.speed(tmp_path)
    assert {path.name for path in before} == {"speed.md", "speed.svg"}
    assert {before[path] == after[path] for path in before} == {False}
