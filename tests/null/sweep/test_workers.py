"""Workers: whatever a worker does, its cell has one record, the next cell a worker, the sweep an end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from pathlib import Path
import sys
import threading
import time
from typing import Any

import pytest

from flashladder.paths import PACKAGE
from flashladder.results.schema import PlannedCell
from flashladder.sweep import plan, workers
from flashladder.sweep.records import CellRecord, Records
from flashladder.sweep.workers import ATTEMPTS, Device, Ended, Outcome, Process, Task, Work, Worker, run
from tests.null.sweep_fixture import alive

MODULE = "tests.null.sweep.planted"


def device(backend: str = "cpu", name: str = "cpu0", **plants: str) -> Device:
    return Device(name, backend, {"PLANTS": json.dumps(plants)})


def task(made: plan.Plan, cell: PlannedCell, timeout_s: float = 60, python: str = sys.executable) -> Task:
    request = {"grid": made.grid.name, "grid_sha256": made.grid.sha256, "cell": cell.model_dump(mode="json")}
    return Task(cell, python, timeout_s, request)


def planted(
    made: plan.Plan, words: Sequence[str], folder: Path, backend: str = "cpu"
) -> tuple[list[CellRecord], list[Mapping[str, Any]], Outcome]:
    """What one lane makes of cells that do `words`, in order: their records, all events, the outcome."""
    cells = made.cells[: len(words)]
    one = device(backend, **{cell.address: word for cell, word in zip(cells, words, strict=True)})
    tasks = [task(made, cell, 1.0 if word == "hang" else 60) for cell, word in zip(cells, words, strict=True)]
    events: list[Mapping[str, Any]] = []
    records = Records(folder / "records")
    outcome = run(Work(tasks), [one], records, tell=events.append, module=MODULE)
    assert records.addresses() == {cell.address for cell in cells}
    return [records.read(cell.address) for cell in cells], events, outcome


def kinds(records: Sequence[CellRecord]) -> list[str]:
    return [record.failure.kind if record.failure else "good" for record in records]


def test_each_failure_is_of_its_cell_alone_and_the_next_one_is_measured(made: plan.Plan, tmp_path: Path) -> None:
    words = ["right", "segv", "right", "exit-0", "sys-exit", "hang", "wrong", "memory", "noise", "right"]
    found, events, outcome = planted(made, words, tmp_path)
    assert kinds(found) == [
        "good", "crash", "good", "crash", "crash", "timeout", "wrong", "out-of-memory", "good", "good",
    ]  # fmt: skip
    told = {word: record.failure for word, record in zip(words, found, strict=True) if record.failure}
    assert {word: (one.message, one.exit_code) for word, one in told.items()} == {
        "segv": ("its worker ended with signal SIGSEGV", -11),
        "exit-0": ("its worker ended with exit code 0", 0),
        "sys-exit": ("its worker ended with exit code 7", 7),
        "hang": ("no answer within 1 s: its worker was ended", -9),
        "wrong": ("max error 7 (allowed 1)", None),
        "memory": ("MemoryError", None),
    }
    assert (outcome.measured, len(outcome.failed), outcome.left, outcome.lost) == (4, 6, 0, {})
    assert (
        len([event for event in events if event["event"] == "worker"]) == 5
    )  # four died: wrong and memory keep theirs


def test_nonsense_is_no_answer(made: plan.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashladder.sweep.workers.LET_GO_S", 0.5)
    words = ["garbage", "list", "bytes", "half", "another", "silence", "right"]
    found, _, _ = planted(made, words, tmp_path)
    assert kinds(found) == ["crash"] * 6 + ["good"]
    told = [record.failure.message if record.failure else "" for record in found]
    assert told[0] == "its worker answered 'I am a library that prints', which is no answer"
    assert told[1] == "its worker answered '[1, 2]', which is no answer"
    assert told[3] == "its worker ended with exit code 0"
    assert told[4].startswith("its worker's answer is not that of a cell: ")
    assert f"about cell {made.cells[-1].address}" in told[4]
    assert told[5] == "its worker answered '', which is no answer"


def test_a_worker_that_others_kill_costs_a_try_and_the_third_one_counts(made: plan.Plan, tmp_path: Path) -> None:
    found, events, _ = planted(made, ["killed-once", "killed"], tmp_path)
    assert kinds(found) == ["good", "out-of-memory"]
    assert [record.attempts for record in found] == [2, ATTEMPTS]
    assert found[1].failure
    assert found[1].failure.message == "its worker ended with signal SIGKILL 3 times, as when memory runs out"
    assert [event["event"] for event in events].count("worker-killed") == 1 + ATTEMPTS - 1


def test_after_a_fault_of_the_gpu_the_next_cell_has_a_new_worker(made: plan.Plan, tmp_path: Path) -> None:
    found, events, _ = planted(made, ["illegal", "right", "gpu-lost", "wrong", "right"], tmp_path, "gpu")
    assert kinds(found) == ["illegal-address", "good", "gpu-lost", "wrong", "good"]
    assert [record.attempts for record in found] == [1] * 5
    assert found[0].failure
    assert found[0].failure.message == "CUDA error: an illegal memory access was encountered"
    assert len([event for event in events if event["event"] == "worker"]) == 3


def test_a_cell_that_is_held_back_does_not_hang_and_says_so(made: plan.Plan, tmp_path: Path) -> None:
    """It waits for 2.4 s, although it may take 1.5 s; then it hangs, which still counts."""
    words = ["held-back", "hang"]
    plants = {cell.address: word for cell, word in zip(made.cells, words, strict=False)}
    events: list[Mapping[str, Any]] = []
    records = Records(tmp_path / "records")
    tasks = [task(made, cell, 1.5) for cell in made.cells[:2]]
    run(Work(tasks), [device(**plants)], records, tell=events.append, module=MODULE)
    assert kinds([records.read(one.cell.address) for one in tasks]) == ["good", "timeout"]
    assert [event["others"] for event in events if event["event"] == "held-back"] == [2, 1]


def test_what_a_worker_started_dies_with_it(made: plan.Plan, tmp_path: Path) -> None:
    found, _, _ = planted(made, ["child", "right"], tmp_path)
    assert kinds(found) == ["crash", "good"]
    assert not alive(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("exit-0", "exit code 0"),
        ("garbage", "its worker said 'I am a library that prints' instead of 'ready'"),
        ("unusable", "no CUDA-capable device is detected"),
        ("killed", "signal SIGKILL"),
        ("hang", "its worker was not ready within 2 s"),
    ],
)
def test_a_worker_that_does_not_become_ready_loses_the_lane_and_no_cell(
    start: str, message: str, made: plan.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "READY_S", 2.0 if start == "hang" else 60.0)
    events: list[Mapping[str, Any]] = []
    one = Device("cpu0", "cpu", {"PLANT_START": start})
    records = Records(tmp_path / "records")
    outcome = run(
        Work([task(made, cell) for cell in made.cells[:3]]), [one], records, tell=events.append, module=MODULE
    )
    assert (outcome.left, outcome.lost, records.addresses()) == (3, {"cpu0": message}, frozenset())
    assert [event["event"] for event in events] == ["started", "lane-lost"]


def test_a_worker_that_is_killed_while_it_starts_is_started_again(made: plan.Plan, tmp_path: Path) -> None:
    worker = Worker(Device("cpu0", "cpu", {"PLANT_START": "killed-once"}), module=MODULE)
    record = worker.measure(task(made, made.cells[0]))
    worker.close()
    assert record
    assert record.document
    assert (tmp_path / "killed").exists()


def test_a_broken_environment_leaves_its_own_cells_and_no_others(made: plan.Plan, tmp_path: Path) -> None:
    tasks = [task(made, cell, python="/nonexistent/python") for cell in made.cells[:2]]
    tasks += [task(made, cell) for cell in made.cells[2:3]]
    events: list[Mapping[str, Any]] = []
    records = Records(tmp_path / "records")
    outcome = run(Work(tasks), [device()], records, tell=events.append, module=MODULE)
    assert records.addresses() == {made.cells[2].address}
    assert (outcome.measured, outcome.left) == (1, 2)
    assert outcome.lost == {"cpu0": "/nonexistent/python: No such file or directory"}
    assert [event["event"] for event in events] == ["started", "worker-broken", "started", "worker", "measured"]


def test_a_mistake_in_a_lane_ends_that_lane_and_the_sweep(
    made: plan.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(_: Worker, __: Task) -> CellRecord:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(Worker, "measure", measure)
    tasks = [task(made, cell) for cell in made.cells]
    outcome = run(Work(tasks), [device(), device(name="cpu1")], Records(tmp_path / "records"), module=MODULE)
    assert outcome.left == len(tasks)
    assert outcome.lost == dict.fromkeys(("cpu0", "cpu1"), "ZeroDivisionError: of all things")


def test_cells_that_were_done_when_ctrl_c_came_are_kept(made: plan.Plan, tmp_path: Path) -> None:
    """The main thread is busy with the record of one worker while another one's waits, then it is interrupted."""
    records = Records(tmp_path / "records")

    def tell(event: Mapping[str, Any]) -> None:
        if event["event"] == "measured":
            while len((tmp_path / "asked").read_text().split()) < 3:
                time.sleep(0.1)
            time.sleep(0.5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            Work([task(made, cell) for cell in made.cells]),
            [device(), device(name="cpu1")],
            records,
            tell=tell,
            module=MODULE,
        )
    asked = set((tmp_path / "asked").read_text().split())
    assert 2 <= len(records.addresses()) <= 3
    assert records.addresses() <= asked


def test_stopping_ends_a_lane_at_any_moment(made: plan.Plan) -> None:
    """Before, while and after its worker comes up, and while it measures; no process is left."""
    for delay in (0.0, 0.02, 0.1, 0.4, 0.8, 1.2):
        pids: list[int] = []
        worker = Worker(
            device(**{made.cells[0].address: "hang"}), module=MODULE,
            tell=lambda event, pids=pids: pids.append(event["pid"]),  # type: ignore[misc]  # a default of its own
        )  # fmt: skip
        found: list[CellRecord | None] = []
        thread = threading.Thread(
            target=lambda worker=worker, found=found: found.append(worker.measure(task(made, made.cells[0])))
        )
        thread.start()
        time.sleep(delay)
        worker.stop()
        thread.join(timeout=20)
        worker.close()
        assert not thread.is_alive(), delay
        assert found == [None], delay
        assert not any(map(alive, pids)), delay


def test_an_answer_in_the_last_moment_is_not_held_against_the_next_cell(made: plan.Plan) -> None:
    """The worker is ended by its timer just after it answered: the next cell is tried again, no timeout."""
    worker = Worker(device(), module=MODULE)
    first = worker.measure(task(made, made.cells[0]))
    process = worker._process
    assert process
    process._time_out()
    second = worker.measure(task(made, made.cells[1]))
    worker.close()
    assert first
    assert second
    assert (second.failure, second.attempts) == (None, 2)


def test_a_process_that_does_not_let_go_is_ended() -> None:
    process = Process([sys.executable, "-c", "import time; print('[]'); time.sleep(1000)"], {"PYTHONUNBUFFERED": "1"})
    found = process.ask(None, 30)
    process.drop()
    assert found == Ended("nonsense", -9, "", "[]")
    assert not alive(process.pid)


def test_a_worker_is_of_this_package_whatever_the_working_folder_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flashladder.py").write_text("print('another one')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    program = (
        "import json, flashladder; print(json.dumps({'event': 'ready', 'file': flashladder.__file__}), flush=True)"
    )
    process = Process([sys.executable, "-c", program], {})
    found = process.ask(None, 30)
    process.end()
    process.drop()
    assert found == {"event": "ready", "file": str(PACKAGE / "__init__.py")}


def test_a_worker_keeps_to_its_interpreter_then_takes_from_the_one_with_most_left(made: plan.Plan) -> None:
    tasks = [task(made, cell, python=name) for cell, name in zip(made.cells, "abbbc", strict=False)]
    work = Work(tasks)

    def take(warm: str | None, broken: Sequence[str] = ()) -> Task | None:
        work._last.clear()  # as if the record of the last one were written
        return work.take(warm, broken)

    assert [take(warm) for warm in ("a", "a", "c")] == [tasks[0], tasks[1], tasks[4]]
    work.give_back(tasks[1])
    assert take("c", broken=["b"]) is None
    assert [take(None) for _ in range(3)] == tasks[1:4]
    assert not work.out_of_time


def test_a_record_may_bring_more_work(made: plan.Plan, tmp_path: Path) -> None:
    """Also for a worker that had nothing left; and it is on disk before its cell is told as done."""
    first, *others = [task(made, cell) for cell in made.cells[:4]]
    records = Records(tmp_path / "records")

    def follow(record: CellRecord) -> Sequence[Task]:
        assert records.read(record.cell.address) == record
        return others if record.cell == first.cell else ()

    outcome = run(Work([first], follow=follow), [device(), device(name="cpu1")], records, module=MODULE)
    assert (outcome.measured, outcome.left) == (4, 0)


def test_no_cell_is_started_when_the_budget_is_spent(made: plan.Plan, tmp_path: Path) -> None:
    tasks = [task(made, cell) for cell in made.cells[:3]]
    records = Records(tmp_path / "records")
    outcome = run(Work(tasks, -1.0), [device()], records, module=MODULE)
    assert (outcome.left, outcome.out_of_time, outcome.lost) == (3, True, {})
    assert not (tmp_path / "asked").exists()
    outcome = run(Work(tasks, 600.0), [device()], records, module=MODULE)
    assert (outcome.measured, outcome.left, outcome.out_of_time) == (3, 0, False)
