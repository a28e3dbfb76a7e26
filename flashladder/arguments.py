"""Command lines of ``python -m flashladder.X``: usage errors in one line, numbers that are numbers, shared help texts.

Why: argparse prints a usage block of its own over its errors and takes any Unicode digit for a number; here a mistake
looks like every other one (``error: ...; did you mean ...``) and leaves with 2.
"""

from __future__ import annotations

import argparse
from pathlib import Path
import re
from typing import NoReturn

from flashladder.errors import FlashladderError
from flashladder.files import last_iteration
from flashladder.names import GPUS

GPU_KEYS = ", ".join(GPUS)
ONE_CONFIG = f"{GPU_KEYS}, what `invoke list` prints, or a short form"
CONFIGS = f"{GPU_KEYS}, prog (these three), prog-all, tune, all, a tile such as 64,64, or as in --config"
NUMBERS = f"iterations, 1 to {last_iteration()}"
METHODS = ("nvbench", "ncu")  # of a second opinion
_OFFENDING = re.compile(r"unrecognized arguments: (\S+)|invalid choice: '([^']*)'")


class Parser(argparse.ArgumentParser):
    """argparse's parser, whose errors are this project's."""

    def error(self, message: str) -> NoReturn:
        """Prints one line and leaves with 2."""
        from flashladder.located import closest

        found = _OFFENDING.search(message)
        hint = closest(found[1] or found[2], _words(self)) if found else None
        problem = FlashladderError(" ".join(message.split()), hint=hint or f"{self.prog} --help says more")
        self.exit(problem.exit_code, f"error: {problem}\n")


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Every option and every choice of a parser and of those below it."""
    words = []
    for action in parser._actions:  # noqa: SLF001 - argparse lists them nowhere else
        words += [*action.option_strings, *map(str, action.choices or ())]
        below = action.choices.values() if isinstance(action.choices, dict) else ()
        words += [word for verb in below for word in _words(verb)]
    return words


def whole(text: str) -> int:
    """`text` as a whole number of at most nine ASCII digits, for argparse's ``type``."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}")
    return int(text)


def result_file(text: str) -> Path:
    """`text` as the path of a result file, ``.json`` or ``.json.gz``, for argparse's ``type``."""
    if not text.endswith((".json", ".json.gz")):
        raise argparse.ArgumentTypeError(f"expected a name that ends in .json or .json.gz, found {text!r}")
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
