"""docs/reproduce.md: its cheap commands print what it says, the others exist; a claim names command and hardware."""

from __future__ import annotations

import re
import shlex

import pytest

from flashladder.paths import ROOT
from tests import pages
from tests.null.test_readme import is_program
from tests.typed import tasks

pytestmark = pytest.mark.nvcc

PAGE = ROOT / "docs" / "reproduce.md"
STEPS = [step for step in pages.steps(PAGE) if isinstance(step, pages.Command)]
COLUMNS = 6


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.line[:50])
def test_a_command_prints_what_the_page_says(step: pages.Command) -> None:
    assert step.expected
    pages.run_here(step)


def test_every_claim_names_a_command_that_exists_and_its_hardware() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in re.findall(r"^\| \d+a? \|.*\|$", text, re.MULTILINE)
    ]
    assert len(rows) == 12
    for number, claim, command, expected, time, hardware in rows:
        assert all((claim, expected, time)), number
        assert re.search("CPU|H100|H200", hardware), number
        program, *words = shlex.split(command.strip("`"))
        if program == "python":
            assert is_program(words[1]), command
        else:
            assert program == "nox" or words[0] in tasks().namespace.tasks, command
    assert len(STEPS) >= 8
