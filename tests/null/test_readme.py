"""What README.md and the pages say about commands, programs and files is so."""

from __future__ import annotations

from collections.abc import Iterator
import importlib.util
from pathlib import Path
import re

from invoke.collection import Collection
import pytest
import yaml

from flashladder.paths import PACKAGE, ROOT
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


PROGRAM = re.compile(r"""-m"?,?\s"?(flashladder(?:\.[a-z_0-9]+)*)""")


def texts() -> Iterator[Path]:
    """Where programs are named: sources, scripts and pages."""
    folders = [PACKAGE, *(ROOT / name for name in ("tests", "analysis", "docs", "configs", "iterations", "results"))]
    yield from (path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md", ".yaml"))
    yield from (ROOT / name for name in ("noxfile.py", "tasks.py", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"))


def is_program(name: str) -> bool:
    """Whether ``python -m name`` does something: a room with a ``__main__``, or a module that runs what it holds."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return False
    if spec.submodule_search_locations:
        return Path(spec.origin).with_name("__main__.py").is_file()
    return '\nif __name__ == "__main__":\n' in Path(spec.origin).read_text(encoding="utf-8")


def test_every_program_that_is_named_exists() -> None:
    named = {match[1]: path for path in texts() for match in PROGRAM.finditer(path.read_text(encoding="utf-8"))}
    assert len(named) > 30
    assert {name: path for name, path in named.items() if not is_program(name)} == {}
