"""What README.md says about commands, files and counts is so."""

from __future__ import annotations

from pathlib import Path
import re

from invoke.collection import Collection
import pytest
import yaml

from flashladder.check.on_emulator import cases_for
from flashladder.ladder.config import DTYPES
from flashladder.ladder.iteration import load_all
from flashladder.paths import ROOT
import tasks

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_command_exists() -> None:
    verbs = Collection.from_module(tasks).task_names
    named = {
        name
        for run in re.findall(r"invoke ((?:[a-z]+`?, `?)*[a-z]+)", TEXT + CONTRIBUTING)
        for name in re.findall("[a-z]+", run)
    }
    assert named >= {"emulate", "check", "list"}
    assert named <= set(verbs)


def test_every_session_exists() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    for name in re.findall(r"nox -s ([a-z-]+)", TEXT + CONTRIBUTING):
        assert f"\ndef {name}(session" in noxfile or name == "build-iteration-", name


def test_each_line_of_the_set_up_works_alone() -> None:
    """On a machine that has Python and git, pasted by itself."""
    for session in ("reproduce", "tests"):
        assert re.search(rf"^pip install nox && nox -s {session}\b", TEXT, re.MULTILINE)


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for key in ("version", "license"):
        assert re.findall(rf'^{key} = "(.+)"$', project, re.MULTILINE) == [citation[key]]


def test_options_of_commands_exist() -> None:
    for verb, options in re.findall(r"^invoke ([a-z]+) ?([^#\n]*)", TEXT, re.MULTILINE):
        flags = {flag for argument in Collection.from_module(tasks)[verb].get_arguments() for flag in argument.names}
        for option in re.findall(r"--([a-z-]+)", options):
            assert {option, option.replace("-", "_")} & flags, f"invoke {verb} --{option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


def test_the_emulator_checks_as_many_cases_as_it_says() -> None:
    cases = sum(
        len(cases_for(iteration.configs["a100"], iteration.row_stride)) * len(DTYPES) for iteration in load_all()
    )
    assert f"({cases} cases," in (ROOT / "docs" / "without-a-gpu.md").read_text(encoding="utf-8")
