"""A worker's process as a lane sees it: one question, then an answer, or why there is none.

Why apart from the lane: what a process can do instead of answering (die, hang, talk nonsense, leave children behind)
is the operating system's business; which record that makes is the lane's. Used by `flashladder.sweep.lanes.lane`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from typing import IO, Any, Literal

from flashladder.paths import PACKAGE

TAIL = 2000  # bytes of a dead worker's stderr that its record keeps
LET_GO_S = 5.0  # a worker that waits for a request leaves in this time once its stdin is closed
UNKILLABLE_S = 30.0  # a process that outlives SIGKILL so long hangs in a driver
KILLED = (-signal.SIGKILL, -signal.SIGTERM)


@dataclass(frozen=True)
class Ended:
    """A worker that gave no answer, and is gone.

    Attributes:
        why: it ended by itself (or somebody else ended it), did not answer in time, or answered nonsense.
        code: how its process ended; None where it outlives SIGKILL.
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


class Process:
    """A worker: a process group of its own that is asked over pipes, and whose stderr is kept in a file.

    Args:
        command: what to start; its environment is this process's, its working folder that of this package, so that a
            checkout in this process's is not taken for it.
        environment: variables that are added.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()  # nobody signals a process id that was given back to the system
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

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""
        return self._process.pid

    def ask(
        self, request: Mapping[str, Any] | None, timeout_s: float, held_back: Callable[[int], object] = lambda _: None
    ) -> dict[str, Any] | Ended:
        """The answer to a request (None: the first word of a new worker); one that gives none is ended.

        While others use the GPU a worker says so again and again: `held_back` is told how many, its time begins anew.
        """
        self._asked_at = os.fstat(self._stderr.fileno()).st_size
        text = b"" if request is None else json.dumps(request).encode() + b"\n"
        line = self._line(text, timeout_s)
        while (found := answer_of(line)) and found["event"] == "held-back":
            held_back(int(found.get("others", 0)))
            line = self._line(b"", timeout_s)
        if found is not None:
            return found
        nonsense = line.endswith(b"\n")
        closed_only = not nonsense and not self.timed_out and self._exited(LET_GO_S) is None
        code = self.end(0.0 if nonsense else LET_GO_S)
        why: Literal["ended", "timeout", "nonsense"] = "ended"
        if self.timed_out:
            why = "timeout"
        elif nonsense or closed_only:
            why = "nonsense"
        return Ended(why, code, self._tail(), line[:80].decode(errors="replace").strip())

    def _line(self, text: bytes, timeout_s: float) -> bytes:
        """What it says to `text` within a time; not a whole line where it ended, or was ended."""
        self.timed_out = False
        timer = threading.Timer(timeout_s, self._time_out)
        timer.daemon = True
        timer.start()
        try:
            if text and self._process.stdin:
                self._process.stdin.write(text)
                self._process.stdin.flush()
            return self._process.stdout.readline() if self._process.stdout else b""
        except (OSError, ValueError):  # it does not read any more
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
                    os.killpg(self._process.pid, signal.SIGKILL)

    def end(self, let_go_s: float = LET_GO_S) -> int | None:
        """Lets a worker that waits for a request go, or ends it, with all that it started.

        Returns:
            How it ended; None where it outlives SIGKILL.
        """
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(OSError):  # what was still to be written to one that died
                    stream.close()
        self._exited(let_go_s)
        self.kill()  # also what it left behind: its group keeps its number until it is waited for
        with self._lock:
            try:
                return self._process.wait(timeout=UNKILLABLE_S)
            except subprocess.TimeoutExpired:
                return None

    def _exited(self, within_s: float) -> bool | None:
        """True once it has ended, without giving its process id back; None when it goes on."""
        end = time.monotonic() + within_s
        while self._process.returncode is None:
            if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                return True
            if time.monotonic() >= end:
                return None
            time.sleep(0.005)
        return True

    def _tail(self) -> str:
        """The end of what it wrote to stderr since it was asked; its own place in the file stays where it is."""
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(self._asked_at, size - TAIL)
        return os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace")

    def drop(self) -> None:
        """Closes the file behind its stderr."""
        self._stderr.close()


def answer_of(line: bytes) -> dict[str, Any] | None:
    """A line as an answer: a JSON mapping with an ``event``; None for anything else."""
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None
