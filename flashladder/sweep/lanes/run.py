"""Measures what is missing of a plan on all lanes at once, and keeps every record the moment it is there.

Why one writer: lanes are threads that wait for their workers; the main thread alone writes records, moves the bars and
hears Ctrl-C, so that the folder is valid at any moment, whatever ends the process. Used by `flashladder.sweep.command`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
import queue
import threading
import time
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.results.schema import PlannedCell
from flashladder.sweep.cells import title
from flashladder.sweep.lanes.failures import first_line
from flashladder.sweep.lanes.lane import Device, Lane, LaneLost, Task
from flashladder.sweep.records import CellRecord, Records

Event = Mapping[str, Any]
Tell = Callable[[Event], object]


@dataclass
class Outcome:
    """How a run went: cells measured, records of failures, lanes that were lost, cells left, and why."""

    measured: int = 0
    failed: list[CellRecord] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    left: int = 0
    out_of_time: bool = False


class Work:
    """The tasks that are left, handed out so that a worker stays with its interpreter for as long as it can."""

    def __init__(self, tasks: Iterable[Task], budget_s: float | None = None) -> None:
        self._lock = threading.Lock()
        self._by_python: dict[str, deque[Task]] = {}
        for task in tasks:
            self._by_python.setdefault(task.python, deque()).append(task)
        self._end = None if budget_s is None else time.monotonic() + budget_s
        self.out_of_time = False

    def take(self, warm: str | None, broken: Collection[str] = ()) -> Task | None:
        """The next task for a lane whose worker is of the interpreter `warm`; None when nothing is left, or no time.

        Without tasks for it, a lane takes from the interpreter with the most left, and never from `broken` ones.
        """
        with self._lock:
            left = {python: tasks for python, tasks in self._by_python.items() if tasks and python not in broken}
            if left and self.late():
                return None
            if not left:
                return None
            python = warm if warm in left else max(left, key=lambda one: len(left[one]))
            return left[python].popleft()

    def late(self) -> bool:
        """Whether the time is over, as `out_of_time` says from then on."""
        self.out_of_time = self.out_of_time or (self._end is not None and time.monotonic() > self._end)
        return self.out_of_time

    def stop(self) -> None:
        """Called before the lanes are stopped: a `take` that waits must return."""

    def give_back(self, task: Task) -> None:
        """Returns a task that was not measured."""
        with self._lock:
            self._by_python[task.python].appendleft(task)

    def others(self, broken: Collection[str]) -> bool:
        """Whether tasks of other interpreters than these are left."""
        with self._lock:
            return any(tasks for python, tasks in self._by_python.items() if python not in broken)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._by_python.values()))


def run(
    tasks: Sequence[Task] | Work,
    devices: Sequence[Device],
    records: Records,
    *,
    tell: Tell = lambda _: None,
    budget_s: float | None = None,
    module: str = "flashladder.sweep.measure.worker",
) -> Outcome:
    """Measures the tasks; each record is on disk before its cell is told as done.

    Args:
        tasks: what is missing; or work that grows while it is done (`flashladder.sweep.tune.ladders`).
        devices: a lane each.
        records: where records go.
        tell: called in this thread with each event: ``started``, ``measured``, ``failed``, ``worker``,
            ``worker-killed``, ``worker-broken``, ``held-back``, ``lane-lost``.
        budget_s: seconds after which no cell is started.
        module: the workers' module.

    Raises:
        FlashladderError: a record could not be written; the workers are ended, what was written stays.
        KeyboardInterrupt: the workers are ended, what was written stays.
    """
    work, outcome = tasks if isinstance(tasks, Work) else Work(tasks, budget_s), Outcome()
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    lanes = [Lane(device, events.put, module) for device in devices]
    threads = [threading.Thread(target=_serve, args=(lane, work, events), daemon=True) for lane in lanes]
    try:
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            event = events.get()
            if event is None:
                running -= 1
            else:
                _keep(event, outcome, records, tell)
    finally:
        work.stop()
        for lane in lanes:
            lane.stop()
        for thread in threads:
            thread.join()
        _keep_the_rest(events, records)
    outcome.left, outcome.out_of_time = len(work), work.out_of_time
    return outcome


def _serve(lane: Lane, work: Work, events: queue.SimpleQueue[Event | None]) -> None:
    """A lane's thread: takes tasks until none is left, the lane is lost or stopped.

    An interpreter without a worker that comes up is left alone; a second one right after it says that the lane is lost.
    """
    name = lane.device.name
    broken: set[str] = set()
    works = True  # the last worker came up
    task: Task | None = None
    try:
        while task := work.take(lane.python, broken):
            events.put({"event": "started", "lane": name, "cell": task.cell})
            try:
                record = lane.measure(task)
            except LaneLost as error:
                work.give_back(task)
                broken.add(task.python)
                lost = not (works and work.others(broken))
                events.put({"event": "lane-lost" if lost else "worker-broken", "lane": name, "message": str(error)})
                if lost:
                    return
                works = False
                continue
            if record is None:
                work.give_back(task)
                return
            works = True
            events.put({"event": "failed" if record.failure else "measured", "lane": name, "record": record})
    except Exception as error:  # noqa: BLE001 - a mistake of ours must not leave the other lanes waiting
        if task:
            work.give_back(task)
        events.put({"event": "lane-lost", "lane": name, "message": f"{type(error).__name__}: {first_line(error)}"})
    finally:
        try:
            lane.close()
        finally:
            events.put(None)


def _keep_the_rest(events: queue.SimpleQueue[Event | None], records: Records) -> None:
    """Writes the records of cells that were done while the sweep was being interrupted."""
    while not events.empty():
        record = (events.get() or {}).get("record")
        if record is not None:
            with suppress(FlashladderError):  # what ended the sweep is told already
                records.write(record)


def _keep(event: Event, outcome: Outcome, records: Records, tell: Tell) -> None:
    """Writes the record of an event, notes it, tells it."""
    record: CellRecord | None = event.get("record")
    if record is not None:
        records.write(record)
        if record.failure:
            outcome.failed.append(record)
        else:
            outcome.measured += 1
    elif event["event"] in ("lane-lost", "worker-broken"):
        outcome.lost[event["lane"]] = event["message"]
    tell(event)


def plain(event: Event) -> dict[str, Any]:
    """An event as JSON can hold it: cells and records by address, title and outcome."""
    found = {name: value for name, value in event.items() if name not in ("record", "cell")}
    record: CellRecord | None = event.get("record")
    cell: PlannedCell | None = record.cell if record else event.get("cell")
    if cell:
        found |= {"address": cell.address, "cell": title(cell)}
    if record:
        found["seconds"] = record.seconds
        if record.failure:
            found |= {"kind": record.failure.kind, "message": record.failure.message}
    return found
