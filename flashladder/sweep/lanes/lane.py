"""One GPU's (or CPU's) share of a sweep: keeps a worker warm, watches it, and turns whatever happens into records.

Why: hours of measurement must not hang on one kernel. A worker that dies, hangs, talks nonsense or says that its
context is broken is replaced; the cell it had becomes a failure, of that cell alone. A worker that was killed from
outside (out of memory, an operator) says nothing about the cell, which is tried again. Used by `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
import os
import threading
import time
from typing import Any

from pydantic import ValidationError

from flashladder.results.schema import Failure, FailureKind, PlannedCell
from flashladder.sweep.lanes.failures import told_exit
from flashladder.sweep.lanes.process import Ended, Process
from flashladder.sweep.records import CellRecord

ATTEMPTS = 3  # workers that one cell may cost, when they are killed from outside
READY_S = 180.0  # a worker imports torch and opens the GPU in this time, or never


@dataclass(frozen=True)
class Device:
    """What a lane measures on: a name for people, the worker's backend, and what its environment adds."""

    name: str
    backend: str
    environment: Mapping[str, str] = field(default_factory=dict)
    key: str = ""  # UUID of a GPU


@dataclass(frozen=True)
class Task:
    """One cell with the interpreter that has its kernel, the seconds it may take, and what its worker is told."""

    cell: PlannedCell
    python: str
    timeout_s: float
    request: Mapping[str, Any]


class LaneLost(Exception):
    """No worker of an interpreter comes up: its environment is broken, or the lane's GPU is gone."""


class Lane:
    """Measures tasks on one device.

    Args:
        device: where.
        tell: called with an event, a mapping with ``event`` and ``lane``, from this lane's thread.
        module: the worker's module; tests plant others.
    """

    def __init__(
        self,
        device: Device,
        tell: Callable[[Mapping[str, Any]], object] = lambda _: None,
        module: str = "flashladder.sweep.measure.worker",
    ) -> None:
        self.device = device
        self._tell = tell
        self._module = module
        self._worker: Process | None = None
        self._python: str | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @property
    def python(self) -> str | None:
        """The interpreter of the worker that is warm."""
        return self._python if self._worker else None

    def stop(self) -> None:
        """Ends the worker at once, from another thread; the cell that it measured has no record."""
        with self._lock:
            self._stopped.set()
            if self._worker:
                self._worker.kill()

    def close(self) -> None:
        """Lets the worker go."""
        worker, self._worker = self._worker, None
        if worker:
            worker.end()
            worker.drop()

    def measure(self, task: Task) -> CellRecord | None:
        """The record of a task; None when the lane was stopped meanwhile.

        Raises:
            LaneLost: no worker comes up.
        """
        start = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            worker = self._warm(task.python)
            if worker is None:
                return None
            found = worker.ask(task.request, task.timeout_s, self._held_back(task))
            if not isinstance(found, Ended):
                return self._answered(task, found, attempt, time.monotonic() - start)
            self.close()
            if self._stopped.is_set():
                return None
            if not found.killed or attempt == ATTEMPTS:
                return self._unanswered(task, found, attempt, time.monotonic() - start)
            self._tell({"event": "worker-killed", "lane": self.device.name, "address": task.cell.address})
        return None

    def _warm(self, python: str) -> Process | None:
        """The worker of this interpreter, started if there is none; None when the lane was stopped."""
        if self._worker and self._python != python:
            self.close()
        if self._worker:
            return self._worker
        for attempt in range(1, ATTEMPTS + 1):
            worker = self._started(python)
            if worker is None:
                return None
            found = worker.ask(None, READY_S)
            if not isinstance(found, Ended) and found["event"] == "ready":
                self._tell({**found, "event": "worker", "lane": self.device.name, "pid": worker.pid})
                return worker
            self.close()
            if self._stopped.is_set():
                return None
            if not (isinstance(found, Ended) and found.killed) or attempt == ATTEMPTS:
                raise LaneLost(_why_lost(found))
        return None

    def _held_back(self, task: Task) -> Callable[[int], None]:
        """Tells that others use the device, once for each number of them."""
        told: set[int] = set()

        def tell(others: int) -> None:
            if others not in told:
                told.add(others)
                self._tell(
                    {"event": "held-back", "lane": self.device.name, "address": task.cell.address, "others": others}
                )

        return tell

    def _started(self, python: str) -> Process | None:
        """A new worker; None when the lane was stopped."""
        command = [python, "-m", self._module, self.device.backend, str(os.getpid())]
        with self._lock:
            if self._stopped.is_set():
                return None
            try:
                self._worker = Process(command, self.device.environment)
            except OSError as error:
                raise LaneLost(f"{error.filename or python}: {error.strerror or error}") from error
            self._python = python
            return self._worker

    def _answered(self, task: Task, found: Mapping[str, Any], attempt: int, seconds: float) -> CellRecord:
        """The record of a cell whose worker answered; one that is fit for no more is let go."""
        try:
            if found["event"] == "measured":
                record = CellRecord.model_validate(
                    {
                        "cell": task.cell, "document": found["document"], "lane": self.device.name, "attempts": attempt,
                        "seconds": round(seconds, 3), "overhead_s": round(found["overhead_s"], 3),
                    }
                )  # fmt: skip
            else:
                record = self._failed(task, (found["kind"], found["message"]), (None, ""), attempt, seconds)
        except (ValidationError, KeyError, TypeError, ValueError) as error:
            self.close()
            told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
            message = f"its worker's answer is not that of a cell: {told}"
            return self._failed(task, ("crash", message), (None, ""), attempt, seconds)
        if found.get("last") or (self._worker and self._worker.timed_out):
            self.close()
        return record

    def _unanswered(self, task: Task, ended: Ended, attempt: int, seconds: float) -> CellRecord:
        """The failure of a cell whose worker gave no answer."""
        kind: FailureKind = "crash"
        if ended.why == "timeout":
            kind, message = "timeout", f"no answer within {round(task.timeout_s, 1):g} s: its worker was ended"
        elif ended.why == "nonsense":
            message = f"its worker answered {ended.said!r}, which is no answer"
        elif ended.killed:
            kind = "out-of-memory"
            message = f"its worker ended with {_told_code(ended.code)} {attempt} times, as when memory runs out"
        else:
            message = f"its worker ended with {_told_code(ended.code)}"
        return self._failed(task, (kind, message), (ended.code, ended.tail), attempt, seconds)

    def _failed(
        self, task: Task, told: tuple[FailureKind, str], ended: tuple[int | None, str], attempt: int, seconds: float
    ) -> CellRecord:
        failure = Failure(address=task.cell.address, kind=told[0], message=told[1], exit_code=ended[0], tail=ended[1])
        return CellRecord(
            cell=task.cell, failure=failure, lane=self.device.name, attempts=attempt, seconds=round(seconds, 3)
        )


def _why_lost(found: Mapping[str, Any] | Ended) -> str:
    """Why a worker did not come up, in one line."""
    if not isinstance(found, Ended):
        return str(found.get("message") or f"its worker said {found['event']!r} instead of 'ready'")
    if found.why == "timeout":
        return f"its worker was not ready within {READY_S:g} s"
    if found.why == "nonsense":
        return f"its worker said {found.said!r} instead of 'ready'"
    return _last_line(found.tail) or _told_code(found.code)


def _told_code(code: int | None) -> str:
    return "nothing, not even SIGKILL" if code is None else told_exit(code)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
