"""Comparison and selection beyond the cases of `tests/emulator_cases/logic.py`: which forms exist, NaN, flushes."""

from __future__ import annotations

from collections.abc import Callable
import operator

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from ptxemu.isa.logic import comparisons, select
from ptxemu.table import ROWS
from ptxemu.values import DTYPES, Array

ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
OPPOSITE = {"eq": "ne", "lt": "ge", "le": "gt", "ne": "eq", "ge": "lt", "gt": "le"}


def lanes(*values: float, ptx_type: str = "f32") -> Array:
    return np.array(values).astype(DTYPES[ptx_type]).reshape(1, 1, -1)


def holds(opcode: str, *operands: Array) -> list[bool]:
    """The first result."""
    with np.errstate(all="ignore"):
        found = ROWS[opcode].function(*operands)
    return [bool(x) for x in (found[0] if isinstance(found, tuple) else found).reshape(-1)]


def test_a_type_has_the_comparisons_that_the_isa_gives_it() -> None:
    assert set(comparisons("b32")) == {"eq", "ne"}
    assert set(comparisons("s64")) == set(ORDERED)
    assert set(comparisons("u16")) == {*ORDERED, "lo", "ls", "hi", "hs"}
    assert set(comparisons("bf16")) == {*ORDERED, *(f"{name}u" for name in ORDERED), "num", "nan"}
    assert "setp.lo.s32" not in ROWS
    assert "setp.lt.b32" not in ROWS
    assert "setp.ltu.u32" not in ROWS
    assert "setp.lt.ftz.f64" not in ROWS


@pytest.mark.parametrize("ptx_type", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", ORDERED)
def test_nan_decides_between_ordered_and_unordered(name: str, ptx_type: str) -> None:
    a, b = lanes(np.nan, 1.0, np.nan, ptx_type=ptx_type), lanes(1.0, np.nan, np.nan, ptx_type=ptx_type)
    assert holds(f"setp.{name}.{ptx_type}", a, b) == [False] * 3
    assert holds(f"setp.{name}u.{ptx_type}", a, b) == [True] * 3


@settings(deadline=None)
@given(st.sampled_from(ORDERED), st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=9))
def test_unordered_is_the_complement_of_the_opposite(name: str, numbers: list[tuple[float, float]]) -> None:
    a, b = (lanes(*each) for each in zip(*numbers, strict=True))
    opposite = holds(f"setp.{OPPOSITE[name]}.f32", a, b)
    assert holds(f"setp.{name}u.f32", a, b) == [not truth for truth in opposite]


def test_flush_makes_denormals_equal_to_zero() -> None:
    a, b = lanes(1e-40, -1e-40, 1.2e-38), lanes(0.0, 1e-41, 0.0)
    assert holds("setp.eq.f32", a, b) == [False, False, False]
    assert holds("setp.eq.ftz.f32", a, b) == [True, True, False]


def test_the_second_result_is_the_complement_even_for_nan() -> None:
    first, second = ROWS["setp.lt.f32"].function(lanes(np.nan, 0.0), lanes(0.0, 1.0))
    assert first.reshape(-1).tolist() == [False, True]
    assert second.reshape(-1).tolist() == [True, False]


@settings(deadline=None)
@given(st.sampled_from(("and", "or", "xor")), st.booleans(), st.integers(-3, 3), st.integers(-3, 3))
def test_both_results_are_combined_with_the_third_predicate(join: str, flag: bool, a: int, b: int) -> None:
    operands = lanes(a, ptx_type="s32"), lanes(b, ptx_type="s32"), np.full((1, 1, 1), flag)
    first, second = ROWS[f"setp.lt.{join}.s32"].function(*operands)
    functions: dict[str, Callable[[bool, bool], bool]] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
    combine = functions[join]
    assert (bool(first.item()), bool(second.item())) == (combine(a < b, flag), combine(a >= b, flag))


def test_a_uniform_predicate_selects_without_a_copy() -> None:
    a, b = lanes(1.0, 2.0), lanes(3.0)
    assert select(a, b, np.ones((1, 1, 1), np.bool_)) is a
    assert select(a, b, np.zeros((1, 1, 1), np.bool_)) is b
    assert select(a, b, np.array([[[False, True]]])).reshape(-1).tolist() == [3.0, 2.0]
