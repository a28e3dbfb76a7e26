"""The tasks of the commands: options from a row of `flashladder.commands`, their values checked before they run.

Nothing to run here; tasks.py makes its tasks by `task_of`, and `flashladder.program` reads command lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import inspect

from invoke.context import Context
from invoke.tasks import Task

from flashladder.arguments import Command, Option
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.program import closest

LEFT_OUT = "\0"  # a word that was not typed: no word of a command line holds this byte
Value = str | bool | list[str] | None
Given = Mapping[str, Value]


def task_of(command: Command, run: Callable[[Given], None], *, default: bool = False) -> Task[Callable[..., None]]:
    """The task of a command: its options are the task's, its text the help; `run` gets what a person typed."""

    def body(_: Context, **given: Value) -> None:
        with one_line_errors():
            _require_values(command, given)
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
    """An option as invoke reads it from a signature; None, or `LEFT_OUT` of a word, is left out."""
    unset = {"flag": False, "word": LEFT_OUT}.get(option.form)
    default = inspect.Parameter.empty if option.required else unset
    return inspect.Parameter(option.attribute, inspect.Parameter.KEYWORD_ONLY, default=default)


def _require_values(command: Command, given: Given) -> None:
    """Raises `FlashladderError` for an empty value, such as that of a shell variable that is not set."""
    for option in command.options:
        if not option.required and _is_set(option, given) and given[option.attribute] in ("", [""]):
            name = option.name if option.form == "word" else f"--{option.name}"
            hint = f"`invoke {command.name} --help` says more"
            raise FlashladderError(f"{name} needs a value", found="''", hint=hint)


def _require_choices(command: Command, given: Given) -> None:
    """Raises `FlashladderError` for a value that is none of its option's choices."""
    for option in command.options:
        words = _words(option, given) if option.choices and _is_set(option, given) else []
        if wrong := [word for word in words if word not in option.choices]:
            raise FlashladderError(
                f"no such {option.name}",
                expected=" or ".join(option.choices),
                found=repr(wrong[0]),
                hint=closest(wrong[0], option.choices),
            )


def _words(option: Option, given: Given) -> list[str]:
    """The values of an option that is set."""
    value = given[option.attribute]
    if isinstance(value, list):
        return value
    return str(value).split(",") if option.form == "several" else [str(value)]


def _is_set(option: Option, given: Given) -> bool:
    value = given[option.attribute]
    return option.required or value not in (None, False, [], LEFT_OUT)


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
