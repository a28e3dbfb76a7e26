"""What ends a sweep from outside, made one thing: SIGTERM is Ctrl-C, and a reader of its output that left is an error.

Why: Slurm and systemd say SIGTERM; either must leave whole records, no worker, and a line on how to go on. Used by
`flashladder.sweep.command`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import signal

from flashladder.errors import FlashladderError, drop_stdout


@contextmanager
def terminable() -> Iterator[None]:
    """While this lasts, SIGTERM raises what Ctrl-C does.

    Raises:
        FlashladderError: nobody reads stdout any more.
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except BrokenPipeError as error:
        drop_stdout()
        raise FlashladderError("nobody reads what is printed any more", hint="the same command goes on") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
