"""A real Slurm for each test that asks for one; skipped, or in CI failed, where Slurm is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import os
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, cluster, missing, wait_until


def require() -> None:
    """Skips a test where Slurm is missing; fails it where CI has to have it."""
    reason = missing()
    if reason and os.environ.get("FLASHLADDER_SLURM") == "required":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture
def slurm() -> Iterator[Cluster]:
    require()
    with cluster() as started:
        yield started


def within(seconds: float, what: Callable[[], object], message: Callable[[], object] = lambda: "") -> None:
    """Waits until `what()` is true; fails with `message()`."""
    assert wait_until(what, seconds), message()


def processes_of(word: str) -> dict[int, str]:
    """Number and command line of every process that has `word` in its command line or in its environment."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if word.encode() in command + b"\0" + environment:
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found
