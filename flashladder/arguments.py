"""Command lines: what an option is, parsers of ``python -m flashladder.X``, usage errors in one line, honest numbers.

Why: argparse prints a usage block of its own over its errors and takes any Unicode digit for a number; here a mistake
looks like every other one (``error: ...; did you mean ...``) and leaves with 2. The commands themselves stand in
`flashladder.commands`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
import re
import shlex
import sys
from typing import Any, Literal, NoReturn

from flashladder import paths
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import files_in, last_iteration, relative, write_atomic
from flashladder.names import GPUS, PUBLISHED_GPU

GPU_KEYS = ", ".join(sorted(path.stem for path in files_in(paths.CONFIGS / "gpus", "*.yaml")))
ONE_CONFIG = f"{GPU_KEYS}, what `invoke list` prints, or a short form"
DEFAULT_CONFIG = f"{PUBLISHED_GPU}; of a step that only Hopper runs, h200"
CONFIGS = f"{GPU_KEYS}, prog (those of {', '.join(GPUS)}), prog-all, tune, all, a tile such as 64,64, or as in --config"
NUMBER, NUMBERS = (f"{what}, 1 to {last_iteration()}" for what in ("iteration", "iterations"))
METHODS = ("nvbench", "ncu", "torch", "warm", "turns")  # of a second opinion
_OFFENDING = re.compile(r"unrecognized arguments: (\S+)|invalid choice: '([^']*)'")


@dataclass(frozen=True)
class Option:
    """One option, or one word, of a command.

    Attributes:
        name: as it is typed, without dashes in front.
        help: what it is, and what leaving it out means.
        form: a ``value``; a ``flag``, which has none; a ``word`` without a name before it; ``several`` values, with
            commas between or as several words; ``again`` for each value.
        required: whether there is no leaving it out.
        default: what a parser gives where it is left out.
        choices: what it may be; anything where empty.
        group: whose options it belongs to, in a parser's help.
    """

    name: str
    help: str
    form: Literal["value", "flag", "word", "several", "again"] = "value"
    required: bool = False
    default: str | None = None
    choices: tuple[str, ...] = ()
    group: str = ""

    @property
    def attribute(self) -> str:
        """Its name in Python."""
        return self.name.replace("-", "_")

    def add_to(self, parser: argparse._ActionsContainer, own: Mapping[str, Any]) -> None:
        """Adds it to a parser; `own` are the parser's keywords for it: how text is converted, where the value goes."""
        given: dict[str, Any] = {"help": self.help, **({"choices": self.choices} if self.choices else {})}
        if self.form == "word":
            given |= {} if self.required else {"nargs": "?", "default": self.default}
            rest = {key: value for key, value in own.items() if key != "dest"}
            parser.add_argument(own.get("dest", self.attribute), **{**given, **rest})
            return
        shapes: dict[str, dict[str, Any]] = {
            "flag": {"action": "store_true"},
            "again": {"action": "append", "default": []},
            "several": {"nargs": "+", "default": [], "action": _Several},
            "value": {"default": self.default, "required": self.required},
        }
        parser.add_argument(f"--{self.name}", **{**given, **shapes[self.form], **own})


class _Several(argparse.Action):
    """Values as several words, with commas between, or both; each is one of the choices."""

    def __init__(self, *, choices: tuple[str, ...], **given: Any) -> None:
        super().__init__(**given)
        self.known = choices  # argparse would compare whole words

    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, __: str | None = None
    ) -> None:
        found = [value for word in values for value in word.split(",")]
        if wrong := [value for value in found if value not in self.known]:
            raise argparse.ArgumentError(self, f"invalid choice: {wrong[0]!r} (choose from {', '.join(self.known)})")
        setattr(namespace, self.dest, found)


@dataclass(frozen=True)
class Command:
    """A verb for people.

    Attributes:
        name: of the task.
        does: one line about it.
        examples: command lines, without the program's name.
        options: of it, in the order in which they are asked for one-letter flags.
        short_flags: whether they have any.
    """

    name: str
    does: str
    examples: tuple[str, ...]
    options: tuple[Option, ...] = ()
    short_flags: bool = True


OF_FILES = (
    Option("kernel", "of a file: part of its name, mangled or not, or of its configuration", default=""),
    Option("list", "of a file: the kernels that there are, or those that --kernel is part of", form="flag"),
    Option("clean", "without addresses, lines, paths, labels' numbers: for diff", form="flag"),
    Option("out", "write the cubin, or the PTX, that holds the kernel to this file", default=""),
)
"""How a kernel of somebody's library is asked for, in PTX and in machine code."""
OF_LINES = (
    Option(
        "line",
        "what became of a line: FILE:LINE, FILE:FIRST-LAST, FILE or FOLDER; kernel.ptx is the PTX",
        default="",
    ),
    Option("opcode", "an opcode, what it came from or became: LDSM, HMMA.16816, or one of PTX, ldmatrix", default=""),
)
"""How lines and opcodes of a kernel are asked for, in PTX and in machine code."""
PAGE = Option("page", "write CUDA, PTX and machine code with linked lines to this file, FILE.html", default="")


class Parser(argparse.ArgumentParser):
    """argparse's parser, whose errors are this project's."""

    given: Sequence[str] = ()

    def __init__(self, prog: str | None = None, **own: Any) -> None:
        """As argparse does; a script is named as it is run, ``python analysis/x.py``, so that hints can be followed."""
        super().__init__(prog=prog or f"python {shlex.quote(sys.argv[0])}", **own)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; what was given is kept for `error`."""
        self.given = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints one line and leaves with 2."""
        from flashladder.located import closest

        unknown = None if "unrecognized" in message else self._unknown_option()
        if unknown:  # it comes first: `--gird cpu` is why `--grid` lacks, and what `cpu` is
            message = f"unrecognized arguments: {unknown}"
        hint = None
        if found := _OFFENDING.search(message):
            word = found[1] or found[2]
            hint = closest(word, [one for one in _words(self) if one.startswith("-") == word.startswith("-")])
        problem = FlashladderError(" ".join(message.split()), hint=hint or f"{self.prog} --help says more")
        self.exit(problem.exit_code, f"error: {problem}\n")

    def _unknown_option(self) -> str | None:
        """The first word given that looks like an option and is none."""
        known = [one for one in _words(self) if one.startswith("-")]
        options = (word.partition("=")[0] for word in self.given if word.startswith("--") and word != "--")
        return next((word for word in options if not any(one.startswith(word) for one in known)), None)


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Every option and every choice of a parser and of those below it."""
    words = []
    for action in parser._actions:  # noqa: SLF001 - argparse lists them nowhere else
        known = action.known if isinstance(action, _Several) else action.choices or ()
        words += [*action.option_strings, *map(str, known)]
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            words += [word for below in action.choices.values() for word in _words(below)]
    return words


def whole(text: str) -> int:
    """`text` as a whole number of at most nine ASCII digits, for argparse's ``type``."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 999999999, found {text!r}")
    return int(text)


def result_file(text: str) -> Path:
    """`text` as the path of a result file, ``.json`` or ``.json.gz``, for argparse's ``type``."""
    if not text.endswith((".json", ".json.gz")):
        raise argparse.ArgumentTypeError(f"expected a name that ends in .json or .json.gz, found {text!r}")
    return Path(text)


def named(text: str) -> Path:
    """`text` as a path that has a name, for argparse's ``type``."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a path, found nothing")
    return Path(text)


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


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option], **own: Mapping[str, Any]) -> None:
    """Adds a command's options, those of a group under its heading; `own` by name in Python, see `Option.add_to`."""
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        option.add_to(groups[option.group], own.get(option.attribute, {}))


def parser_of(command: Command, module: str, example: str, **own: Mapping[str, Any]) -> Parser:
    """The parser of ``python -m flashladder.<module>`` with a command's options; `example` are words after that."""
    program = f"python -m flashladder.{module}"
    parser = Parser(prog=program, description=command.does, epilog=f"example: {program} {example}")
    add_options(parser, command.options, **own)
    return parser


def write_or_compare(argv: Sequence[str] | None, program: str, what: str, path: Path, text: str) -> int:
    """The command of a page that is made from data: writes `text` to `path`, or with ``--check`` compares it; 0.

    Raises:
        CheckFailed: the page is not this text; `program` makes it.
    """
    parser = Parser(prog=program, description=f"Write the {what}.")
    parser.add_argument("--check", action="store_true", help="compare with the committed page, write nothing")
    if not parser.parse_args(argv).check:
        print(relative(write_atomic(path, text)))
    elif not path.is_file() or path.read_bytes() != text.encode():
        raise CheckFailed(f"stale {what}", where=relative(path), hint=f"run: {program}")
    return 0


SEVERAL_NUMBERS: Mapping[str, Any] = {"dest": "numbers", "nargs": "*", "type": whole, "metavar": "N"}
"""How a parser takes several iterations where a task takes one."""


def add_all(parser: argparse.ArgumentParser) -> None:
    """Adds ``--all``, which stands for the number of every iteration."""
    parser.add_argument("--all", action="store_true", help="all of them")


def require_numbers(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Leaves with 2 unless there are numbers or ``--all``, and not both."""
    if bool(options.numbers) == options.all:
        parser.error("give iterations, or --all")
