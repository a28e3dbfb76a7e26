"""Every error that a person can meet: one class holds the facts and shows them as one line.

Commands catch `FlashladderError`, print ``str(error)`` on stderr and exit with `error.exit_code`; no command shows a
traceback. `Checked` is what a check found, which may be such an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
import io
import os
from pathlib import Path
import signal
import sys
from typing import NoReturn

from flashladder.paths import CARRIED, ROOT

# Packages that may be missing: Python's name to pip's name. A command that needs one says so.
PACKAGES = {
    **{name: name for name in ("invoke", "numpy", "ptxemu", "pydantic", "torch", "tqdm", "typing_extensions")},
    "elftools": "pyelftools",
    "ninja": "'flashladder[build]'",
    "ml_dtypes": "ml-dtypes",
    "pynvml": "nvidia-ml-py",
    "yaml": "pyyaml",
    **dict.fromkeys(("jinja2", "markdown_it", "markupsafe", "matplotlib", "pandas"), "'flashladder[report]'"),
}

LONGEST_FACT = 2000  # characters of what was expected or found that a message shows


@dataclass(eq=False, repr=False)
class FlashladderError(Exception):
    """Something could not be done: what, where, what was expected, what was found, what to do next."""

    what: str  # what happened, as a short sentence without a full stop
    _: KW_ONLY
    where: str | Path | None = None  # where it was seen, for example ``iterations/07_tuned.yaml:12``
    expected: object | None = None
    found: object | None = None
    hint: str | None = None  # the command or the edit to try next
    exit_code: int = 2  # 1 when a check failed, 2 when the work could not be done

    def __post_init__(self) -> None:
        """Gives Python the message, so that the error can go to another process."""
        super().__init__(self.what)

    def __str__(self) -> str:
        """The whole message on one line: ``where: what: expected E, found F; hint``."""
        place = "" if self.where is None else f"{_shown(self.where)}: "
        named = (("expected", self.expected), ("found", self.found))
        facts = ", ".join(f"{name} {_shown(value)}" for name, value in named if value is not None)
        hint = f"; {_shown(self.hint)}" if self.hint else ""
        return f"{place}{_shown(self.what)}{': ' if facts else ''}{facts}{hint}"


def _shown(fact: object) -> str:
    """A fact on one line that a terminal can show: its beginning and its length where it is too long."""
    text = printable(" ".join(str(fact).split()))
    return text if len(text) <= LONGEST_FACT else f"{text[:LONGEST_FACT]}... ({len(text)} characters)"


def printable(text: str) -> str:
    """`text` with escapes, as of ``repr``, for what a terminal obeys or cannot show (also bytes that are not UTF-8)."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


@dataclass(eq=False, repr=False)
class CheckFailed(FlashladderError):
    """A check ran and failed (exit code 1). Work that could not be done is a plain `FlashladderError` (exit code 2)."""

    exit_code: int = 1


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type if the message is empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def failures() -> tuple[type[FlashladderError], ...]:
    """For ``except``: `FlashladderError`, and the emulator's errors if a command has loaded it.

    Builds run without the emulator, so this module does not import it. Its errors have the same attributes as
    `FlashladderError`, and are typed as such.
    """
    ptxemu = sys.modules.get("ptxemu")
    return (FlashladderError,) if ptxemu is None else (FlashladderError, ptxemu.PtxemuError)


@dataclass(frozen=True)
class Checked:
    """The result of a check that ran to its end: its own command prints it, the gate makes one line of it."""

    summary: str  # what was compared, and how many; printed if the check passes
    lines: tuple[str, ...] = ()  # what the check's own command prints; without them it prints `summary`
    notes: tuple[str, ...] = ()  # worth printing although the check passes
    problems: tuple[str, ...] = ()  # what leads to `failure`
    failure: CheckFailed | None = None  # None: the check passes

    def show(self) -> None:
        """Prints the result. Raises `CheckFailed`: the check failed."""
        if lines := self.lines or (() if self.failure else (self.summary,)):
            print("\n".join(printable(one) for line in lines for one in line.split("\n")))
        if self.failure:
            raise self.failure


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Prints a `FlashladderError` as one line on stderr and exits with its code; commands wrap their whole work in it.

    If the reader of a pipe leaves (``invoke ptx 7 | head``), the command ends quietly. Ctrl-C exits with 130. A file
    that cannot be read or written (a full disk), a FLASHLADDER_ROOT that is no checkout and a missing package exit
    with 2.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors != "backslashreplace":
        sys.stdout.reconfigure(errors="backslashreplace")  # escapes a character that the encoding (locale C) lacks
    try:
        _require_root()
        yield
        if sys.stdout is not None:  # it is None if the shell closed it with `>&-`
            sys.stdout.flush()
    except failures() as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except BrokenPipeError:
        drop_stdout()
        raise SystemExit(0) from None
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        remedy = f"run: pip install {PACKAGES[error.name]} (in a checkout: nox -s dev)"
        print(f"error: this needs {error.name}; {remedy}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        drop_stdout()
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None


def run_main(main: Callable[[], object] | str) -> NoReturn:
    """Calls a program's `main` with `one_line_errors` and exits with the code that it returns.

    A module's name stands for its `main`: if Ctrl-C comes while it is imported, this is one line, too.
    """
    with one_line_errors():
        raise SystemExit(import_module(main).main() if isinstance(main, str) else main())


def require_checkout(command: str) -> None:
    """Raises `FlashladderError` if the package is installed without a checkout around it."""
    if ROOT == CARRIED:
        what = f"{command} needs a checkout, and this package is installed without one"
        raise FlashladderError(what, hint="set FLASHLADDER_ROOT to a checkout of flashladder")


def _require_root() -> None:
    """Raises `FlashladderError` if FLASHLADDER_ROOT is set and does not name a checkout."""
    wanted = os.environ.get("FLASHLADDER_ROOT")
    if wanted and not all((ROOT / name).is_dir() for name in ("iterations", "kernels", "configs")):
        what, hint = "FLASHLADDER_ROOT does not name a checkout", "unset it to use the checkout of this package"
        expected = "a folder that holds iterations/, kernels/ and configs/"
        raise FlashladderError(what, expected=expected, found=repr(wanted), hint=hint)


def say(text: str) -> None:
    """Prints at once. If the reader of a pipe has left, the command goes on: its exit code is a verdict."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """Sends the rest of the buffer to the null device, because the interpreter flushes stdout once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
