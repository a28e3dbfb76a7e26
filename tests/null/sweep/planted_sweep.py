"""``python -m flashladder.sweep`` with planted workers and made-up code digests, for tests that signal it."""

from __future__ import annotations

from functools import partial
import sys

from flashladder.errors import one_line_errors
from flashladder.sweep import command, measure
from flashladder.sweep.workers import run
from tests.null.sweep_fixture import digests

MODULE = "tests.null.sweep.planted"


def plant() -> None:
    """Puts both into the place of what the command takes."""
    vars(command).update(run=partial(run, module=MODULE))
    vars(measure).update(known_digests=digests)


if __name__ == "__main__":
    plant()
    with one_line_errors():
        raise SystemExit(command.main(sys.argv[1:]))
