"""The program behind ``invoke X`` and ``flashladder X``: invoke, with one-line usage errors and optional arguments.

If invoke cannot read a command line, it exits with 1, which here means that a check failed. It also takes ``--help``
as the value of a missing positional argument, and it has no optional positional arguments, such as the 7 of
``invoke ptxas 7``. The subclasses below change these three things. tasks.py passes its tasks to `run`, so ``invoke``
and ``flashladder`` read every command line alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
import re
import sys
from typing import TYPE_CHECKING, NoReturn

from invoke.exceptions import Exit, ParseError
from invoke.parser.context import ParserContext
from invoke.parser.parser import ParseMachine, Parser, ParseResult
from invoke.program import Program

from flashladder.arguments import own_kernel
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.names import __version__

if TYPE_CHECKING:
    from invoke.collection import Collection

SHELL = ("command-timeout", "dry", "echo", "hide", "prompt-for-sudo-password", "pty", "warn-only")  # of invoke
HELP = ("--help", "-h")
_UNKNOWN = re.compile(r"No idea what '(.*)' is!", re.DOTALL)
_MISSING = re.compile(r"did not receive required positional arguments: (.*)")
_FLAG = re.compile(r"--?[a-z]", re.IGNORECASE)  # -7 and - are words


class UsageError(ParseError, Exit):
    """A command line that nobody can read. invoke prints a `ParseError` and uses the exit code of an `Exit`."""

    def __init__(self, text: str, context: ParserContext | None) -> None:
        Exception.__init__(self, text)
        self.context = context
        self.message = None  # invoke prints a ParseError by itself

    @property
    def code(self) -> int:
        """Exit code: could not run."""
        return 2


class LineParser(Parser):
    """Reads a command line word by word with invoke's `ParseMachine`, and translates its errors."""

    def parse_argv(self, argv: list[str]) -> ParseResult:
        """The tasks of a command line; ``--name=value`` is two words, ``-abc`` three. `UsageError`: a mistake."""
        machine = ParseMachine(self.initial, self.contexts, self.ignore_unknown)  # type: ignore[arg-type]  # None is fine
        end = argv.index("--") if "--" in argv else len(argv)
        words = deque(argv[:end])
        try:
            while words:
                word = words.popleft()
                is_flag = word.startswith("-") and not machine.result.unparsed and not machine.waiting_for_flag_value
                if is_flag and "=" in word:
                    word, _, value = word.partition("=")
                    words.appendleft(value)
                elif is_flag and re.fullmatch(r"-[a-zA-Z]{2,}", word):
                    words.extendleft(f"-{letter}" for letter in reversed(word[2:]))
                    word = word[:2]
                _take(machine, word)
            machine.finish()
        except ParseError as error:
            raise UsageError(f"error: {_explained(machine, str(error))}", machine.context) from error
        machine.result.remainder = " ".join(argv[end + 1 :])
        return machine.result


def _take(machine: ParseMachine, word: str) -> None:
    """Gives a word to the machine, or handles one of the three cases at the top of this module."""
    context, waiting = machine.context, machine.waiting_for_flag_value
    unset = [one for one in getattr(context, "positional_args", ()) if not one.got_value]
    missing = getattr(context, "missing_positional_args", [])
    is_task = word in machine.contexts
    sign = "-?" if getattr(context, "name", None) else ""  # a task checks the range of its numbers
    if missing and not waiting and word in HELP:  # `show --help`
        machine.initial.flags["--help"].value = context.name
        for argument in missing:
            argument.value = word
    elif missing and not waiting and _FLAG.match(word) and word not in context.flags:  # `sweep --gird cpu`
        raise ParseError(f"No idea what '{word}' is!", context)
    elif not waiting and (given := getattr(context, "flags", {}).get(word)) and given.takes_value and given.got_value:
        raise ParseError(f"{word} needs one value: found it again after {given.value!r}", context)
    elif is_task and getattr(context, "name", None) == "help":  # `help show`
        machine.initial.flags["--help"].value = word
    elif unset and not (missing or waiting or is_task or word.startswith("-")):  # the 7 of `ptxas 7`
        if not word:
            raise ParseError(f"{unset[0].name} needs a value: found ''", context)
        unset[0].value = word
    elif waiting and getattr(machine.flag, "kind", str) is int and not re.fullmatch(f"{sign}[0-9]{{1,10}}", word):
        size = " of at most ten digits" if word.isdecimal() else ""
        raise ParseError(f"{_flag(machine)} needs a whole number{size}, found {word!r}", context)
    elif waiting and not word and not getattr(machine.flag, "positional", False):  # from an unset shell variable
        raise ParseError(f"{_flag(machine)} needs a value: found ''", context)
    else:
        machine.handle(word)


def _flag(machine: ParseMachine) -> str:
    return f"--{machine.flag.names[0] if machine.flag else ''}"


def _explained(machine: ParseMachine, text: str) -> FlashladderError:
    """Invoke's message about a command line, in this project's words."""
    from flashladder.located import closest  # imports pydantic, which only an error needs

    name = getattr(machine.context, "name", None)
    more = f"`{called()} {name} --help` says more" if name else shows_tasks()
    if missing := _MISSING.search(text):
        return FlashladderError(f"{name} needs {missing[1]}", hint=more)
    if not (unknown := _UNKNOWN.search(text)):
        if "needed value" in text or "doesn't take" in text:
            text = f"{_flag(machine)} needs a value" if "needed value" in text else f"{_flag(machine)} takes no value"
        return FlashladderError(text, hint=more if name else f"`{called()} --help` says more")
    if name == "emulate" and (other := own_kernel(str(machine.context.positional_args[0].value))):
        return other  # `emulate own.ptx --grid 4`
    if unknown[1].startswith("-") and name:
        flags = sorted(flag for flag in machine.context.flags if flag.startswith("--"))
        hint = closest(unknown[1], flags) or more
        return FlashladderError(f"{name} has no such flag", expected=", ".join(flags), found=unknown[1], hint=hint)
    kind = "option, or none that does anything here" if unknown[1].startswith("-") else "task"
    problem = f"{name} takes no further argument" if name else f"no such {kind}"
    hint = closest(unknown[1], [str(task) for task in machine.contexts]) or more
    return FlashladderError(problem, found=repr(unknown[1]), hint=hint)


class LineProgram(Program):
    """`Program` that reads command lines with a `LineParser`, and shows every error as one line."""

    @property
    def initial_context(self) -> ParserContext:
        """The program's options without `SHELL`, because no task runs a shell."""
        own = [argument for argument in self.core_args() if argument.name not in SHELL]
        return ParserContext(args=[*own, *self.task_args()])

    def parse_core_args(self) -> None:
        """Reads the options of the program itself; invoke reads the words of tasks later."""
        self.core = LineParser(initial=self.initial_context, ignore_unknown=True).parse_argv(self.argv[1:])
        for argument in self.core_args():
            if argument.name in SHELL:
                self.core[0].add_arg(argument)  # invoke reads their defaults

    def _make_parser(self) -> LineParser:
        contexts = self.collection.to_contexts(ignore_unknown_help=self.config.tasks.ignore_unknown_help)
        return LineParser(initial=self.initial_context, contexts=contexts)

    def execute(self) -> None:
        """Runs the tasks; shows an error as one line."""
        with one_line_errors():
            super().execute()

    def parse_cleanup(self) -> None:
        """Answers ``--help`` and ``--list``; a closed pipe, a full disk and an unknown name end as in a task."""
        with one_line_errors():
            try:
                super().parse_cleanup()
            except Exit as answered:
                if answered.message:  # of --list NAME
                    raise FlashladderError("there are no groups of tasks", hint=shows_tasks()) from None
                sys.stdout.flush()
                raise
            except ParseError as error:
                from flashladder.located import closest

                name = str(self.args.help.value)
                hint = closest(name, list(self.parser.contexts)) or shows_tasks()
                raise FlashladderError("no such task", found=repr(name), hint=hint) from error


def run(namespace: Collection, words: Sequence[str]) -> NoReturn:
    """Runs the tasks of a command line and exits with its code. Raises `SystemExit`: always."""
    binary = called()
    LineProgram(namespace=namespace, name="flashladder", binary=binary, version=__version__).run([binary, *words])
    raise SystemExit(0)


def called() -> str:
    """The program that the user typed: ``invoke``, which works only in the checkout, or ``flashladder``."""
    return "invoke" if called_by_invoke() else "flashladder"


def shows_tasks() -> str:
    """A hint for a user who does not know the tasks."""
    return f"`{called()}` alone shows the tasks"


def called_by_invoke() -> bool:
    """Whether this process is ``invoke``, ``inv`` or ``python -m invoke``, and not ``flashladder`` or a test."""
    called = Path(sys.argv[0])
    return called.stem in ("invoke", "inv") or (called.name == "__main__.py" and called.parent.name == "invoke")
