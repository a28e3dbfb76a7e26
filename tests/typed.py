"""Commands as a person types them, run in this process by the tasks of the checkout; and the line of an error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
import importlib.util
from io import StringIO
from pathlib import Path
import sys
from types import ModuleType
from typing import ParamSpec

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.parser.context import ParserContext
import pytest

from flashladder.errors import FlashladderError
from flashladder.paths import ROOT
from flashladder.program import LineParser, UsageError

P = ParamSpec("P")


def module_of(path: Path, name: str) -> ModuleType:
    """The Python file at `path`, imported under this name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


@cache
def tasks() -> ModuleType:
    """The checkout's tasks.py."""
    return module_of(ROOT / "tasks.py", "flashladder_tasks")


@cache  # a task hands out its help once
def contexts() -> list[ParserContext]:
    """What each task takes, as invoke reads it."""
    return [ParserContext(name, args=task.get_arguments()) for name, task in tasks().namespace.tasks.items()]


def command(*words: str) -> int:
    """Runs ``invoke WORDS``, one task, and returns its exit code; an error of the task is raised, not printed."""
    try:
        (typed,) = LineParser(contexts=contexts()).parse_argv(list(words))
    except UsageError as error:
        raise FlashladderError(str(error).removeprefix("error: ")) from error
    values = {argument.attr_name or str(argument.name): argument.value for argument in typed.args.values()}
    try:
        tasks().namespace.tasks[typed.name](Context(), **values)
    except Exit as left:
        return int(left.code)
    return 0


def printed(*words: str, code: int = 0) -> str:
    """What ``invoke WORDS`` prints, where it ends with this exit code."""
    with redirect_stdout(StringIO()) as out:
        assert command(*words) == code
    return out.getvalue()


def error_line(call: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> str:
    """The message of the error that a call raises, or that a program prints: one line, with exit code 2."""
    with redirect_stderr(StringIO()) as err, pytest.raises((FlashladderError, SystemExit)) as caught:
        call(*arguments, **options)
    error = caught.value
    if isinstance(error, SystemExit):
        code, line = error.code, err.getvalue().removesuffix("\n")
        assert line.startswith("error: ")
    else:
        assert isinstance(error, FlashladderError)
        code, line = error.exit_code, str(error)
        sys.stderr.write(err.getvalue())  # what was said before
    assert (code, line.count("\n")) == (2, 0)
    return line
