"""What a KV block costs: figures follow from the locks, tiles compare, and the section shows all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import kv_block as script
from analysis.page import why
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_all
from flashladder.lock.command import locked_kernel
from flashladder.names import GPUS
from flashladder.report.blocks import STRONGEST
from flashladder.report.book import Book
from flashladder.report.counters import costs, present
from flashladder.report.data import Ladder, collect


@pytest.fixture(scope="module")
def ladder() -> Ladder:
    return collect()


@pytest.mark.parametrize("gpu", GPUS)
def test_every_iteration_multiplies_as_much(gpu: str) -> None:
    """64 x 64 scores take 2 x 64 x 64 x 128 multiply-adds, an mma 16 x 8 x 16; all else differs."""
    found = costs(gpu)
    assert list(found) == [one.number for one in load_all() if load_gpus()[gpu].arch in one.family.targets.arches]
    assert {cost.kinds["tensor"] for cost in found.values()} == {2 * 64 * 64 * 128 / (16 * 8 * 16)}
    assert len({cost.total for cost in found.values()}) > 8


def test_figures_are_the_locks_counts_scaled_to_one_tile() -> None:
    step = load_all()[8]
    config = step.configs["h200"]
    kernel = locked_kernel(step.number, config, load_gpus()["h200"].arch)
    assert kernel is not None
    cost = costs("h200")[9]
    scale = config.n_threads / 32 * 64 * 64 / (config.B_r * config.B_c)
    assert config.B_r > 64
    assert cost.kinds["ldsm"] == kernel.main_loop["LDSM"] * scale
    assert cost.kinds["local"] == (kernel.main_loop.get("LDL", 0) + kernel.main_loop.get("STL", 0)) * scale
    assert cost.total == kernel.main_loop["total"] * scale


def test_without_a_lock_there_is_nothing(tmp_path: Path) -> None:
    assert costs("a100", tmp_path) == {}
    assert present({}) == []


def test_the_script_prints_a_row_per_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--gpu", "h200"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["#", "tile", "all", "tensor"]
    assert len(lines) == 1 + len(costs("h200"))
    assert script.main(["--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith('1,"64,64,4",2912,512,928,')
    with pytest.raises(SystemExit) as left:
        script.main(["--gpu", "v100"])
    assert left.value.code == 2


def test_the_page_has_a_heat_map(ladder: Ladder) -> None:
    table = why.heat_map(Book(ladder), "h200")
    by_kind = {row[0].text: row[1:] for row in table.rows}
    assert [cell.text for cell in by_kind["moves"][7:9]] == ["764", "242"]
    assert max(cell.heat or 0 for cell in by_kind["moves"]) == by_kind["moves"][7].heat == STRONGEST
    assert all(cell.records for cell in by_kind["all"])
