"""The package's rooms: told in docs/reading-order.md as they tell themselves, layered."""

from __future__ import annotations

import ast
from collections.abc import Iterator
import importlib.util
from pathlib import Path
import re
import sys

import pytest

from flashladder.paths import PACKAGE, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PROGRAM = re.compile(r"""-m"?,?\s"?(flashladder(?:\.[a-z_0-9]+)*)""")
ROW = re.compile(r"^\| `flashladder/(\w+)/` \| (.+) \|$", re.MULTILINE)


def layers() -> list[str]:
    """The rooms of the contract, lowest first."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (contract,) = (
        one
        for one in tomllib.loads(text)["tool"]["importlinter"]["contracts"]
        if one.get("containers") == ["flashladder"]
    )
    names = [name for layer in reversed(contract["layers"]) for name in layer.split(" | ")]
    return [name for name in names if (PACKAGE / name).is_dir()]


def first_sentence(package: Path) -> str:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    assert text, package
    return " ".join(text.partition("\n\n")[0].split())


def test_the_reading_order_tells_every_room_as_it_tells_itself_lowest_first() -> None:
    told = ROW.findall((ROOT / "docs" / "reading-order.md").read_text(encoding="utf-8"))
    assert [name for name, _ in told] == layers()
    assert told == [(name, first_sentence(PACKAGE / name)) for name, _ in told]
    assert {package.name for package in PACKAGE.iterdir() if (package / "__init__.py").is_file()} == set(layers())


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
    assert len(named) > 40
    assert {name: path for name, path in named.items() if not is_program(name)} == {}
