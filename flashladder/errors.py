"""Every failure a person can meet: one class that holds the facts and renders them as one clear line.

Commands catch `FlashladderError`, print `str(error)` on stderr and leave with `error.exit_code`; nothing else is
allowed to reach a terminal as a traceback. Beside it stands what a check found, which may be such a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import io
import os
from pathlib import Path
import signal
import sys

from flashladder.paths import CARRIED, ROOT

# What pip calls packages that may be missing, by what Python calls them; a command that needs one says so.
PACKAGES = {
    **{name: name for name in ("invoke", "numpy", "ptxemu", "pydantic", "torch", "tqdm", "typing_extensions")},
    "elftools": "pyelftools",
    "ninja": "'flashladder[build]'",
    "ml_dtypes": "ml-dtypes",
    "pynvml": "nvidia-ml-py",
    "yaml": "pyyaml",
    **dict.fromkeys(("jinja2", "matplotlib", "pandas"), "'flashladder[report]'"),
}

LONGEST_FACT = 2000  # characters of what was expected or found that a message shows


class FlashladderError(Exception):
    """Something could not be done: what, where, what was expected, what was found, what to do next.

    Args:
        what: what happened, as a short sentence without a full stop.
        where: where it was seen, for example ``iterations/07_tuned.yaml:12``.
        expected: what would have been right.
        found: what was there instead.
        hint: the command or the edit to try next.
        exit_code: 1 when a check failed, 2 when the work could not be done.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | Path | None = None,
        expected: object | None = None,
        found: object | None = None,
        hint: str | None = None,
        exit_code: int = 2,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = None if where is None else str(where)
        self.expected = expected
        self.found = found
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        """The whole message on one line: ``where: what: expected E, found F; hint``."""
        line = _shown(self.what) if self.where is None else f"{_shown(self.where)}: {_shown(self.what)}"
        facts = [
            f"{name} {_shown(value)}"
            for name, value in (("expected", self.expected), ("found", self.found))
            if value is not None
        ]
        if facts:
            line += ": " + ", ".join(facts)
        if self.hint:
            line += f"; {_shown(self.hint)}"
        return line


def _shown(fact: object) -> str:
    """A fact on one line that a terminal can show: its beginning and its length where it is too long."""
    text = printable(" ".join(str(fact).split()))
    return text if len(text) <= LONGEST_FACT else f"{text[:LONGEST_FACT]}... ({len(text)} characters)"


def printable(text: str) -> str:
    """`text` with what a terminal would obey, or could not show, as an escape, as in ``repr``.

    Control characters, marks that turn the direction of writing, and bytes of a file's name that are not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


class CheckFailed(FlashladderError):
    """A check ran and said no (exit code 1), as opposed to work that could not be done (exit code 2)."""

    def __init__(self, what: str, **facts: object) -> None:
        super().__init__(what, exit_code=1, **facts)  # type: ignore[arg-type]  # same keywords, passed through


def failures() -> tuple[type[FlashladderError], ...]:
    """For ``except``: `FlashladderError`, and the errors of the emulator where a command has loaded it.

    Builds run without the emulator, so it is not imported here. Its errors have the attributes of
    `FlashladderError`, and are typed as such.
    """
    ptxemu = sys.modules.get("ptxemu")
    return (FlashladderError,) if ptxemu is None else (FlashladderError, ptxemu.PtxemuError)


@dataclass(frozen=True)
class Checked:
    """What a check found that ran to its end, as data: a command shows it, the gate makes one line of it.

    Attributes:
        summary: what was compared, and how many; what is said of a check that holds.
        lines: all that the check's own command prints; `summary` where there are none.
        notes: lines worth telling although the check holds.
        problems: lines that lead to `failure`.
        failure: the check's no; None where it holds.
    """

    summary: str
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    failure: CheckFailed | None = None

    def show(self) -> None:
        """Prints what was found. Raises `CheckFailed`: the check does not hold."""
        if lines := self.lines or (() if self.failure else (self.summary,)):
            print("\n".join(printable(one) for line in lines for one in line.split("\n")))
        if self.failure:
            raise self.failure


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns a `FlashladderError` into its one line on stderr and its exit code; for the edges of commands.

    A reader that has seen enough (``invoke ptx 7 | head``) ends the command quietly; Ctrl-C ends it with 130, and
    a file that cannot be read or written (a full disk behind stdout), a FLASHLADDER_ROOT that is no checkout, and a
    package that is missing, with 2.
    """
    _show_any_text()
    try:
        _require_root()
        yield
        if sys.stdout is not None:  # it is None where the shell closed it, `>&-`
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


def require_checkout(command: str) -> None:
    """Raises `FlashladderError` where the package is installed without a checkout around it."""
    if ROOT == CARRIED:
        raise FlashladderError(
            f"{command} needs a checkout, and this package is installed without one",
            hint="set FLASHLADDER_ROOT to a checkout of flashladder",
        )


def _require_root() -> None:
    """Raises `FlashladderError` where FLASHLADDER_ROOT is set and does not name a checkout."""
    wanted = os.environ.get("FLASHLADDER_ROOT")
    if wanted and not all((ROOT / name).is_dir() for name in ("iterations", "kernels", "configs")):
        raise FlashladderError(
            "FLASHLADDER_ROOT does not name a checkout",
            expected="a folder that holds iterations/, kernels/ and configs/",
            found=repr(wanted),
            hint="unset it to use the checkout of this package",
        )


def _show_any_text() -> None:
    """What the terminal's encoding lacks (locale C), or no encoding has, is shown as an escape instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors != "backslashreplace":
        sys.stdout.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Prints at once, for a command whose exit code is a verdict: a reader that has left does not end it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """Sends what is left in the buffer nowhere: the interpreter flushes once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
