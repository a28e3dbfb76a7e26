"""What a task of a job array runs: the sweep's command, which dies with the task and refuses another GPU.

Run: by `flashladder.sweep.slurm.task`:
    python -m flashladder.sweep.array_task cpu PARENT --grid cpu --shard 0/2
"""

from __future__ import annotations

import sys

from flashladder.errors import FlashladderError, one_line_errors
from flashladder.sweep import command
from flashladder.sweep.cells import CPU
from flashladder.sweep.measure import devices
from flashladder.sweep.measure.worker import die_with


def require_machine(machine: str) -> None:
    """Raises `FlashladderError` when the task's GPU is not the one for which the cells were planned."""
    if machine == CPU:
        return
    cards = devices.cards()
    if not cards or (found := devices.machine_of(cards)) != machine:
        raise FlashladderError(
            "Slurm gave the task another GPU", expected=machine, found=found if cards else "none",
            hint="--slurm gres=gpu:TYPE:1 or constraint=... asks for a model",
        )  # fmt: skip


def main(argv: list[str]) -> int:
    """The sweep's command.

    Args:
        argv: the machine that the cells were planned for, the number of the process to die with, and the arguments.

    Raises:
        FlashladderError: another GPU, or as the command.
    """
    machine, parent, *arguments = argv
    die_with(int(parent))
    require_machine(machine)
    return command.main(arguments)


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main(sys.argv[1:]))
