"""Ends a process whose GPU does not answer: a kernel that hangs holds every call that waits for it.

Why a thread: whoever waits for the GPU does not come back, and neither does a process that ends in the usual way, as
torch waits for the GPU once more. The interpreter is free meanwhile, so that another thread can write down what hung.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import os
import sys
from threading import Timer

HUNG = 1  # exit code: a kernel is wrong


def leave(line: str) -> None:
    """Prints a line and ends the process at once."""
    print(f"error: {line}", file=sys.stderr, flush=True)
    os._exit(HUNG)


@dataclass(frozen=True)
class Watchdog:
    """Bounds what waits for a GPU: at the deadline it calls `tell` with one line, then `end` with the same.

    Attributes:
        tell: writes down what hung.
        end: does not come back.
    """

    tell: Callable[[str], object] = lambda _: None
    end: Callable[[str], object] = leave

    @contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """What is done inside must end within so many seconds."""

        def hung() -> None:
            line = f"{what}: no end within {seconds:g} s"
            try:
                self.tell(line)
            finally:
                self.end(line)

        timer = Timer(seconds, hung)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
