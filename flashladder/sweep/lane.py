"""One GPU's (or CPU's) share of a sweep: keeps a worker warm, watches it, and turns whatever happens into records.

Why: hours of measurement must not hang on one kernel. A worker that dies, hangs or says that its context is broken is
replaced; the cell it had becomes a failure, of that cell alone. A worker that was killed from outside (out of memory,
an operator) says nothing about the cell, which is tried again. Used by `flashladder.sweep.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any

from flashladder.errors import FlashladderError
from flashladder.files import ROOT
from flashladder.result_cells import Failure, FailureKind, PlannedCell
from flashladder.sweep.failures import told_exit
from flashladder.sweep.records import CellRecord

ATTEMPTS = 3  # workers that one cell may cost, when they are killed from outside
READY_S = 180.0  # a worker imports torch and opens the GPU in this time, or never
TAIL = 2000  # characters of a dead worker's stderr that its record keeps
KILLED = (-signal.SIGKILL, -signal.SIGTERM)


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
    """The lane cannot measure any more: its GPU is gone, or no worker comes up."""


class _Worker:
    """A process and the answers that it has given so far."""

    def __init__(self, device: Device, python: str, module: str) -> None:
        self.python = python
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [python, "-m", module, device.backend, str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True, encoding="utf-8",
            env={**os.environ, **device.environment, "PYTHONPATH": path}, start_new_session=True,
        )  # fmt: skip
        self.timed_out = False
        self.ready: Mapping[str, Any] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Mapping[str, Any] | None, timeout_s: float) -> Mapping[str, Any] | None:
        """The answer to a request (None: the first word of a new worker); None when it died or was ended."""
        timer = threading.Timer(timeout_s, self._time_out)
        timer.start()
        try:
            if request is not None and self._process.stdin:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline() if self._process.stdout else ""
            return dict(json.loads(line)) if line.endswith("\n") else None
        except (BrokenPipeError, ValueError):
            return None
        finally:
            timer.cancel()

    def _time_out(self) -> None:
        self.timed_out = True
        self.kill()

    def kill(self) -> None:
        """Ends the process and all that it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self._process.kill()

    def close(self) -> int:
        """Lets a worker that waits for a request go, or ends it; returns how it ended."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(OSError):  # what was still to be written to one that died
                    stream.close()
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return code

    def tail(self) -> str:
        """The end of what it wrote to stderr."""
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - TAIL))
        return self._stderr.read().decode(errors="replace")

    def drop(self) -> None:
        """Closes the file behind `tail`."""
        self._stderr.close()


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
        module: str = "flashladder.sweep.worker",
    ) -> None:
        self.device = device
        self._tell = tell
        self._module = module
        self._worker: _Worker | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @property
    def python(self) -> str | None:
        """The interpreter of the worker that is warm."""
        return self._worker.python if self._worker else None

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
            worker.close()
            worker.drop()

    def measure(self, task: Task) -> CellRecord | None:
        """The record of a task; None when the lane was stopped meanwhile.

        Raises:
            LaneLost: no worker comes up.
        """
        start = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            worker = self._warm(task.python)
            found = worker.ask(task.request, task.timeout_s) if worker else None
            if self._stopped.is_set() or worker is None:
                return None
            if found is not None:
                return self._record(task, found, attempt, time.monotonic() - start)
            code, timed_out, tail = worker.close(), worker.timed_out, worker.tail()
            self.close()
            if timed_out:
                message = f"no answer within {task.timeout_s:.0f} s: its worker was ended"
                return self._failed(task, ("timeout", message), code, tail, attempt, time.monotonic() - start)
            if code not in KILLED or attempt == ATTEMPTS:
                kind: FailureKind = "out-of-memory" if code in KILLED else "crash"
                killed = f" {attempt} times, as when memory runs out" if code in KILLED else ""
                message = f"its worker ended with {told_exit(code)}{killed}"
                return self._failed(task, (kind, message), code, tail, attempt, time.monotonic() - start)
            self._tell({"event": "worker-killed", "lane": self.device.name, "address": task.cell.address})
        return None

    def _warm(self, python: str) -> _Worker | None:
        """The worker of this interpreter, started if there is none; None when the lane was stopped."""
        if self._worker and self._worker.python != python:
            self.close()
        if self._worker:
            return self._worker
        for attempt in range(ATTEMPTS):
            with self._lock:
                if self._stopped.is_set():
                    return None
                self._worker = worker = _Worker(self.device, python, self._module)
            ready = worker.ask(None, READY_S)
            if ready and ready.get("event") == "ready":
                worker.ready = ready
                self._tell({"event": "worker", "lane": self.device.name, "pid": worker.pid, **ready})
                return worker
            code, tail = worker.close(), worker.tail()
            self.close()
            if self._stopped.is_set():
                return None
            told = ready["message"] if ready else _last_line(tail) or told_exit(code)
            if ready or code not in KILLED or attempt == ATTEMPTS - 1:
                raise LaneLost(told)
        return None

    def _record(self, task: Task, found: Mapping[str, Any], attempt: int, seconds: float) -> CellRecord:
        """The record of a cell whose worker answered."""
        if found["event"] == "measured":
            return CellRecord.model_validate(
                {
                    "cell": task.cell, "document": found["document"], "lane": self.device.name, "attempts": attempt,
                    "seconds": round(seconds, 3), "overhead_s": round(found["overhead_s"], 3),
                }
            )  # fmt: skip
        return self._failed(task, (found["kind"], found["message"]), None, "", attempt, seconds)

    def _failed(
        self, task: Task, told: tuple[FailureKind, str], code: int | None, tail: str, attempt: int, seconds: float
    ) -> CellRecord:
        kind, message = told
        failure = Failure(address=task.cell.address, kind=kind, message=message, exit_code=code, tail=tail)
        return CellRecord(
            cell=task.cell, failure=failure, lane=self.device.name, attempts=attempt, seconds=round(seconds, 3)
        )


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def require_interpreter(python: str) -> None:
    """Raises `FlashladderError` when there is no such interpreter."""
    if not Path(python).exists() and python != sys.executable:
        raise FlashladderError("no such interpreter", where=python, hint="build the iteration again")
