"""``invoke tour``: shows a newcomer the project in ten minutes on a machine without a GPU.

A station explains in a few lines what it shows, runs a real command, and prints the beginning of its output.

Run: ``invoke tour``; ``invoke tour --start 5`` begins there, ``--yes`` never waits. On a terminal it waits for Enter;
q leaves. Exit code: 0 at the end or after q, 1 if a command failed, 2 for bad options.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import NamedTuple

from flashladder.arguments import within
from flashladder.columns import terminal_width
from flashladder.errors import CheckFailed, require_checkout
from flashladder.paths import ROOT

QUIT = ("q", "quit", "exit")


class Station(NamedTuple):
    """One stop."""

    title: str
    text: str  # what it shows and why that matters
    typed: str  # the command as a person types it
    shown: int  # the number of lines to print; the rest is counted
    past: str  # printing begins at the first line with this text

    @property
    def command(self) -> list[str]:
        """The command for this interpreter."""
        program, *words = self.typed.split()
        return [sys.executable, "-m", "flashladder", *words] if program == "invoke" else [sys.executable, *words]


STATIONS = (
    Station(
        "This machine",
        "Nothing of the machine is used but Python and a C++ compiler: nvcc and its friends came as wheels. The last "
        "lines say what can be done here.",
        "invoke doctor", 40, "",
    ),
    Station(
        "The ladder",
        "From a naive FlashAttention-2 forward kernel to one that outruns FA2. Each iteration is a YAML file that "
        "names only what differs from its parent; the column on the right is that difference.",
        "invoke list", 45, "title",
    ),
    Station(
        "One step",
        "A step says why it exists, what changes and what a machine can check about it. Below that stands the whole "
        "kernel, put together from its parts for reading.",
        "invoke show 8", 36, "Iteration 8",
    ),
    Station(
        "What a step changes",
        "Two kernels compared: source, then opcodes of the machine code. Iteration 8 works addresses out while "
        "compiling; on sm_80, integer instructions leave the main loop.",
        "invoke diff 7 8", 24, "opcode",
    ),
    Station(
        "PTX on this CPU",
        "The emulator runs the PTX that ships, all threads of the grid at once, and counts what Nsight Compute counts. "
        "Iteration 1 lays tiles out row by row, so that eight rows of a matrix fall into one bank: see the "
        "conflicts, and the source lines that cause them.",
        "invoke emulate 1 --counters", 34, "shared_ld_conflicts",
    ),
    Station(
        "The same, swizzled",
        "Iteration 2 adds one XOR to each shared-memory address, and no access meets a conflict any more. On an H200 "
        "no other step is worth as much.",
        "invoke emulate 2 --counters", 6, "shared_ld_conflicts",
    ),
    Station(
        "A broken kernel is caught",
        "Who proves the prover? Each barrier of iteration 2 is deleted in turn. The race detector names both threads, "
        "their instructions and source lines; numbers alone would often be right by luck.",
        "python -m flashladder.emulate.mutation 2 --only bar.sync", 12, "",
    ),
    Station(
        "Is a kernel right?",
        "The same rule as on a GPU: against an fp64 reference, within a bound that a right kernel must keep, and free "
        "of races. Here at two short lengths; without --quick over many shapes, layouts and contents.",
        "invoke check 2 --backend emulator --dtype fp16 --quick", 12, "",
    ),
    Station(
        "Machine code",
        "What ptxas made of it, by class of opcode: in the kernel, and in its main loop. Without --counts each "
        "instruction stands beside its source line.",
        "invoke sass 8 --counts", 16, "iteration 8",
    ),
    Station(
        "Claims",
        "What iteration 8 promised is held against counts of its machine code on each architecture. A claim that also "
        "holds when nothing was changed is refused.",
        "python -m flashladder.lock.code_claims 8", 12, "holds  iteration 8",
    ),
    Station(
        "Numbers",
        "Timings need a GPU, checking them does not: one result file with its raw samples, seal, statistics, machine "
        "code and plan. `invoke report` renders tables and plots from such files; no figure is typed.",
        "invoke verify results/h200/bench.json.gz", 12, "",
    ),
)  # fmt: skip
GOODBYE = (
    "That was the ladder. Next: docs/reading-order.md to understand it, docs/add-an-iteration.md to extend it, "
    "`nox -s reproduce` to prove all of it here, and on a machine with a GPU to time it."
)


def walk(first: int = 1, *, waits: bool = True) -> None:
    """Shows the stations from `first` on; on a terminal it waits before each one if `waits` is true.

    Raises:
        CheckFailed: a command failed or did not print the text of its station.
        FlashladderError: no such station, or no checkout.
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
        if answer.strip().lower() in QUIT:
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
