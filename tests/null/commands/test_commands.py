"""The rows of the commands: what an example types exists, what is typed as a value is one that the option takes."""

from __future__ import annotations

import shlex

import pytest

from flashladder.commands import COMMANDS, STATIONS
from flashladder.commands.on_cpu import TRACE
from flashladder.names import INTERMEDIATES, TRACE_INPUTS


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_type_what_exists(name: str) -> None:
    command = COMMANDS[name]
    options = {f"--{option.name}": option for option in command.options}
    assert command.examples
    for example in command.examples:
        words = shlex.split(example)
        assert words[0] == name
        for place, word in enumerate(words):
            if word.startswith("--"):
                option = options[word]
                value = words[place + 1 : place + 2]
                assert not option.choices or set(value[0].split(",")) <= set(option.choices)


def test_each_command_stands_at_one_station() -> None:
    listed = [command.name for commands in STATIONS.values() for command in commands]
    assert sorted(listed) == sorted(COMMANDS)
    assert len(set(listed)) == len(listed)


def test_a_traces_choices_are_its_intermediates_and_inputs() -> None:
    choices = {option.name: option.choices for option in TRACE.options}
    assert (choices["show"], choices["input"]) == (INTERMEDIATES, TRACE_INPUTS)
    assert len(set(INTERMEDIATES)) == len(INTERMEDIATES) == 9
