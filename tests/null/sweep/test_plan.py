"""From a grid to cells: which, in which order, under which addresses, how fast, and in which shards."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
import json
from pathlib import Path
from typing import Any

import pytest

from flashladder.build.store import default_jobs
from flashladder.ladder.grid import load_grid
from flashladder.problem import Problem
from flashladder.results.schema import PlannedCell
from flashladder.sweep import plan, screen
from flashladder.sweep.plan import Settings, address_of, cell_of, title, with_code
from flashladder.sweep.records import Records
from flashladder.sweep.screen import duration
from tests.null.sweep_fixture import EMULATED, digests, emulated, planned

SETTINGS = Settings("h200", "event-free", 24, 8, 20)
SHAPE = Problem(batch=16, seq_len=4096, n_heads=16, d_head=128)
CELL = cell_of("16", "(FP16, 128, 128, 64, 4): x", "fp16", SHAPE)


def test_shapes_references_and_toolchains_are_axes_and_the_pinned_toolchain_is_no_other(tmp_path: Path) -> None:
    cells = planned(tmp_path, {"references": ["cudnn"], "toolchains": ["13.0", "13.1"]}).cells
    assert {cell.subject for cell in cells} == {"1", "16", "fa2", "cudnn"}
    assert {cell.toolchain for cell in cells if cell.config} == {"", "13.1"}
    assert {cell.toolchain for cell in cells if not cell.config} == {""}
    assert len(cells) == 2 * 2 * 2 + 2 * 2


def test_a_cell_of_few_pairs_needs_no_more_than_those() -> None:
    assert (plan.pairs_of(5).min_pairs, plan.pairs_of(24).min_pairs) == (5, 20)


def test_cells_of_one_environment_follow_each_other(tmp_path: Path) -> None:
    subjects = [cell.subject for cell in plan.wanted(load_grid("h200"))]
    changes = sum(a != b for a, b in pairwise(subjects) if a.isdigit() and b.isdigit())
    assert changes == 15
    kernels = [cell for cell in plan.wanted(load_grid("h200")) if cell.subject == "7"]
    inputs = [(cell.dtype, cell.shape) for cell in kernels]
    assert sum(a != b for a, b in pairwise(inputs)) == len(set(inputs)) - 1


def test_another_cell_code_or_setting_has_another_address() -> None:
    heads = Problem(batch=16, seq_len=4096, n_heads=8, d_head=128)
    of_cell = {"subject": "15", "config": "y", "dtype": "bf16", "toolchain": "13.1", "shape": heads}
    run: dict[str, Any] = {"machine": "h100", "mode": "tune", "pairs": 48, "blocks": 4, "min_pairs": 2, "protocol": "0"}
    every = [
        *(address_of(CELL, code, SETTINGS) for code in "cd"),
        *(address_of(CELL.model_copy(update={name: value}), "c", SETTINGS) for name, value in of_cell.items()),
        *(address_of(CELL, "c", replace(SETTINGS, **{name: value})) for name, value in run.items()),
    ]
    assert len(set(every)) == len(every) == 13


def test_an_address_is_for_ever() -> None:
    assert address_of(CELL, "c", replace(SETTINGS, protocol="1")) == "7c3179c278376474"
    planned = with_code(CELL, "c", replace(SETTINGS, protocol="1"))
    assert (planned.address, planned.code) == ("7c3179c278376474", "c")
    assert title(planned) == "16 (FP16, 128, 128, 64, 4): x S=4096 B=16 H=16"


def test_other_lengths_heads_and_masks_have_other_addresses_and_titles() -> None:
    own: list[dict[str, Any]] = [{}, {"kv_len": 77}, {"n_kv_heads": 8}, {"mask": "causal"}]
    cells = [
        CELL.model_copy(update={"shape": Problem.model_validate({**SHAPE.model_dump(), **changed})}) for changed in own
    ]
    assert len({address_of(cell, "c", SETTINGS) for cell in cells}) == len(cells)
    assert title(cells[-1]) == "16 (FP16, 128, 128, 64, 4): x S=4096 B=16 H=16, causal"


@pytest.mark.parametrize("count", [1, 3, 100])
def test_shards_are_all_cells_once_and_take_about_equally_long(count: int) -> None:
    made = plan.make(load_grid("h200"), "h200", digests)
    shards = [plan.shard(made.cells, (index, count), made.settings) for index in range(count)]
    assert [cell for one in shards for cell in one] == list(made.cells)
    longest = max(plan.estimate_s(cell, made.settings) for cell in made.cells)
    assert max(made.estimate_s(one) for one in shards) <= made.estimate_s(made.cells) / count + longest


def test_a_dry_run_counts_what_is_measured_also_where_some_of_it_is_not_built(tmp_path: Path) -> None:
    made = planned(tmp_path, EMULATED, "cpu")
    first, *others = made.cells
    records = Records(tmp_path / "records")
    records.write(emulated(first, made))
    partly = replace(made, cells=(first, *(one.model_copy(update={"code": ""}) for one in others)))

    def shown(cells: tuple[PlannedCell, ...] = partly.cells, *, build: bool = True, as_json: bool = False) -> str:
        summary = screen.planned(partly, cells, records, build=build)
        return screen.dry_run(partly, summary, records.folder, 2, build=build, as_json=as_json)

    text = shown()
    assert f"{len(made.cells)} cells, 1 of them measured before, in " in text
    assert f"{len(partly.unbuilt)} kernels to build for the whole grid: " in text
    unbuilt = shown(build=False)
    assert "with --no-build the sweep does not start" in unbuilt
    assert "to build" not in unbuilt
    assert unbuilt.splitlines()[-1].startswith("about 0 s")  # nothing is built, nothing is left to measure
    event = json.loads(shown(as_json=True))
    assert (event["event"], event["grid"], event["machine"], event["notes"]) == ("dry-run", made.grid.name, "cpu", [])
    assert (event["cells"], event["missing"]) == (len(made.cells), len(made.cells) - 1)
    assert event["to_build"] == len(partly.unbuilt)
    part = json.loads(shown(partly.cells[:1], as_json=True))
    assert part["to_build"] == event["to_build"]  # a shard builds the whole grid
    assert part["seconds"] > 0
    building = plan.build_s(partly, default_jobs())
    assert event["seconds"] == made.estimate_s(partly.cells[1:]) / 2 + building
    assert f"about {duration(event['seconds'])} on 2 CPUs" in text
    assert sum(one["cells"] for one in event["left_out"]) == sum(count for count, _ in made.grid.excluded)
