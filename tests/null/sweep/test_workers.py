"""Workers: whatever a worker does, its cell has one record, the next cell a worker, the sweep an end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from pathlib import Path
import sys
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.results.schema import PlannedCell
from flashladder.sweep import plan, workers
from flashladder.sweep.records import CellRecord, Records
from flashladder.sweep.workers import ATTEMPTS, Device, Task, run
from tests.null.sweep_fixture import alive

MODULE = "tests.null.sweep.planted"
NO_ANSWER = "its worker answered {}, not a valid answer"


def device(backend: str = "cpu", name: str = "cpu0", **plants: str) -> Device:
    return Device(name, backend, {"PLANTS": json.dumps(plants)})


def task(made: plan.Plan, cell: PlannedCell, timeout_s: float = 60, python: str = sys.executable) -> Task:
    request = {"grid": made.grid.name, "grid_sha256": made.grid.sha256, "cell": cell.model_dump(mode="json")}
    return Task(cell, python, timeout_s, request)


class Ran:
    """The outcome of tasks: records, events, and the message of an error."""

    def __init__(self, folder: Path, tasks: Sequence[Task], *devices: Device, **more: Any) -> None:
        self.events: list[Mapping[str, Any]] = []
        self.records = Records(folder / "records")
        self.error = ""
        try:
            run(tasks, devices or [device()], self.records, tell=self.events.append, module=MODULE, **more)
        except FlashladderError as error:
            self.error = str(error).removeprefix(f"{self.records.folder}: ")

    def named(self, name: str) -> list[Mapping[str, Any]]:
        return [event for event in self.events if event["event"] == name]


def planted(made: plan.Plan, words: Sequence[str], folder: Path, backend: str = "cpu") -> tuple[list[CellRecord], Ran]:
    """The records of cells that do `words`, in order, on one device."""
    cells = made.cells[: len(words)]
    one = device(backend, **{cell.address: word for cell, word in zip(cells, words, strict=True)})
    tasks = [task(made, cell, 1.5 if word.startswith("h") else 60) for cell, word in zip(cells, words, strict=True)]
    ran = Ran(folder, tasks, one)
    assert ran.records.addresses() == {cell.address for cell in cells}
    return [ran.records.read(cell.address) for cell in cells], ran


def kinds(records: Sequence[CellRecord]) -> list[str]:
    return [record.failure.kind if record.failure else "good" for record in records]


def messages(records: Sequence[CellRecord]) -> list[str]:
    return [record.failure.message if record.failure else "" for record in records]


def test_each_failure_is_of_its_cell_alone_and_the_next_one_is_measured(made: plan.Plan, tmp_path: Path) -> None:
    words = ["right", "noise", "segv", "right", "exit-0", "sys-exit", "hang", "wrong", "memory", "right"]
    found, ran = planted(made, words, tmp_path)
    failures = {word: record.failure for word, record in zip(words, found, strict=True) if record.failure}
    assert {word: (one.kind, one.message, one.exit_code) for word, one in failures.items()} == {
        "segv": ("crash", "its worker ended with signal SIGSEGV", -11),
        "exit-0": ("crash", "its worker ended with exit code 0", 0),
        "sys-exit": ("crash", "its worker ended with exit code 7", 7),
        "hang": ("timeout", "no answer within 1.5 s: its worker was killed", -9),
        "wrong": ("wrong", "max error 7 (allowed 1)", None),
        "memory": ("out-of-memory", "MemoryError", None),
    }
    assert failures["segv"].tail == "", "what an earlier cell of the same worker wrote is not this cell's"
    assert [len(ran.named(name)) for name in ("measured", "failed")] == [4, 6]
    assert not ran.error
    assert len(ran.named("worker")) == 5  # four died: wrong and memory keep theirs


def test_nonsense_is_no_answer(made: plan.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LET_GO_S", 0.5)
    found, _ = planted(made, ["garbage", "list", "bytes", "half", "another", "silence", "right"], tmp_path)
    assert kinds(found) == ["crash"] * 6 + ["good"]
    garbage, json_list, _, half, another, silence, _ = messages(found)
    assert garbage == NO_ANSWER.format("'I am a library that prints'")
    assert json_list == NO_ANSWER.format("'[1, 2]'")
    assert half == "its worker ended with exit code 0"
    assert another.startswith("its worker's answer is not a cell's result: ")
    assert f"contains cell {made.cells[-1].address}" in another
    assert silence == NO_ANSWER.format("''")


def test_a_worker_that_others_kill_costs_a_try_and_the_third_one_counts(made: plan.Plan, tmp_path: Path) -> None:
    found, ran = planted(made, ["killed-once", "killed"], tmp_path)
    assert kinds(found) == ["good", "out-of-memory"]
    assert [record.attempts for record in found] == [2, ATTEMPTS]
    assert messages(found)[1] == "its worker ended with signal SIGKILL 3 times, as when memory runs out"
    assert len(ran.named("worker-killed")) == 1 + ATTEMPTS - 1


def test_after_a_fault_of_the_gpu_the_next_cell_has_a_new_worker(made: plan.Plan, tmp_path: Path) -> None:
    found, ran = planted(made, ["illegal", "right", "gpu-lost", "wrong", "right"], tmp_path, "gpu")
    assert kinds(found) == ["illegal-address", "good", "gpu-lost", "wrong", "good"]
    assert [record.attempts for record in found] == [1] * 5
    assert messages(found)[0] == "CUDA error: an illegal memory access was encountered"
    assert len(ran.named("worker")) == 3


def test_a_cell_that_is_held_back_does_not_hang_and_says_so(made: plan.Plan, tmp_path: Path) -> None:
    """It waits for 2.4 s, although its limit is 1.5 s. Then a cell hangs, which still times out."""
    found, ran = planted(made, ["held-back", "hang"], tmp_path)
    assert kinds(found) == ["good", "timeout"]
    assert [event["others"] for event in ran.named("held-back")] == [2, 1]


def test_what_a_worker_started_dies_with_it(made: plan.Plan, tmp_path: Path) -> None:
    found, _ = planted(made, ["child", "right"], tmp_path)
    assert kinds(found) == ["crash", "good"]
    assert not alive(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("garbage", NO_ANSWER.format("'I am a library that prints'")),
        ("unusable", "no CUDA-capable device is detected"),
        ("killed", "its worker ended with signal SIGKILL"),
        ("hang", "no answer within 2 s: its worker was killed"),
    ],
)
def test_a_worker_that_does_not_become_ready_loses_the_device_and_no_cell(
    start: str, message: str, made: plan.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "READY_S", 2.0 if start == "hang" else 60.0)
    ran = Ran(tmp_path, [task(made, cell) for cell in made.cells[:3]], Device("cpu0", "cpu", {"PLANT_START": start}))
    assert ran.error.startswith(f"no worker could be started: 3 cells are not measured: found cpu0: {message}; ")
    assert not ran.records.addresses()
    assert [event["event"] for event in ran.events] == ["started", "lane-lost"]


def test_a_broken_environment_leaves_its_own_cells_and_no_others(made: plan.Plan, tmp_path: Path) -> None:
    tasks = [task(made, cell, python="/nonexistent/python") for cell in made.cells[:2]]
    ran = Ran(tmp_path, [*tasks, task(made, made.cells[2])])
    assert ran.records.addresses() == {made.cells[2].address}
    assert "2 cells are not measured: found cpu0: /nonexistent/python: No such file or directory; " in ran.error
    assert [event["event"] for event in ran.events] == ["started", "worker-broken", "started", "worker", "measured"]


@pytest.mark.parametrize("moment", ["started", "worker", "measured"])
def test_ctrl_c_at_any_moment_leaves_whole_records_and_no_process(moment: str, made: plan.Plan, tmp_path: Path) -> None:
    records, pids = Records(tmp_path / "records"), list[int]()

    def tell(event: Mapping[str, Any]) -> None:
        pids.extend([event["pid"]] if "pid" in event else [])
        if event["event"] == moment and event["lane"] == "cpu1":
            raise KeyboardInterrupt

    tasks, devices = [task(made, cell) for cell in made.cells], [device(), device(name="cpu1")]
    with pytest.raises(KeyboardInterrupt):
        run(tasks, devices, records, tell=tell, module=MODULE)
    assert all(records.read(address).document for address in records.addresses())
    assert bool(records.addresses()) or moment != "measured"
    assert not any(map(alive, pids))


def test_a_record_may_bring_more_work(made: plan.Plan, tmp_path: Path) -> None:
    """An idle worker gets new work, too. A record is on disk before `follow` and `tell` get it."""
    first, *others = [task(made, cell) for cell in made.cells[:4]]

    def follow(record: CellRecord) -> Sequence[Task]:
        assert Records(tmp_path / "records").read(record.cell.address) == record
        return others if record.cell == first.cell else ()

    ran = Ran(tmp_path, [first], device(), device(name="cpu1"), follow=follow)
    assert not ran.error
    assert {event["lane"] for event in ran.named("measured")} == {"cpu0", "cpu1"}


def test_no_cell_is_started_when_the_budget_is_spent(made: plan.Plan, tmp_path: Path) -> None:
    tasks = [task(made, cell) for cell in made.cells[:3]]
    assert Ran(tmp_path, tasks, budget_s=-1.0).error.startswith(
        "the grid's budget is spent: 3 cells are not measured; "
    )
    assert not (tmp_path / "asked").exists()
    assert not Ran(tmp_path, tasks, budget_s=600.0).error
