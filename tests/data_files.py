"""Long texts and tables of tests: ``tests/data/texts.yaml`` and ``tests/data/tables.yaml``, by test module and name.

Those of more than about eight lines are there; shorter ones are in the test itself.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data"


@cache
def _read(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.load((DATA / name).read_bytes(), Loader=yaml.CSafeLoader)
    return found


def text_of(module: str, name: str) -> str:
    """A program, a listing or a file that a test writes."""
    return str(_read("texts.yaml")[module][name])


def table_of(module: str, name: str) -> list[Any]:
    """The rows of a parametrized test, or the lines that a test expects."""
    return list(_read("tables.yaml")[module][name])
