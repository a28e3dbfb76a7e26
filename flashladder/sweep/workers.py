"""Worker processes, one per GPU or CPU: each is asked for one cell after the other, watched, and replaced when it dies.

A worker that dies, hangs, answers nonsense or says that its CUDA context is broken is replaced; the cell that it had
becomes a failure, of that cell alone. A worker that was killed from outside (out of memory, an operator) says nothing
about the cell, which is tried again. Threads wait for the workers; the main thread alone writes records and hears
Ctrl-C, so that the folder is valid at any moment. What a worker runs is `flashladder.sweep.worker`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from typing import IO, Any, Literal

from pydantic import ValidationError

from flashladder.errors import FlashladderError
from flashladder.paths import PACKAGE
from flashladder.results.schema import Failure, FailureKind, PlannedCell
from flashladder.sweep.records import CellRecord, Records, first_line

MODULE = "flashladder.sweep.worker"
ATTEMPTS = 3  # workers that one cell may cost when they are killed from outside
READY_S = 180.0  # a worker imports torch and opens the GPU in this time, or never
LET_GO_S = 5.0  # an idle worker leaves in this time once its stdin is closed
UNKILLABLE_S = 30.0  # a process that outlives SIGKILL so long hangs in a driver
KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGUSR2)  # the last announces the end of a Slurm task's time
TAIL = 2000  # bytes of a dead worker's stderr that its record keeps

Event = Mapping[str, Any]
Tell = Callable[[Event], object]


@dataclass(frozen=True)
class Device:
    """A GPU or CPU to measure on: a name for people, the worker's backend, and what the worker's environment adds."""

    name: str
    backend: str
    environment: Mapping[str, str] = field(default_factory=dict)
    key: str = ""  # UUID of a GPU


@dataclass(frozen=True)
class Task:
    """One cell with the interpreter that has its kernel, the seconds it may take, and the request to its worker."""

    cell: PlannedCell
    python: str
    timeout_s: float
    request: Mapping[str, Any]


class DeviceLost(Exception):
    """No worker of an interpreter comes up: its environment is broken, or the GPU is gone."""


@dataclass(frozen=True)
class Ended:
    """A worker that gave no answer and is gone.

    Attributes:
        why: its process ended, it did not answer in time, or it answered nonsense.
        code: of its process; None where it outlives SIGKILL.
        tail: the end of what it wrote to stderr since it was asked.
        said: the beginning of the nonsense.
    """

    why: Literal["ended", "timeout", "nonsense"]
    code: int | None
    tail: str = ""
    said: str = ""

    @property
    def killed(self) -> bool:
        """Whether somebody else ended it: the kernel for want of memory, an operator."""
        return self.why == "ended" and self.code in KILLED

    @property
    def exit(self) -> str:
        """How its process ended, for people: ``signal SIGSEGV`` or ``exit code 3``."""
        if self.code is None:
            return "nothing, not even SIGKILL"
        if self.code >= 0:
            return f"exit code {self.code}"
        names = {one.value: one.name for one in signal.Signals}
        return f"signal {names.get(-self.code, -self.code)}"


class Process:
    """A worker's process, in a process group of its own: asked over pipes, its stderr in a file.

    Its working folder is that of this package, so that a checkout in the caller's is not taken for it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()  # no signal goes to a process id that was given back to the system
        self._asked_at = 0
        self.timed_out = False
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                env={**os.environ, **environment, "PYTHONPATH": path}, cwd=PACKAGE.parent, start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._stderr.close()
            raise
        self.pid = self._process.pid

    def ask(
        self, request: Mapping[str, Any] | None, timeout_s: float, held_back: Callable[[int], object] = lambda _: None
    ) -> dict[str, Any] | Ended:
        """The answer to a request (None: the first word of a new worker); a worker without an answer is ended.

        While others use the GPU a worker says so repeatedly: `held_back` is told how many, and its time starts anew.
        """
        self._asked_at = os.fstat(self._stderr.fileno()).st_size
        line = self._line(b"" if request is None else json.dumps(request).encode() + b"\n", timeout_s)
        while (found := answer_of(line)) and found["event"] == "held-back":
            held_back(int(found.get("others", 0)))
            line = self._line(b"", timeout_s)
        if found is not None:
            return found
        exited = not line.endswith(b"\n") and self._exited(LET_GO_S)
        why: Literal["ended", "timeout", "nonsense"] = "ended" if exited else "nonsense"
        code = self.end(0.0)
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(self._asked_at, size - TAIL)
        tail = os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace")
        return Ended("timeout" if self.timed_out else why, code, tail, line[:80].decode(errors="replace").strip())

    def _line(self, text: bytes, timeout_s: float) -> bytes:
        """What it answers to `text` within a time; no whole line where it ended, or was ended."""
        self.timed_out = False
        timer = threading.Timer(timeout_s, self._time_out)
        timer.daemon = True
        timer.start()
        try:
            if text and self._process.stdin:
                self._process.stdin.write(text)
                self._process.stdin.flush()
            return self._process.stdout.readline() if self._process.stdout else b""
        except (OSError, ValueError):  # it no longer reads
            return b""
        finally:
            timer.cancel()
            timer.join()  # from here on it does not fire

    def _time_out(self) -> None:
        self.timed_out = True
        self.kill()

    def kill(self) -> None:
        """Ends the process and all that it started; from any thread."""
        with self._lock:
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)

    def end(self, let_go_s: float = LET_GO_S) -> int | None:
        """Lets an idle worker go, or ends it, with all that it started; its exit code, None if it outlives SIGKILL."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(OSError):  # what was still to be written to one that died
                    stream.close()
        self._exited(let_go_s)
        self.kill()  # also what it started: its group keeps its number until it is waited for
        with self._lock:
            try:
                return self._process.wait(timeout=UNKILLABLE_S)
            except subprocess.TimeoutExpired:
                return None

    def _exited(self, within_s: float) -> bool:
        """Whether it ends within a time; does not give its process id back."""
        end = time.monotonic() + within_s
        while self._process.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(0.005)
        return True

    def drop(self) -> None:
        """Closes the file behind its stderr."""
        self._stderr.close()


def answer_of(line: bytes) -> dict[str, Any] | None:
    """A line as an answer: a JSON mapping with an ``event``; None for anything else."""
    try:
        found = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


class Worker:
    """Measures tasks on one device, in a process that stays warm between them.

    Args:
        device: where.
        tell: called from this worker's thread with each event, a mapping with ``event`` and ``lane``.
        module: what the process runs; tests plant others.
    """

    def __init__(self, device: Device, tell: Tell = lambda _: None, module: str = MODULE) -> None:
        self.device = device
        self._tell = tell
        self._module = module
        self._process: Process | None = None
        self._python: str | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @property
    def python(self) -> str | None:
        """The interpreter of the process that is warm."""
        return self._python if self._process else None

    def stop(self) -> None:
        """Ends the process at once, from another thread; the cell that it measured has no record."""
        with self._lock:
            self._stopped.set()
            if self._process:
                self._process.kill()

    def close(self) -> None:
        """Lets the process go."""
        process, self._process = self._process, None
        if process:
            process.end()
            process.drop()

    def measure(self, task: Task) -> CellRecord | None:
        """The record of a task; None when the worker was stopped meanwhile.

        Raises:
            DeviceLost: no process comes up.
        """
        start, told = time.monotonic(), set[int]()

        def held_back(others: int) -> None:
            if others not in told:
                told.add(others)
                self._event("held-back", address=task.cell.address, others=others)

        for attempt in range(1, ATTEMPTS + 1):
            process = self._warm(task.python)
            if process is None:
                return None
            found = process.ask(task.request, task.timeout_s, held_back)
            if not isinstance(found, Ended):
                return self._answered(task, found, attempt, time.monotonic() - start)
            self.close()
            if self._stopped.is_set():
                return None
            if not found.killed or attempt == ATTEMPTS:
                return self._unanswered(task, found, attempt, time.monotonic() - start)
            self._event("worker-killed", address=task.cell.address)
        return None

    def _event(self, event: str, **more: object) -> None:
        self._tell({**more, "event": event, "lane": self.device.name})

    def _warm(self, python: str) -> Process | None:
        """The process of this interpreter, started if there is none; None when the worker was stopped."""
        if self._process and self._python == python:
            return self._process
        self.close()
        for attempt in range(1, ATTEMPTS + 1):
            process = self._started(python)
            if process is None:
                return None
            found = process.ask(None, READY_S)
            if not isinstance(found, Ended) and found["event"] == "ready":
                self._tell({**found, "event": "worker", "lane": self.device.name, "pid": process.pid})
                return process
            self.close()
            if self._stopped.is_set():
                return None
            if not (isinstance(found, Ended) and found.killed) or attempt == ATTEMPTS:
                raise DeviceLost(_why_lost(found))
        return None

    def _started(self, python: str) -> Process | None:
        """A new process; None when the worker was stopped."""
        command = [python, "-m", self._module, self.device.backend, str(os.getpid())]
        with self._lock:
            if self._stopped.is_set():
                return None
            try:
                self._process = Process(command, self.device.environment)
            except OSError as error:
                raise DeviceLost(f"{error.filename or python}: {error.strerror or error}") from error
            self._python = python
            return self._process

    def _answered(self, task: Task, found: Mapping[str, Any], attempt: int, seconds: float) -> CellRecord:
        """The record of a cell whose worker answered; a process that is fit for no more is let go."""
        try:
            if found["event"] == "measured":
                measured = {"document": found["document"], "overhead_s": round(found["overhead_s"], 3)}
            else:
                failure = Failure(address=task.cell.address, kind=found["kind"], message=found["message"])
                measured = {"failure": failure}
            record = self._record(task, attempt, seconds, **measured)
        except (ValidationError, KeyError, TypeError, ValueError) as error:
            self.close()
            told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
            message = f"its worker's answer is not that of a cell: {told}"
            failure = Failure(address=task.cell.address, kind="crash", message=message)
            return self._record(task, attempt, seconds, failure=failure)
        if found.get("last") or (self._process and self._process.timed_out):
            self.close()
        return record

    def _unanswered(self, task: Task, ended: Ended, attempt: int, seconds: float) -> CellRecord:
        """The failure of a cell whose worker gave no answer."""
        kind: FailureKind = "crash"
        message = f"its worker ended with {ended.exit}"
        if ended.why == "timeout":
            kind, message = "timeout", f"no answer within {round(task.timeout_s, 1):g} s: its worker was ended"
        elif ended.why == "nonsense":
            message = f"its worker answered {ended.said!r}, which is no answer"
        elif ended.killed:
            kind, message = "out-of-memory", f"{message} {attempt} times, as when memory runs out"
        failure = Failure(address=task.cell.address, kind=kind, message=message, exit_code=ended.code, tail=ended.tail)
        return self._record(task, attempt, seconds, failure=failure)

    def _record(self, task: Task, attempt: int, seconds: float, **measured: object) -> CellRecord:
        about = {"cell": task.cell, "lane": self.device.name, "attempts": attempt, "seconds": round(seconds, 3)}
        return CellRecord.model_validate({**about, **measured})


def _why_lost(found: Mapping[str, Any] | Ended) -> str:
    """Why a worker did not come up, in one line."""
    if not isinstance(found, Ended):
        return str(found.get("message") or f"its worker said {found['event']!r} instead of 'ready'")
    if found.why == "timeout":
        return f"its worker was not ready within {READY_S:g} s"
    if found.why == "nonsense":
        return f"its worker said {found.said!r} instead of 'ready'"
    return next((line.strip() for line in reversed(found.tail.splitlines()) if line.strip()), found.exit)


class Work:
    """The tasks that are left; a record may add more.

    A worker keeps to its interpreter for as long as there is work for it, and is given its next task when the record of
    its last one is written.

    Args:
        tasks: that can be started now.
        budget_s: seconds after which no task is started.
        follow: from a record to the tasks that it brings.
    """

    def __init__(
        self,
        tasks: Iterable[Task] = (),
        budget_s: float | None = None,
        follow: Callable[[CellRecord], Iterable[Task]] = lambda _: (),
    ) -> None:
        self._changed = threading.Condition()
        self._ready = list(tasks)
        self._open = {task.cell.address for task in self._ready}  # without a record
        self._last: dict[int, str] = {}  # by worker's thread the address of its last task
        self._end = None if budget_s is None else time.monotonic() + budget_s
        self._follow = follow
        self._stopped = False
        self.out_of_time = False

    def take(self, warm: str | None, broken: Collection[str] = ()) -> Task | None:
        """The next task for a worker whose interpreter is `warm`; None when there is none left for it, or no time.

        Waits while records of others may still bring some. Without tasks for its own interpreter a worker gets one of
        the interpreter with the most left, and never of `broken` ones.
        """
        me = threading.get_ident()
        with self._changed:
            while not self._stopped and self._open:
                if self._ready and self._last.get(me) not in self._open:
                    counts = Counter(task.python for task in self._ready if task.python not in broken)
                    if not counts or self._late():
                        return None
                    python = warm if warm in counts else counts.most_common(1)[0][0]
                    task = next(task for task in self._ready if task.python == python)
                    self._ready.remove(task)
                    self._last[me] = task.cell.address
                    return task
                self._changed.wait()
        return None

    def _late(self) -> bool:
        self.out_of_time = self.out_of_time or (self._end is not None and time.monotonic() > self._end)
        return self.out_of_time

    def written(self, record: CellRecord) -> None:
        """Takes in a record that is on disk."""
        with self._changed:
            self._open.discard(record.cell.address)
            self._ready[:0] = more = list(self._follow(record))
            self._open |= {task.cell.address for task in more}
            self._changed.notify_all()

    def give_back(self, task: Task) -> None:
        """Returns a task that was not measured."""
        with self._changed:
            self._last.pop(threading.get_ident(), None)
            self._ready.insert(0, task)
            self._changed.notify_all()

    def others(self, broken: Collection[str]) -> bool:
        """Whether tasks of other interpreters than these can be started."""
        with self._changed:
            return any(task.python not in broken for task in self._ready)

    def stop(self) -> None:
        """Wakes workers that wait; nobody gets a task any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def __len__(self) -> int:
        """Tasks without a record."""
        with self._changed:
            return len(self._open)


@dataclass
class Outcome:
    """How a run went: cells measured and failed, why devices were lost, cells left, and whether time ran out."""

    measured: int = 0
    failed: list[CellRecord] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    left: int = 0
    out_of_time: bool = False


def run(
    work: Work, devices: Sequence[Device], records: Records, *, tell: Tell = lambda _: None, module: str = MODULE
) -> Outcome:
    """Measures all work on all devices at once; each record is on disk before its cell is told as done.

    Args:
        work: what is missing.
        devices: a worker each.
        records: where records go.
        tell: called in this thread with each event: ``started``, ``measured``, ``failed``, ``worker``,
            ``worker-killed``, ``worker-broken``, ``held-back``, ``lane-lost``.
        module: what the workers run.

    Raises:
        FlashladderError: a record could not be written; the workers are ended, what was written stays.
        KeyboardInterrupt: the workers are ended, what was written stays.
    """
    outcome = Outcome()
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    workers = [Worker(device, events.put, module) for device in devices]
    threads = [threading.Thread(target=_serve, args=(worker, work, events), daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            event = events.get()
            if event is None:
                running -= 1
                continue
            _note(event, outcome, work, records)
            tell(event)
    finally:
        work.stop()
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()
        while not events.empty():  # cells that were done while the sweep was being interrupted
            record = (events.get() or {}).get("record")
            if record is not None:
                with suppress(FlashladderError):  # what ended the sweep is told already
                    records.write(record)
    outcome.left, outcome.out_of_time = len(work), work.out_of_time
    return outcome


def _note(event: Event, outcome: Outcome, work: Work, records: Records) -> None:
    """Writes the record of an event, and counts it."""
    record: CellRecord | None = event.get("record")
    if record is not None:
        records.write(record)
        work.written(record)
        if record.failure:
            outcome.failed.append(record)
        else:
            outcome.measured += 1
    elif event["event"] in ("lane-lost", "worker-broken"):
        outcome.lost[event["lane"]] = event["message"]


def _serve(worker: Worker, work: Work, events: queue.SimpleQueue[Event | None]) -> None:
    """A worker's thread: takes tasks until none is left, or the device is lost or stopped.

    An interpreter whose process does not come up is left alone; a second one right after it means a lost device.
    """
    name, broken, works = worker.device.name, set[str](), True
    task: Task | None = None
    try:
        while task := work.take(worker.python, broken):
            events.put({"event": "started", "lane": name, "cell": task.cell})
            try:
                record = worker.measure(task)
            except DeviceLost as error:
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
    except Exception as error:  # noqa: BLE001 - a mistake of ours must not leave the other workers waiting
        if task:
            work.give_back(task)
        events.put({"event": "lane-lost", "lane": name, "message": f"{type(error).__name__}: {first_line(error)}"})
    finally:
        try:
            worker.close()
        finally:
            events.put(None)
