"""The order of tests: everything once, long ones first in every process's share, shares of about equal time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import dealt


@dataclass(frozen=True)
class Item:
    """What the order looks at."""

    nodeid: str
    marker: str = ""
    fixturenames: tuple[str, ...] = field(default=())

    @property
    def path(self) -> Path:
        return Path(self.nodeid.partition("::")[0])

    def get_closest_marker(self, name: str) -> str | None:
        return name if name == self.marker else None


def items() -> list[Any]:
    slow = [Item(f"lock.py::{i}", "slow") for i in range(4)]
    cluster = [Item(f"slurm.py::{i}", "slow", ("slurm",)) for i in range(2)]
    compiling = [Item(f"{name}.py::{i}", "nvcc") for name, n in (("a", 30), ("b", 20), ("c", 10)) for i in range(n)]
    return [*slow, *cluster, *compiling, *(Item(f"quick.py::{i}") for i in range(400))]


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
def test_every_test_is_dealt_once(shares: int) -> None:
    found = dealt(items(), shares)
    assert sorted(item.nodeid for item in found) == sorted(item.nodeid for item in items())


def test_each_equal_part_begins_with_its_share_of_the_long_ones() -> None:
    found: list[Any] = list(dealt(items(), 3))
    size = len(found) // 3
    parts = [found[:size], found[size : 2 * size], found[2 * size :]]
    assert [sum(item.marker == "slow" for item in part) for part in parts] == [2, 2, 2]
    for part in parts:
        quick = [item.marker == "" for item in part]
        assert quick == sorted(quick), "what is quick comes last"
    files = {name: [i for i, part in enumerate(parts) if any(str(item.path) == name for item in part)] for name in
             ("a.py", "b.py", "c.py", "slurm.py")}  # fmt: skip
    assert all(len(where) == 1 for where in files.values()), files
