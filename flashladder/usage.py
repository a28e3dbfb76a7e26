"""How `invoke` reads a command line here: tasks of the commands, usage errors that are one line and leave with 2.

Why: invoke leaves with 1 when it cannot read a command line, which in this project means that a check failed; it takes
``--help`` for the value of a positional argument that is still missing; and it cannot read a positional argument with a
default, the 7 of ``invoke ptxas 7``. It has no hook for these, so three methods of its parser are replaced, and the one
that prints help. Nothing to run here; tasks.py calls `install`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import inspect
import re
import sys
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.exceptions import Exit, ParseError
from invoke.parser.parser import ParseMachine
from invoke.program import Program
from invoke.tasks import Task

from flashladder.arguments import Command, Option
from flashladder.commands.on_cpu import EMULATE, own_kernel
from flashladder.errors import FlashladderError, one_line_errors

if TYPE_CHECKING:
    from invoke.parser.context import ParserContext

_HANDLE = ParseMachine.handle
_CLEANUP = Program.parse_cleanup
_UNKNOWN = re.compile(r"No idea what '(.*)' is!", re.DOTALL)
_FLAG = re.compile(r"--?[a-z]", re.IGNORECASE)  # -7 and - are words
_MISSING = re.compile(r"did not receive required positional arguments: (.*)")


Value = str | bool | list[str] | None
Given = Mapping[str, Value]


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


def _closest(name: str, candidates: Sequence[str]) -> str | None:
    """A hint at a misspelt task or flag."""
    from flashladder.located import closest  # which brings pydantic: not for a command line that is right

    return closest(name, candidates)


def _error(machine: ParseMachine, text: str) -> None:
    raise UsageError(f"error: {_explained(machine, text)}", machine.context)


def _explained(machine: ParseMachine, text: str) -> FlashladderError:
    """What invoke says about a command line, in this project's words."""
    tasks = [str(name) for name in machine.contexts]
    name = getattr(machine.context, "name", None)
    unknown, missing = _UNKNOWN.search(text), _MISSING.search(text)
    if unknown and name == EMULATE.name and (other := own_kernel(str(machine.context.positional_args[0].value))):
        return other  # `emulate own.ptx --grid 4`
    if missing:
        return FlashladderError(f"{name} needs {missing[1]}", hint=f"`invoke {name} --help` says more")
    if unknown and name is None:
        hint = _closest(unknown[1], tasks) or "`invoke` alone shows the tasks"
        return FlashladderError("no such task", found=repr(unknown[1]), hint=hint)
    if unknown and unknown[1].startswith("-"):
        flags = sorted(flag for flag in machine.context.flags if flag.startswith("--"))
        hint = _closest(unknown[1], flags) or f"`invoke {name} --help` says more"
        return FlashladderError(f"{name} has no such flag", expected=", ".join(flags), found=unknown[1], hint=hint)
    if unknown:
        hint = _closest(unknown[1], tasks) or f"`invoke {name} --help` says more"
        return FlashladderError(f"{name} takes no further argument", found=repr(unknown[1]), hint=hint)
    flag = f"--{_flag(machine)}"
    if "needed value" in text or "doesn't take" in text:
        text = f"{flag} needs a value" if "needed value" in text else f"{flag} takes no value"
    return FlashladderError(text, hint=f"`invoke {name} --help` says more" if name else "`invoke --help` says more")


def _flag(machine: ParseMachine) -> str:
    """The flag that is being read, without its dashes."""
    return str(getattr(machine.flag, "name", ""))


def _see_positional(machine: ParseMachine, value: str) -> None:
    missing = machine.context.missing_positional_args
    if _FLAG.match(value) and value not in ("--help", "-h"):  # `sweep --gird cpu`: not the name of a grid
        _error(machine, f"No idea what '{value}' is!")
    if value in ("--help", "-h"):
        machine.initial.flags["--help"].value = machine.context.name
    for argument in missing if value in ("--help", "-h") else missing[:1]:
        argument.value = value


def _handle(machine: ParseMachine, token: str) -> None:
    """Gives a word that is neither a flag, nor a flag's value, nor a task to the next argument that may go without."""
    context = machine.context
    positional = getattr(context, "positional_args", ())  # there is no context before the first task
    unset = [argument for argument in positional if not argument.got_value]
    if getattr(context, "name", None) == "help" and token in machine.contexts:  # `invoke help show`
        machine.initial.flags["--help"].value = token
        return
    is_word = not token.startswith("-") and token not in machine.contexts and not machine.waiting_for_flag_value
    if unset and is_word and not context.missing_positional_args:
        unset[0].value = token
    else:
        try:
            _HANDLE(machine, token)
        except ValueError:  # one of invoke's own flags, which turns text into a number
            _error(machine, f"--{_flag(machine)} needs a number, found {token!r}")


def _cleanup(program: Program) -> None:
    """Answers ``--help`` and ``--list``: a reader that goes away, a full disk and an unknown name are as elsewhere."""
    with one_line_errors():
        try:
            _CLEANUP(program)
        except Exit as answered:
            if answered.message:  # of --list NAME
                raise FlashladderError("there are no groups of tasks", hint="`invoke` alone shows the tasks") from None
            sys.stdout.flush()
            raise
        except ParseError as error:
            name = str(program.args.help.value)
            hint = _closest(name, list(program.parser.contexts)) or "`invoke` alone shows the tasks"
            raise FlashladderError("no such task", found=repr(name), hint=hint) from error


def install() -> None:
    """Replaces the four methods, for this process."""
    Program.parse_cleanup = _cleanup  # type: ignore[method-assign, assignment]  # no hook: see above
    ParseMachine.error = _error  # type: ignore[assignment]  # no hook: see above
    ParseMachine.handle = _handle  # type: ignore[method-assign, assignment]  # no hook: see above
    ParseMachine.see_positional_arg = _see_positional  # type: ignore[assignment]  # no hook: see above


def task_of(command: Command, run: Callable[[Given], None], *, default: bool = False) -> Task[Callable[..., None]]:
    """The task of a command: its options are the task's, its text the help; `run` gets what a person typed."""

    def body(_: Context, **given: Value) -> None:
        with one_line_errors():
            _require_choices(command, given)
        run(given)

    first = inspect.Parameter("_", inspect.Parameter.POSITIONAL_ONLY)
    body.__signature__ = inspect.Signature([first, *map(_parameter, command.options)])  # type: ignore[attr-defined]
    body.__doc__ = "\n".join([command.does, "", *(f"Example: `invoke {example}`." for example in command.examples)])
    return Task(
        body,
        name=command.name,
        default=default,
        auto_shortflags=command.short_flags,
        help={option.attribute: option.help for option in command.options},
        positional=[option.attribute for option in command.options if option.required or option.form == "word"],
        iterable=[option.attribute for option in command.options if option.form == "again"],
    )


def _parameter(option: Option) -> inspect.Parameter:
    """An option as invoke reads it from a signature; None, or no word, is left out."""
    unset = {"flag": False, "word": ""}.get(option.form)
    default = inspect.Parameter.empty if option.required else unset
    return inspect.Parameter(option.attribute, inspect.Parameter.KEYWORD_ONLY, default=default)


def _require_choices(command: Command, given: Given) -> None:
    """Raises `FlashladderError` for a value that is none of its option's choices."""
    for option in command.options:
        words = _words(option, given) if option.choices and _is_set(option, given) else []
        if wrong := [word for word in words if word not in option.choices]:
            raise FlashladderError(
                f"no such {option.name}",
                expected=" or ".join(option.choices),
                found=repr(wrong[0]),
                hint=_closest(wrong[0], option.choices),
            )


def _words(option: Option, given: Given) -> list[str]:
    """The values of an option that is set."""
    value = given[option.attribute]
    if isinstance(value, list):
        return value
    return str(value).split(",") if option.form == "several" else [str(value)]


def _is_set(option: Option, given: Given) -> bool:
    value = given[option.attribute]
    return option.required or (bool(value) if option.form == "word" else value not in (None, False, []))


def with_defaults(command: Command, given: Given) -> Given:
    """What a person typed, and the default of each option that was left out."""
    return {
        one.attribute: given[one.attribute] if _is_set(one, given) or one.form == "flag" else one.default
        for one in command.options
    }


def words_of(command: Command, given: Given) -> list[str]:
    """What a person typed as a command line for the parser of the command's package: words, then what is set."""
    words, options = list[str](), list[str]()
    for option in (option for option in command.options if _is_set(option, given)):
        if option.form == "word":
            words += _words(option, given)
        elif option.form == "flag":
            options.append(f"--{option.name}")
        elif option.form == "several":
            options += [f"--{option.name}", *_words(option, given)]
        else:
            options += [f"--{option.name}={value}" for value in _words(option, given)]
    return words + options


def overview(stations: Mapping[str, Sequence[Command]]) -> str:
    """The tasks by station, for people who know none yet; `stations` is heading to commands."""
    width = max(len(command.name) for commands in stations.values() for command in commands)
    parts = ["invoke TASK ARGUMENTS, for example `invoke show 7`; `invoke TASK --help`: more."]
    for heading, commands in stations.items():
        parts += ["", heading, *(f"  {command.name.ljust(width)}  {command.does}" for command in commands)]
    return "\n".join(parts)
