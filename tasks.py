"""Verbs for people: a task for each command of `flashladder.commands`, which runs the package's command of that name.

    nox -s dev && source .venv/bin/activate     # once
    invoke                                      # the tasks by station
    invoke show 7 --help
Exit codes: 0 done, 1 a check failed, 2 could not run (with one line on stderr).
"""

from __future__ import annotations

from collections.abc import Callable
import importlib
import sys
from typing import Any

from invoke.collection import Collection
from invoke.exceptions import Exit

from flashladder import program, usage
from flashladder.commands import COMMANDS, STATIONS
from flashladder.errors import one_line_errors
from flashladder.gpu.doctor import require_gpu
from flashladder.usage import Given

LONGEST = 9  # digits of a number


def call(module: str, *words: str) -> None:
    """Runs ``flashladder.<module>.main`` with `words`; leaves with its exit code."""
    with one_line_errors():
        code = importlib.import_module(f"flashladder.{module}").main(words)
    if code:
        raise Exit(code=code)


def step(text: str) -> int:
    """The number of an iteration; leaves with one line and exit code 2 if `text` is none."""
    with one_line_errors():
        from flashladder.ladder.iteration import load_iteration, no_such_iteration

        if not (text.isascii() and text.isdigit()):
            raise no_such_iteration(repr(text))
        if len(text) > LONGEST:
            raise no_such_iteration(text)
        return load_iteration(int(text)).number


def need_gpu() -> None:
    """Leaves with one line and exit code 2 where there is no GPU, before anything slow is imported."""
    with one_line_errors():
        require_gpu()


def understood_by(module: str, name: str, *first: str) -> Callable[[Given], None]:
    """How a command runs whose package reads the command line itself, after the words `first`."""
    return lambda given: call(module, *first, *usage.words_of(COMMANDS[name], given))


def on_gpu(module: str, name: str) -> Callable[[Given], None]:
    """The same of a command that times or checks an iteration, on a GPU unless it is told otherwise."""

    def run(given: Given) -> None:
        number = step(str(given["number"]))
        if given.get("backend") != "emulator":
            need_gpu()
        call(module, *usage.words_of(COMMANDS[name], {**given, "number": str(number)}))

    return run


def here(name: str, do: Callable[..., None]) -> Callable[[Given], None]:
    """How a command runs that has no command line of its own: `do` is given its options, and defaults."""

    def run(given: Given) -> None:
        with one_line_errors():
            do(**usage.with_defaults(COMMANDS[name], given))

    return run


def _lock(number: str, reason: str) -> None:
    from flashladder.lock.command import relock

    relock(step(number), reason)


def _nvcc(file: str, arch: str, out: str) -> None:
    from flashladder.toolchain.own_cuda import compile_and_tell

    compile_and_tell(file, arch, out)


def _ptxas(iteration: str, arch: str | None, configs: str, csv: str, *, json: bool) -> None:
    from flashladder.view.code import show_ptxas

    show_ptxas(iteration or None, arch, configs, as_json=json, csv=csv)


def _ptx(iteration: str, config: str | None, **chosen: Any) -> None:
    from flashladder.view.binary import Wanted
    from flashladder.view.code import show_linked, show_ptx

    if not show_linked([iteration], {"config": config, **chosen}, ptx_first=True):
        of_file = {name: value for name, value in chosen.items() if name not in {"line", "opcode"}}
        show_ptx(iteration, config, Wanted(**of_file))


RUN: dict[str, Callable[[Given], None]] = {
    "help": here("help", lambda: print(usage.overview(STATIONS))),
    "lock": here("lock", _lock),
    "nvcc": here("nvcc", _nvcc),
    "ptxas": here("ptxas", _ptxas),
    "ptx": here("ptx", _ptx),
    **{name: understood_by("view.command", name, name) for name in ("list", "show", "diff")},
    **{name: on_gpu(f"{name}.command", name) for name in ("check", "bench")},
    **{
        name: understood_by(f"{name}.command", name)
        for name in ("build", "emulate", "trace", "sweep", "report", "gate")
    },
    "bundle": understood_by("bundle.make", "bundle"),
    "sass": understood_by("view.code", "sass"),
    "cfg": understood_by("view.cfg", "cfg"),
    "explain": understood_by("explain.command", "explain"),
    "tour": understood_by("view.tour", "tour"),
    "verify": understood_by("gate.verify", "verify"),
    "doctor": understood_by("gpu.doctor", "doctor"),
}
"""How each command runs."""

namespace = Collection(*(usage.task_of(COMMANDS[name], run, default=name == "help") for name, run in RUN.items()))

if program.called_by_invoke():  # whose own parser leaves with 1, "a check failed", for what it cannot read
    program.run(namespace, sys.argv[1:])
