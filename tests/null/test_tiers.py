"""Which tests `nox -s tests` leaves to `nox -s exhaustive`, and the fifth of those that a commit draws."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flashladder.paths import ROOT
from tests.conftest import drawn, is_exhaustive, listed


def item(name: str, file: str = "tests/nvcc/test_lock_nvcc.py", *, exhaustive: bool = True) -> Any:
    marker = object() if exhaustive else None
    return SimpleNamespace(name=name, path=ROOT / file, nodeid=f"{file}::{name}", get_closest_marker=lambda _: marker)


def test_the_table_names_tests_that_there_are() -> None:
    for file, tests in listed().items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert [name for name in tests if f"def {name}(" not in text] == [], file


def test_a_list_keeps_what_it_names_and_a_number_a_share() -> None:
    drawn_at = "tests/nvcc/test_executions.py"
    regions = [item(f"test_regions_are_as_the_schedule_has_them[{arch}]", drawn_at) for arch in ("sm_80", "sm_90")]
    assert [is_exhaustive(one) for one in regions] == [False, True]
    assert is_exhaustive(item("test_the_committed_counts_are_those_of_the_kernels"))
    assert not is_exhaustive(item("test_a_changed_loop_order_fails_with_the_explanation"))
    tiles = [item(f"test_tile_after_tile[{n}]", "tests/nvcc/test_hopper_tiles.py") for n in range(600)]
    assert 10 < sum(not is_exhaustive(one) for one in tiles) < 40, "about one in 24"


def test_five_fifths_are_not_all_but_each_is_the_same_every_time() -> None:
    items = [item(f"test_it[{n}]") for n in range(500)]
    first, again, other = ([one.name for one in items if drawn(one, commit)] for commit in ("a", "a", "b"))
    assert first == again != other
    assert 70 < len(first) < 130
    assert not drawn(item("test_it", exhaustive=False), "a")
    seen = {one.name for commit in map(str, range(60)) for one in items if drawn(one, commit)}
    assert len(seen) == len(items), "sixty commits draw every test"
