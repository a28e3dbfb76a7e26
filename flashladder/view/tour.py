"""``invoke tour``: shows a newcomer the project in ten minutes on a machine without a GPU.

A station explains in a few lines what it shows, runs a real command, and prints the beginning of its output.

Run: ``invoke tour``; ``invoke tour --start 5`` begins there, ``--yes`` never waits. On a terminal it waits for Enter;
q leaves. Exit code: 0 at the end or after q, 1 if a command failed, 2 for bad options.
"""

from __future__ import annotations

import os
from pathlib import Path
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple, cast

from flashladder.arguments import within
from flashladder.columns import terminal_width
from flashladder.errors import CheckFailed, require_checkout
from flashladder.located import read_yaml
from flashladder.paths import ROOT


class Station(NamedTuple):
    """One stop."""

    title: str
    text: str  # what it shows and why that matters
    typed: str  # the command as a person types it
    shown: int  # the number of lines to print; the rest is counted
    past: str = ""  # printing begins at the first line with this text

    @property
    def command(self) -> list[str]:
        """The command for this interpreter."""
        program, *words = self.typed.split()
        return [sys.executable, "-m", "flashladder", *words] if program == "invoke" else [sys.executable, *words]


STATIONS = tuple(Station(**row) for row in cast("Any", read_yaml(Path(__file__).parent / "templates" / "tour.yaml")))
GOODBYE = (
    "That was the ladder. Next: docs/reading-order.md to understand it, docs/add-an-iteration.md to extend it, "
    "`nox -s reproduce` to prove all of it here, and on a machine with a GPU to time it."
)


def walk(first: int = 1, *, waits: bool = True) -> None:
    """Shows the stations from `first` on; on a terminal it waits before each one if `waits` is true.

    Raises `CheckFailed` if a command fails or does not print the text of its station, `FlashladderError` if there is no
    such station, or no checkout.
    """
    within("start", first, most=len(STATIONS))
    require_checkout("tour")
    waits = waits and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    for number, station in enumerate(STATIONS[first - 1 :], first):
        print(f"{number}/{len(STATIONS)}  {station.title}\n\n{textwrap.fill(station.text, terminal_width())}\n")
        print(f"$ {station.typed}", flush=True)
        again = f"go on with: invoke tour --start {number}"
        try:
            answer = input("Enter runs it, q leaves: ") if waits else ""
        except EOFError:
            answer = "q"
        if answer.strip().lower() in ("q", "quit", "exit"):
            print(again)
            return
        print(f"{_output(station, f'`{station.typed}` says more; {again}')}\n", flush=True)
    print(textwrap.fill(GOODBYE, terminal_width()))


def _output(station: Station, hint: str) -> str:
    """The output of the station's command, cut to `shown` lines and to the terminal's width."""
    width = terminal_width()
    environment = os.environ | {"COLUMNS": str(width)}
    done = subprocess.run(station.command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1].removeprefix("error: ")
        what = f"`{station.typed}` could not be shown"
        raise CheckFailed(what, expected="exit code 0", found=f"{done.returncode}: {last}", hint=hint)
    lines = done.stdout.splitlines()
    start = next((place for place, line in enumerate(lines) if station.past in line), None)
    if start is None:
        raise CheckFailed(f"`{station.typed}` shows nothing", expected=repr(station.past), hint=hint)
    chosen = lines[start : start + station.shown]
    fitted = "\n".join(
        textwrap.fill(line, width, subsequent_indent="    ") if len(line) > width else line for line in chosen
    )
    left = len(lines) - len(chosen)
    return f"{fitted}\n({left} more lines)" if left else fitted
