"""Command lines: texts and types of options, parsers of ``python -m flashladder.X``, usage errors on one line.

tasks.py declares the tasks. Modules that also run in another environment, or on several iterations at once, use
`Parser`. argparse prints a usage block above its errors and accepts any Unicode digit as a number. `Parser` prints one
line like every other command (``error: ...; did you mean ...``) and exits with 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from flashladder import paths
from flashladder.errors import FlashladderError
from flashladder.files import files_in, last_iteration, require_writable
from flashladder.names import DEFAULT_ARCH, GPUS
from flashladder.paths import path_of

if TYPE_CHECKING:
    from invoke.tasks import Task

GPU_KEYS = ", ".join(sorted(path.stem for path in files_in(paths.CONFIGS / "gpus", "*.yaml")))
STEP = "iteration, or an ablation such as '16 - swizzle'"
NUMBER, NUMBERS = (f"{what}, 1 to {last_iteration()}" for what in ("iteration", "iterations"))
CONFIGS = f"{GPU_KEYS}, prog (those of {', '.join(GPUS)}), prog-all, tune, all, a tile such as 64,64, or as in --config"
ARCHES = f"sm_XX, several separated by commas (default: the GPU present, else {DEFAULT_ARCH})"
DTYPE = "fp16 or bf16 (default: both)"
OUT = "result file to write (.json or .json.gz)"
PAGE = "write CUDA, PTX and machine code with linked lines to this file, FILE.html"
BACKENDS = ("gpu", "emulator")
METHODS = ("nvbench", "ncu", "torch", "warm", "turns")  # of cross-checks
FILE_OPTIONS = {
    "kernel": "of a file: part of its name, mangled or not, or of its configuration",
    "list": "list the kernels in the file (that match --kernel)",
    "clean": "omit addresses, line info, paths and label numbers, so that two outputs can be diffed",
    "out": "write the cubin, or the PTX, that holds the kernel to this file",
}
"""Options that select a kernel in somebody's file, for PTX and machine code."""
LINE_OPTIONS = {
    "line": "what became of a line: FILE:LINE, FILE:FIRST-LAST, FILE or FOLDER; kernel.ptx is the PTX",
    "opcode": "each occurrence of a SASS or PTX opcode with its counterpart: LDSM, HMMA.16816, ldmatrix",
}
"""Options that select lines and opcodes of a kernel, for PTX and machine code."""
_OFFENDING = re.compile(r"unrecognized arguments: (\S+)|invalid choice: '([^']*)'")


def first_line(task: Task[Any]) -> str:
    """The first line of a task's docstring."""
    return (task.__doc__ or "").partition("\n")[0]


def words(*positional: str, **options: str | bool | None) -> list[str]:
    """A command line for a `Parser`: words, then options. ``dry_run=True`` is ``--dry-run``; omits None and False."""
    named = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    return [
        *positional,
        *(name if value is True else f"{name}={value}" for name, value in named.items() if value not in (None, False)),
    ]


def one_of(name: str, value: str | None, choices: Sequence[str]) -> None:
    """Raises `FlashladderError` if an option's value is not one of its choices; None is allowed."""
    if value is not None and value not in choices:
        from flashladder.located import closest  # which brings pydantic: only needed for an error

        expected, hint = " or ".join(choices), closest(value, choices)
        raise FlashladderError(f"no such {name}", expected=expected, found=repr(value), hint=hint)


def several_of(name: str, values: str | None, choices: Sequence[str]) -> list[str]:
    """The values of a comma-separated list. Raises as `one_of`."""
    found = values.split(",") if values else []
    for value in found:
        one_of(name, value, choices)
    return found


def within(option: str, value: int | str, *, least: int = 1, most: int = (1 << 31) - 1) -> int:
    """The value of an option as a whole number. Raises `FlashladderError`: it is not one, or out of range."""
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
        expected = f"a whole number from {least} to {most}"
        raise FlashladderError(f"bad --{option}", expected=expected, found=repr(text))
    return int(text)


def integers(option: str, values: str) -> list[int]:
    """The whole numbers of a comma-separated list, from 0 on. Raises as `within`."""
    return [within(option, value.strip(), least=0) for value in values.split(",")]


def own_kernel(word: str) -> FlashladderError | None:
    """The error for a file name that `emulate` got instead of an iteration; None for other words."""
    run = "--grid 4 --block 256 --arg x=float32:1024:randn --hazards`"
    if word.lower().endswith((".ptx", ".cu")):
        hint = f"your own kernel: `ptxemu {shlex.quote(word)} {run}"
    elif word.lower().endswith((".cubin", ".fatbin", ".so")):
        hint = f"your own kernel: `invoke ptx {shlex.quote(word)} --out own.ptx`, then `ptxemu own.ptx {run}"
    else:
        return None
    return FlashladderError("emulate runs iterations", expected="an iteration, such as 7", found=word, hint=hint)


class Parser(argparse.ArgumentParser):
    """argparse's parser with this project's error messages."""

    given: Sequence[str] = ()

    def __init__(self, prog: str | None = None, **own: Any) -> None:
        """As argparse does. A script's name is the command that runs it, ``python analysis/x.py``, for use in hints."""
        super().__init__(prog=prog or f"python {shlex.quote(sys.argv[0])}", **own)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; keeps the words for `error`."""
        self.given = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints one line and exits with 2."""
        from flashladder.located import closest

        known = [one for one in _words(self) if one.startswith("-")]
        options = (word.partition("=")[0] for word in self.given if word.startswith("--") and word != "--")
        unknown = next((word for word in options if not any(one.startswith(word) for one in known)), None)
        if unknown and "unrecognized" not in message:  # `--gird cpu` makes argparse miss `--grid` and reject `cpu`
            message = f"unrecognized arguments: {unknown}"
        hint = None
        if found := _OFFENDING.search(message):
            word = found[1] or found[2]
            hint = closest(word, [one for one in _words(self) if one.startswith("-") == word.startswith("-")])
        problem = FlashladderError(" ".join(message.split()), hint=hint or f"{self.prog} --help says more")
        self.exit(problem.exit_code, f"error: {problem}\n")


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Every option and every choice of a parser."""
    actions = parser._actions  # noqa: SLF001 - argparse lists them nowhere else
    return [word for action in actions for word in (*action.option_strings, *map(str, action.choices or ()))]


def whole(text: str) -> int:
    """`text` as a whole number of at most nine ASCII digits, for argparse's ``type``."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"expected a whole number of one to nine digits, found {text!r}")
    return int(text)


def wholes(text: str) -> list[int]:
    """`text` as whole numbers separated by commas, for argparse's ``type``."""
    return [whole(one) for one in text.split(",")]


def result_file(text: str) -> Path:
    """`text` as the path of a result file, ``.json`` or ``.json.gz``, for argparse's ``type``."""
    if not text.endswith((".json", ".json.gz")):
        raise argparse.ArgumentTypeError(f"expected a name that ends in .json or .json.gz, found {text!r}")
    return path_of(text)


def output_result(text: str) -> Path:
    """`result_file` for a result to write. Raises `FlashladderError` if its folder cannot be written."""
    path = result_file(text)
    require_writable(path.parent)
    return path


def seconds(text: str) -> float:
    """`text` as a number of seconds of at least 0, for argparse's ``type``."""
    if not re.fullmatch(r"\d{1,9}(\.\d*)?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, found {text!r}")
    return float(text)


def some_seconds(text: str) -> float:
    """`text` as a number of seconds above 0, for argparse's ``type``."""
    if not (found := seconds(text)):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {text!r}")
    return found


def module_parser(name: str, description: str, example: str = "", *, is_task: bool = False) -> Parser:
    """The parser of ``python -m flashladder.NAME``; `example` are arguments to show in its help.

    `is_task`: the user may also have called it as a task, ``invoke sweep``, which is then the name in its messages.
    """
    called = Path(sys.argv[0]).stem
    invoked = is_task and called in ("invoke", "inv", "flashladder")
    program = f"{called} {name}" if invoked else f"python -m flashladder.{name}"
    return Parser(prog=program, description=description, epilog=f"example: {program} {example}".rstrip())


def add_numbers(parser: argparse.ArgumentParser) -> None:
    """Adds any number of iterations, and ``--all``."""
    parser.add_argument("numbers", nargs="*", type=whole, metavar="N", help=NUMBER)
    parser.add_argument("--all", action="store_true", help="all of them")


def require_numbers(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits with 2 unless the user gave either numbers or ``--all``, which stands for all numbers."""
    if bool(options.numbers) == options.all:
        parser.error("give iterations, or --all")
    options.numbers = options.numbers or list(range(1, last_iteration() + 1))
