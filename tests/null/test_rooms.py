"""The package's rooms: small enough to be read, told in docs/reading-order.md as they tell themselves, layered."""

from __future__ import annotations

import ast
from pathlib import Path
import re
import sys

import pytest

from flashladder.paths import PACKAGE, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

MOST_LINES = 300  # of a module
MOST_MODULES = 16  # of a package, `__init__` included
PLAIN = {"__main__", "ops", "usage"}  # above all rooms, and no rooms
ROW = re.compile(r"^\| `flashladder/(\w+)/` \| (.+) \|$", re.MULTILINE)


def packages() -> list[Path]:
    return [path.parent for path in sorted(PACKAGE.rglob("__init__.py"))]


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


def test_no_module_is_longer_than_a_person_reads() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path.name: n for path, n in lengths.items() if n > MOST_LINES} == {}


def test_no_package_is_larger_than_a_person_keeps_in_mind() -> None:
    sizes = {package.name: len(list(package.glob("*.py"))) for package in packages()}
    assert {name: n for name, n in sizes.items() if n > MOST_MODULES} == {}


def test_every_folder_with_modules_is_a_package() -> None:
    assert {path.parent for path in PACKAGE.rglob("*.py")} == set(packages())


def test_the_reading_order_tells_every_room_as_it_tells_itself_lowest_first() -> None:
    told = ROW.findall((ROOT / "docs" / "reading-order.md").read_text(encoding="utf-8"))
    assert [name for name, _ in told] == layers()
    assert told == [(name, first_sentence(PACKAGE / name)) for name, _ in told]
    assert {package.name for package in PACKAGE.iterdir() if (package / "__init__.py").is_file()} == set(layers())


def test_an_init_is_a_sentence_and_names() -> None:
    """At most five lines of text; code only where it offers names."""
    for package in packages():
        text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
        assert 0 < len([line for line in text.splitlines() if line]) <= 7, package
