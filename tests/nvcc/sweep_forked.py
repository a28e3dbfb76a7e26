"""Sweeps as processes that a test can kill: by their command, or forked from a process that has imported everything.

Why forked: importing torch takes longer than all cells of a test's grid, so that a random moment would nearly always
fall into an import. A forked sweep is the same program from `main` on, its workers are its children in sessions of
their own, over pipes, with nothing of it open; only ``exec`` is left out. Used by `tests.nvcc.sweep_faults`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
import io
import multiprocessing
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from types import SimpleNamespace
from typing import IO, Any

from flashladder.errors import one_line_errors
from flashladder.paths import ROOT
from flashladder.sweep import command
from flashladder.sweep import workers as process

WORKER = "flashladder.sweep.workers"
KEPT: list[object] = []  # files of the sweep in its workers: what is in their buffers is the sweep's to write
FORK = multiprocessing.get_context("fork")


class Sweep:
    """One that runs: its process, and what it writes to stderr."""

    pid: int

    def __init__(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this

    def told(self) -> str:
        """What it wrote to stderr."""
        self._stderr.seek(0)
        return self._stderr.read().decode()

    def workers(self) -> list[int]:
        """Its workers that run."""
        found = []
        for entry in _processes():
            with suppress(OSError):
                if self._is_worker(entry):
                    found.append(int(entry.name))
        return found

    def _is_worker(self, entry: Path) -> bool:
        """Whether a process is one; `entry` is its folder in /proc."""
        raise NotImplementedError


class ByCommand(Sweep):
    """``python -m flashladder.sweep`` with these options."""

    def __init__(self, options: Sequence[str]) -> None:
        super().__init__()
        words = [sys.executable, "-m", "flashladder.sweep", *options]
        self._process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=self._stderr)
        self.pid = self._process.pid

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code; None when it still runs after this time."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def kill(self) -> None:
        """SIGKILL, to the sweep alone."""
        self._process.kill()
        self._process.wait()

    def _is_worker(self, entry: Path) -> bool:
        words = (entry / "cmdline").read_bytes().split(b"\0")  # empty for one that ended
        return WORKER.encode() in words and str(self.pid).encode() in words


class Forked(Sweep):
    """The same, forked from this process."""

    def __init__(self, options: Sequence[str]) -> None:
        super().__init__()
        self._process = FORK.Process(target=_sweep, args=(list(options), self._stderr.fileno()))
        self._process.start()
        self.pid = int(self._process.pid or 0)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code; None when it still runs after this time."""
        self._process.join(timeout_s)
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL, to the sweep alone."""
        self._process.kill()
        self._process.join()

    def _is_worker(self, entry: Path) -> bool:
        """Workers bear the name that the sweep gave itself."""
        name = (entry / "comm").read_text().strip()
        state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        return name == _name(self.pid) and entry.name != str(self.pid) and state not in "ZX"


def seconds_until_gone(sweep: ByCommand | Forked, at_most_s: float) -> float:
    """How long workers outlived their sweep.

    Raises:
        AssertionError: they still do.
    """
    begin = time.monotonic()
    while left := sweep.workers():
        assert time.monotonic() - begin < at_most_s, f"orphans of sweep {sweep.pid}: {left}"
        time.sleep(0.01)
    return time.monotonic() - begin


def _processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _name(pid: int) -> str:
    return f"sweep-{pid}"


def _sweep(options: Sequence[str], stderr: int) -> None:
    """What a forked sweep runs."""
    Path("/proc/self/comm").write_text(_name(os.getpid()))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(stderr, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    process.subprocess = SimpleNamespace(  # type: ignore[assignment,attr-defined]  # all that it takes of the module
        Popen=ForkedWorker, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )
    with one_line_errors():
        raise SystemExit(command.main(options))


class ForkedWorker:
    """Takes the place of `subprocess.Popen` for a worker: everything but ``exec``."""

    def __init__(self, words: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **_: Any) -> None:
        requests, answers = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _work(words, (requests[0], answers[1], stderr.fileno()), env)
        os.close(requests[0])
        os.close(answers[1])
        self.stdin, self.stdout = io.open(requests[1], "wb"), io.open(answers[0], "rb")  # noqa: SIM115, UP020

    def wait(self, timeout: float) -> int:
        """The exit code, as of `subprocess.Popen.wait`."""
        end = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                raise subprocess.TimeoutExpired("worker", timeout)
            else:
                time.sleep(0.005)
        return self.returncode


def _work(words: Sequence[str], ends: tuple[int, int, int], env: Mapping[str, str]) -> None:
    """A forked worker; does not return."""
    code = 1
    try:
        os.setsid()
        for number, end in enumerate(ends):
            os.dup2(end, number)
        os.closerange(3, min(4096, os.sysconf("SC_OPEN_MAX")))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.update(env)
        KEPT.append((sys.stdin, sys.stdout, sys.stderr))
        sys.stdin, sys.stdout, sys.stderr = (open(n, mode) for n, mode in enumerate(("r", "w", "w")))  # noqa: PTH123, SIM115
        code = process.main(words[3], int(words[4]))
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        os._exit(code)
