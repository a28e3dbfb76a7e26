"""A function over items in several processes: order, and errors that arrive whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from flashladder import parallel
from flashladder.errors import FlashladderError, failures


@pytest.mark.parametrize("n_cpus", [1, 2])
def test_answers_come_in_the_items_order(monkeypatch: pytest.MonkeyPatch, n_cpus: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(n_cpus)))
    assert parallel.over(abs, [3, -1, -2], "abs") == [3, 1, 2]
    assert parallel.over(abs, [], "nothing") == []


@pytest.mark.parametrize("n_cpus", [1, 2])
def test_the_first_error_ends_it(monkeypatch: pytest.MonkeyPatch, n_cpus: int) -> None:
    from ptxemu.text import parse_bytes

    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(n_cpus)))
    with pytest.raises(failures(), match=r"not a memory budget.*'x'") as caught:
        parallel.over(parse_bytes, ["1", "x", "y"], "bytes")
    assert caught.value.exit_code == 2


def test_a_killed_process_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(FlashladderError, match=r"numbers: a process was killed.*memory"):
        parallel.over(os._exit, [9, 9], "numbers")


def test_a_caller_in_a_thread_can_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    stop, began = threading.Event(), time.monotonic()
    stop.set()
    with ThreadPoolExecutor(1) as thread, pytest.raises(KeyboardInterrupt):
        thread.submit(parallel.over, time.sleep, [60, 60], "sleep", stop=stop).result()
    assert time.monotonic() - began < 30


def program(work: str) -> subprocess.Popen[bytes]:
    """A process in a group of its own that does `work` on two CPUs."""
    lines = [
        "import os, time",
        "os.sched_getaffinity = lambda _: {0, 1}",
        "from flashladder import errors, parallel",
        "print('ready', flush=True)",
        "if __name__ == '__main__':",
        "    with errors.one_line_errors():",
        f"        parallel.over({work})",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def require_gone(group: int, start: float) -> None:
    """Waits until no process of a group runs, at most 60 s after `start`."""
    with suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            assert time.monotonic() - start < 60, "a process was left behind"
            time.sleep(0.05)


def test_an_interrupt_ends_every_process_at_once() -> None:
    """Ctrl-C reaches a terminal's whole process group: the workers too, possibly before they have started."""
    start = time.monotonic()
    with program("time.sleep, [120.0] * 4, 'naps'") as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.decode().splitlines()[-1] == "interrupted"
    assert "Traceback" not in errors.decode()
    require_gone(process.pid, start)


def test_workers_end_with_a_process_that_is_killed() -> None:
    """They hold both ends of the pipe that they read their work from, and would wait forever."""
    start = time.monotonic()
    with program("time.sleep, [0.0, 120.0, 0.0], 'naps', lambda _: print('works', flush=True)") as process:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == [b"ready\n", b"works\n"]
        process.kill()
    require_gone(process.pid, start)
