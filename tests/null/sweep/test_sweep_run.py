"""Which task a lane is given, and what a run keeps, budgets and tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashladder.sweep import plan
from flashladder.sweep.lanes.run import Work, run
from flashladder.sweep.records import Records
from tests.null.sweep.test_sweep_lane import MODULE, device, task


def test_work_stays_with_a_warm_interpreter_then_goes_to_the_one_with_most_left(made: plan.Plan) -> None:
    tasks = [task(made, cell, python=name) for cell, name in zip(made.cells, "abbbc", strict=False)]
    work = Work(tasks)
    assert [work.take(warm) for warm in ("a", "a", "c")] == [tasks[0], tasks[1], tasks[4]]
    work.give_back(tasks[1])
    assert work.take("c", broken={"b"}) is None
    assert [work.take(None) for _ in range(4)] == [*tasks[1:4], None]
    assert not work.out_of_time


def test_no_cell_is_started_when_the_budget_is_spent(made: plan.Plan, tmp_path: Path) -> None:
    tasks = [task(made, cell) for cell in made.cells[:3]]
    records = Records(tmp_path / "records")
    outcome = run(tasks, [device()], records, budget_s=-1.0, module=MODULE)
    assert (outcome.left, outcome.out_of_time, outcome.lost) == (3, True, {})
    assert not (tmp_path / "asked").exists()
    outcome = run(tasks, [device()], records, budget_s=600.0, module=MODULE)
    assert (outcome.measured, outcome.left, outcome.out_of_time) == (3, 0, False)


def test_a_record_is_on_disk_before_its_cell_is_told_as_done(made: plan.Plan, tmp_path: Path) -> None:
    records = Records(tmp_path / "records")

    def tell(event: Mapping[str, Any]) -> None:
        if event["event"] == "measured":
            assert records.read(event["record"].cell.address) == event["record"]

    assert run([task(made, made.cells[0])], [device()], records, tell=tell, module=MODULE).measured == 1
