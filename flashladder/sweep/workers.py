"""Worker processes, one per GPU or CPU. Each measures one cell after the other, and is replaced if it dies.

Cells run in processes for three reasons: a CUDA kernel that faults destroys its CUDA context, one that hangs can only
be killed, and each iteration has its own environment. If a worker dies, hangs, sends an invalid answer or breaks its
CUDA context, only that cell fails. If it is killed from outside (out of memory, an operator), its cell is measured
again. One thread per worker waits for its answers. The main thread distributes cells and writes records.

A worker process runs this module. It reads requests from stdin and writes answers to stdout, one line of JSON each.
Output of libraries goes to stderr. It ends when stdin closes or the sweep's process dies. To see its output:

    echo '{}' | python -m flashladder.sweep.workers cpu
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
import ctypes
from dataclasses import dataclass, field
import fcntl
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any, TypeGuard

from pydantic import ValidationError

from flashladder import parallel
from flashladder.errors import FlashladderError, first_line
from flashladder.files import relative
from flashladder.paths import PACKAGE
from flashladder.results.schema import Failure, FailureKind, PlannedCell
from flashladder.sweep.records import CellRecord, Records, kind_of

MODULE = "flashladder.sweep.workers"
ATTEMPTS = 3  # tries of a cell whose worker is killed from outside
READY_S = 180.0  # time limit of a worker's start: import torch, open the GPU
LET_GO_S = 5.0  # wait for the exit of a worker that closed its stdout
UNKILLABLE_S = 30.0  # wait for the exit after SIGKILL; a process that takes longer hangs in a driver
KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGUSR2)  # SIGUSR2: a Slurm task is near its time limit
GOES_ON = "run the same command again to continue"
TAIL = 2000  # last bytes of a dead worker's stderr, kept in the record
PIPE_BYTES = 1 << 20  # a request fits into the pipe, so writing it never blocks

Event = Mapping[str, Any]
PR_SET_PDEATHSIG = 1  # prctl(2)
POISONS_CONTEXT: frozenset[FailureKind] = frozenset({"illegal-address", "crash", "gpu-lost"})  # unusable after these
Answer = Mapping[str, Any]
Measure = Callable[[PlannedCell, Mapping[str, Any]], tuple[Any, float]]
"""Takes a cell and its request; returns the cell's document and the seconds of measurement without overhead."""


@dataclass(frozen=True)
class Device:
    """A GPU or CPU: a name for messages, the worker's backend, and extra environment variables of the worker."""

    name: str
    backend: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One cell with the interpreter that has its kernel, its time limit in seconds, and the request to its worker."""

    cell: PlannedCell
    python: str
    timeout_s: float
    request: Mapping[str, Any]


class DeviceLost(Exception):
    """The worker of an interpreter did not start: its environment is broken, or the GPU is lost."""


def answer_of(line: bytes) -> dict[str, Any] | None:
    """The answer in a line: a JSON mapping with an ``event``; None for anything else."""
    try:
        found = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


class Worker:
    """Measures on one device, in a process with its own process group. The process stays warm between tasks.

    The process starts in the parent folder of this package, so Python does not import a checkout in the caller's
    working folder. The process dies when the thread that started it ends.
    """

    def __init__(self, device: Device, tell: Callable[[Event], object], module: str = MODULE) -> None:
        self.device = device
        self.python: str | None = None  # interpreter of the process; None if there is no process
        self.broken: list[str] = []  # interpreters whose process did not start
        self.is_sound = True  # whether the last process started; two in a row that did not mean a lost device
        self.is_lost = False  # whether the device gets no more tasks
        self._tell, self._module = tell, module
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._asked_at = 0  # size of stderr at the last request
        self._heard = b""  # bytes read that are not yet a line
        self._lock = threading.Lock()  # held while a process starts and in close()
        self._is_closed = False

    def close(self) -> None:
        """Kills the process and its children. A thread that waits for an answer gets none and starts no new process."""
        with self._lock:
            self._is_closed = True
            if self._process:
                _kill(self._process)

    def tell(self, event: str, **more: Any) -> None:
        """Reports an event of this device, unless the worker is closed."""
        if not self._is_closed:
            self._tell({**more, "event": event, "lane": self.device.name})

    def next_of(self, ready: Sequence[Task]) -> Task | None:
        """The next task: of the current interpreter, else of the one with the most tasks. Skips broken interpreters."""
        counts = Counter(task.python for task in ready if not self.is_lost and task.python not in self.broken)
        python = self.python if self.python in counts else max(counts, key=counts.__getitem__, default=None)
        return next((task for task in ready if task.python == python), None)

    def give_up(self, python: str, ready: Sequence[Task], message: str) -> None:
        """Marks an interpreter as broken; the device as lost if none remains or the last start failed, too."""
        self.broken.append(python)
        self.is_lost = not self.is_sound or all(task.python in self.broken for task in ready)
        self.is_sound = False
        self.tell("lane-lost" if self.is_lost else "worker-broken", message=message)

    def measure(self, task: Task) -> CellRecord:
        """Measures a task and returns its record. Raises `DeviceLost`: the process did not start."""
        begin, attempt = time.monotonic(), 0
        found: dict[str, Any] | Failure = {}
        for attempt in range(1, ATTEMPTS + 1):
            if self.python != task.python:
                self._start(task.python)
                found = self._ask(task, b"", READY_S)
                if _killed(found) and attempt < ATTEMPTS:
                    continue
                if isinstance(found, Failure) or found["event"] != "ready":
                    self.end()
                    raise DeviceLost(_why_lost(found))
                self.is_sound = True
                self.tell(**{**found, "event": "worker"})
            found = self._ask(task, json.dumps(task.request).encode() + b"\n", task.timeout_s)
            if not _killed(found):
                break
            if attempt < ATTEMPTS:
                self.tell("worker-killed", address=task.cell.address)
            else:
                message = f"{found.message} {attempt} times, as when memory runs out"
                found = found.model_copy(update={"kind": "out-of-memory", "message": message})
        return self._record(task, found, attempt, time.monotonic() - begin)

    def _start(self, python: str) -> None:
        self.end()
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
        command = [python, "-m", self._module, self.device.backend, str(os.getpid())]
        with self._lock:
            if self._is_closed:
                raise DeviceLost("the sweep is ending")
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True,
                    env={**os.environ, **self.device.environment, "PYTHONPATH": path}, cwd=PACKAGE.parent,
                )  # fmt: skip
            except OSError as error:
                self._stderr.close()
                raise DeviceLost(f"{error.filename or python}: {error.strerror or error}") from error
        assert self._process.stdin
        with suppress(OSError):  # if the user's pipe limit is reached, keep the default size
            fcntl.fcntl(self._process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.python, self._heard = python, b""

    def end(self) -> tuple[int | None, str]:
        """Kills the process and its children; returns its exit code and the end of stderr since the last request."""
        with self._lock:
            process, self._process, self.python = self._process, None, None
        if process is None or self._stderr is None:
            return None, ""
        for stream in filter(None, (process.stdin, process.stdout)):
            with suppress(OSError):  # unwritten data for a process that died
                stream.close()
        _kill(process)
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=UNKILLABLE_S)
        with self._stderr as stderr:
            size = os.fstat(stderr.fileno()).st_size
            start = max(self._asked_at, size - TAIL)
            return code, os.pread(stderr.fileno(), size - start, start).decode(errors="replace")

    def _ask(self, task: Task, request: bytes, timeout_s: float) -> dict[str, Any] | Failure:
        """The answer to a request. An empty request waits for a new process's first message. Kills a silent process.

        While other processes use the GPU, the worker sends ``held-back`` events. Each restarts the timeout.
        """
        assert self._process
        assert self._process.stdin
        assert self._stderr
        self._asked_at = os.fstat(self._stderr.fileno()).st_size
        with suppress(OSError):  # if it no longer reads, its stdout also ends
            self._process.stdin.write(request)
            self._process.stdin.flush()
        reported = set[int]()
        while True:
            line = self._line(timeout_s)
            found = answer_of(line or b"")
            if found is None:
                return self._ended(task, line, timeout_s)
            if found["event"] != "held-back":
                return found
            if (others := int(found.get("others", 0))) not in reported:
                reported.add(others)
                self.tell("held-back", address=task.cell.address, others=others)

    def _line(self, timeout_s: float) -> bytes | None:
        """The next line of stdout, incomplete if stdout was closed; None after a timeout."""
        assert self._process
        assert self._process.stdout
        end = time.monotonic() + timeout_s
        while b"\n" not in self._heard:
            if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            if not (new := os.read(self._process.stdout.fileno(), PIPE_BYTES)):
                break
            self._heard += new
        line, mark, self._heard = self._heard.partition(b"\n")
        return line + mark

    def _ended(self, task: Task, line: bytes | None, timeout_s: float) -> Failure:
        """Ends a process whose `line` is not a valid answer (None: a timeout), and returns the failure."""
        assert self._process
        kind: FailureKind = "crash"
        is_gone = False
        if line is not None and not line.endswith(b"\n"):  # it closed its stdout
            with suppress(subprocess.TimeoutExpired):
                is_gone = self._process.wait(LET_GO_S) is not None
        code, tail = self.end()
        if line is None:
            kind, message = "timeout", f"no answer within {round(timeout_s, 1):g} s: its worker was killed"
        elif is_gone:
            names = {-one.value: f"signal {one.name}" for one in signal.Signals}
            message = f"its worker ended with {names.get(code or 0, f'exit code {code}')}"
        else:
            answer, code = line[:80].decode(errors="replace").strip(), None
            message = f"its worker answered {answer!r}, not a valid answer"
        return Failure(address=task.cell.address, kind=kind, message=message, exit_code=code, tail=tail)

    def _record(self, task: Task, found: Mapping[str, Any] | Failure, attempt: int, seconds: float) -> CellRecord:
        """The record of an answer or a failure. Ends a process that cannot measure any more."""
        about = {"cell": task.cell, "lane": self.device.name, "attempts": attempt, "seconds": round(seconds, 3)}
        if isinstance(found, Failure):
            return CellRecord.model_validate({**about, "failure": found})
        if found.get("last"):
            self.end()
        try:
            if found["event"] == "measured":
                overhead_s = round(found["overhead_s"], 3)
                return CellRecord.model_validate({**about, "document": found["document"], "overhead_s": overhead_s})
            failure = Failure(address=task.cell.address, kind=found["kind"], message=found["message"])
        except (ValidationError, KeyError, TypeError) as error:
            self.end()
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
            message = f"its worker's answer is not a cell's result: {reason}"
            failure = Failure(address=task.cell.address, kind="crash", message=message)
        return CellRecord.model_validate({**about, "failure": failure})


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process group: the process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _killed(found: Mapping[str, Any] | Failure) -> TypeGuard[Failure]:
    """Whether the worker was killed from outside: by Linux when memory ran out, or by an operator."""
    return isinstance(found, Failure) and found.kind == "crash" and found.exit_code in KILLED


def _why_lost(found: Mapping[str, Any] | Failure) -> str:
    """Why a worker did not start: its own message, or the last line of its stderr."""
    if isinstance(found, Failure):
        return next((line.strip() for line in reversed(found.tail.splitlines()) if line.strip()), found.message)
    return str(found.get("message") or f"its worker sent {found['event']!r} instead of 'ready'")


def run(
    tasks: Iterable[Task],
    devices: Sequence[Device],
    records: Records,
    *,
    budget_s: float | None = None,
    follow: Callable[[CellRecord], Iterable[Task]] = lambda _: (),
    tell: Callable[[Event], object] = lambda _: None,
    module: str = MODULE,
) -> None:
    """Measures all tasks on all devices in parallel. Writes each record before it reports the cell's result.

    No task starts after `budget_s` seconds. `follow` returns the tasks that follow from a record. `tell` gets each
    event, from one thread at a time: ``started``, ``measured``, ``failed``, ``worker``, ``worker-killed``,
    ``worker-broken``, ``held-back``, ``lane-lost``.
    Raises `FlashladderError`: cells remain (budget spent, or no worker could be started), or a record could not be
    written. Raises `KeyboardInterrupt`: as after any error, the workers are ended and all written records stay.
    """
    end = math.inf if budget_s is None else time.monotonic() + budget_s
    ready, lost, one_at_a_time = list(tasks), dict[str, str](), threading.Lock()

    def tell_one(event: Event) -> None:
        with one_at_a_time:
            tell(event)

    workers = [Worker(device, tell_one, module) for device in devices]
    busy: dict[Future[CellRecord], tuple[Worker, Task]] = {}
    pool = ThreadPoolExecutor(max(1, len(workers)))
    try:
        while True:
            at_work = [worker for worker, _ in busy.values()]
            is_late = time.monotonic() > end
            for worker in workers:
                if worker not in at_work and not is_late and (task := worker.next_of(ready)):
                    ready.remove(task)
                    worker.tell("started", cell=task.cell)
                    busy[pool.submit(worker.measure, task)] = worker, task
            if not busy:
                break
            for done in wait(busy, return_when=FIRST_COMPLETED).done:
                worker, task = busy.pop(done)
                try:
                    record = done.result()
                except DeviceLost as error:
                    ready.insert(0, task)
                    lost[worker.device.name] = str(error)
                    worker.give_up(task.python, ready, str(error))
                else:
                    records.write(record)
                    ready[:0] = follow(record)
                    worker.tell("failed" if record.failure else "measured", record=record)
    finally:
        for worker in workers:
            worker.close()
        pool.shutdown()
        for worker in workers:
            worker.end()
    if ready:
        why = "the grid's budget is spent" if is_late else "no worker could be started"
        what, found = f"{why}: {len(ready)} cells are not measured", "; ".join(f"{of}: {lost[of]}" for of in lost)
        raise FlashladderError(what, where=relative(records.folder), found=found or None, hint=GOES_ON)


def answer(measure: Measure, request: Mapping[str, Any]) -> Answer:
    """Measures the cell of one request. A failure is also an answer."""
    start = time.monotonic()
    try:
        document, busy_s = measure(PlannedCell.model_validate(request["cell"]), request)
    except Exception as error:  # noqa: BLE001 - any error of torch or CUDA fails this cell only
        return {"event": "failed", "kind": kind_of(error), "message": first_line(error)}
    overhead_s = max(0.0, time.monotonic() - start - busy_s)
    return {"event": "measured", "document": document.model_dump(mode="json"), "overhead_s": overhead_s}


def measurer(backend: str) -> tuple[Measure, Answer]:
    """The backend's measuring function and its ``ready`` answer. Imports slow packages here, once."""
    if backend == "cpu":
        import torch

        from flashladder.sweep.measure import emulated

        torch.set_num_threads(1)  # there is a worker per CPU
        parallel.tune_gc()
        return emulated, {"event": "ready", "module": emulated.__module__}
    from flashladder.sweep.measure import Session

    session = Session()
    return session.measure, {"event": "ready", **session.facts}


def main(backend: str, parent: int, make: Callable[[str], tuple[Measure, Answer]] = measurer) -> int:
    """Answers requests until stdin ends. After a failure that breaks the CUDA context, adds ``last`` and returns 3."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # Linux kills this process when the sweep dies
    if os.getppid() != parent:  # it died before that
        return 1
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # other output to stdout goes to stderr

    def tell(one: Answer) -> None:
        answers.write(json.dumps(one) + "\n")
        answers.flush()

    try:
        measure, ready = make(backend)
    except Exception as error:  # noqa: BLE001 - sent as an answer: the sweep decides what to do
        tell({"event": "unusable", "kind": kind_of(error), "message": first_line(error)})
        return 2
    tell(ready)
    for line in sys.stdin:
        found = answer(measure, {**json.loads(line), "tell": tell})
        last = found.get("kind") in POISONS_CONTEXT and backend != "cpu"
        tell({**found, "last": True} if last else found)
        if last:
            return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else os.getppid()))
