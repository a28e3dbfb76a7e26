"""How `invoke` reads a command line here: a usage error leaves with 2, and ``invoke show --help`` is a question.

Why: invoke leaves with 1 when it cannot read a command line, which in this project means that a check failed; it takes
``--help`` for the value of a positional argument that is still missing; and it cannot read a positional argument with a
default, the 7 of ``invoke ptxas 7``. It has no hook for these, so three methods of its parser are replaced. Nothing to
run here; tasks.py calls `install`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke.exceptions import Exit, ParseError
from invoke.parser.parser import ParseMachine

if TYPE_CHECKING:
    from invoke.parser.context import ParserContext

_HANDLE = ParseMachine.handle


class UsageError(ParseError, Exit):
    """A command line that cannot be read; both of invoke's kinds, so that its text is printed and its code is ours."""

    def __init__(self, text: str, context: ParserContext | None) -> None:
        Exception.__init__(self, text)
        self.context = context
        self.message = None  # invoke prints a ParseError by itself

    @property
    def code(self) -> int:
        """Could not run."""
        return 2


def _error(machine: ParseMachine, text: str) -> None:
    raise UsageError(text, machine.context)


def _see_positional(machine: ParseMachine, value: str) -> None:
    missing = machine.context.missing_positional_args
    if value in ("--help", "-h"):
        machine.initial.flags["--help"].value = machine.context.name
    for argument in missing if value in ("--help", "-h") else missing[:1]:
        argument.value = value


def _handle(machine: ParseMachine, token: str) -> None:
    """Gives a word that is neither a flag, nor a flag's value, nor a task to the next argument that may go without."""
    context = machine.context
    positional = getattr(context, "positional_args", ())  # there is no context before the first task
    unset = [argument for argument in positional if not argument.got_value]
    is_word = not token.startswith("-") and token not in machine.contexts and not machine.waiting_for_flag_value
    if unset and is_word and not context.missing_positional_args:
        unset[0].value = token
    else:
        _HANDLE(machine, token)


def install() -> None:
    """Replaces the three methods, for this process."""
    ParseMachine.error = _error  # type: ignore[assignment]  # no hook: see above
    ParseMachine.handle = _handle  # type: ignore[method-assign, assignment]  # no hook: see above
    ParseMachine.see_positional_arg = _see_positional  # type: ignore[assignment]  # no hook: see above
