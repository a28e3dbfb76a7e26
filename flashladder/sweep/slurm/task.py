"""What one task of the array does: it runs the sweep on its share of the cells, and stops in time.

Why a class: submitit pickles it, and calls `checkpoint` when Slurm announces the end of the task's time or takes its
node for other people's jobs. All that was measured is in the records by then; the same task, started again, goes on.

Run: by `flashladder.sweep.slurm.array`; it starts `flashladder.sweep.array_task`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from flashladder.sweep.records import Records

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

STOP_S = 30.0  # what the sweep gets to end, before it is killed
POLL_S = 0.1
GOT_NOWHERE = "no cell was finished in the task's time, so that it is not started again; --slurm time=... gives it more"
WARNING_S = 90  # at most, from Slurm's announcement to the end of the task's time
WARNING = signal.SIGUSR2  # the announcement, as submitit asks for it


@dataclass
class Task:
    """A share of a sweep.

    Attributes:
        command: what runs it; the number of this process is put behind it.
        arguments: of the sweep.
        folder: where its records go.
    """

    command: tuple[str, ...]
    arguments: tuple[str, ...]
    folder: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False, compare=False)
    _code: int | None = field(default=None, repr=False, compare=False)
    _before: int = field(default=0, repr=False, compare=False)

    def __call__(self) -> int:
        """Runs the command to its end.

        Returns:
            its exit code, 0 or 1 (some cells failed, which their records tell).

        Raises:
            SystemExit: it could not run (2), or a signal ended it (128 and the signal's number, as a shell has it).
        """
        self._before = self._records()
        # Slurm sends the announcement to every process of a task; this one alone acts on it. Masks are inherited.
        signal.pthread_sigmask(signal.SIG_BLOCK, {WARNING})
        try:
            self._process = subprocess.Popen([*self.command, str(os.getpid()), *self.arguments])
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {WARNING})
        threading.Thread(target=self._reap, args=(self._process,), daemon=True).start()
        try:
            while (code := self._code) is None:
                time.sleep(POLL_S)
        finally:
            self._stop()
        if code not in (0, 1):
            sys.exit(128 - code if code < 0 else code)
        return code

    def checkpoint(self) -> DelayedSubmission | None:
        """Ends the command; what to run when the task is started again, or None where it got nowhere.

        A task whose time is too short for a single cell would be started again for ever.
        """
        from submitit.helpers import DelayedSubmission

        self._stop()
        if self._records() <= self._before:
            print(f"error: {GOT_NOWHERE}", file=sys.stderr, flush=True)
            return None
        return DelayedSubmission(Task(self.command, self.arguments, self.folder))

    def _records(self) -> int:
        """How many cells of the sweep have a record, those of the other tasks too."""
        return len(Records(self.folder).addresses())

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Notes how the command ended. In a thread: a signal's handler must not wait for a lock that it interrupted."""
        self._code = process.wait()

    def _stop(self) -> None:
        """SIGTERM for the command, and SIGKILL where that does not help; every record is whole in both cases."""
        if self._process is None:
            return
        for number, seconds in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            if self._code is None:
                self._process.send_signal(number)
            end = time.monotonic() + seconds
            while self._code is None and time.monotonic() < end:
                time.sleep(POLL_S)
