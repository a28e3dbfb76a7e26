"""Runs a command for at most so many seconds, and ends it with everything it started.

Why: profilers and sanitizers start the program that they watch; ending only the tool would leave that program on the
GPU, holding the pipe that we read. Needs nothing but the standard library, so that a bare machine can use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import os
from pathlib import Path
import signal
import subprocess


@dataclass(frozen=True)
class Reply:
    """What a command did: exit code (None: it was ended by us), and stdout and stderr together."""

    code: int | None
    output: str


def run_bounded(
    command: Sequence[str], timeout_s: float, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Reply:
    """Runs `command` in a process group of its own; after `timeout_s` seconds the whole group is ended."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=cwd, env=env,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return Reply(None, output)
        except BaseException:  # an interrupt must not leave the group on the GPU either
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Reply(process.returncode, output)
