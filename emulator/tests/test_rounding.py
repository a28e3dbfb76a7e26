"""Rounding tools: every mode of every format against exact fractions, flushing, saturation, exact sums and products."""

from __future__ import annotations

from fractions import Fraction
import math
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.cases.reference_float import round_exact

from ptxemu import arithmetic
from ptxemu.values import BFLOAT16, Array

MODES = st.sampled_from(arithmetic.MODES)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
MODERATE = st.floats(min_value=2.0**-400, max_value=2.0**400).flatmap(lambda x: st.sampled_from([x, -x]))
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
FORMATS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": BFLOAT16}


def one(x: float) -> Array:
    return np.array([x])


def bits(x: Array | np.generic) -> list[int]:
    return np.atleast_1d(x).view(f"u{x.dtype.itemsize}").tolist()  # type: ignore[no-any-return]  # NumPy's tolist is untyped


@given(DOUBLES, DOUBLES)
def test_two_sum_is_exact(a: float, b: float) -> None:
    with np.errstate(all="ignore"):
        total, error = (float(x[0]) for x in arithmetic.two_sum(one(a), one(b)))
    if math.isfinite(total) and math.isfinite(error):
        assert Fraction(total) + Fraction(error) == Fraction(a) + Fraction(b)
    else:
        assert max(abs(a), abs(b)) > 2.0**1022


@given(MODERATE, MODERATE)
def test_two_product_is_exact(a: float, b: float) -> None:
    product, error = (float(x[0]) for x in arithmetic.two_product(one(a), one(b)))
    assert Fraction(product) + Fraction(error) == Fraction(a) * Fraction(b)


@given(SINGLES, SINGLES, st.sampled_from(sorted(FORMATS)), MODES)
def test_a_sum_rounded_to_odd_may_be_rounded_again(a: float, b: float, kind: str, mode: str) -> None:
    with np.errstate(all="ignore"):
        found = arithmetic.narrow(arithmetic.odd_sum(one(a), one(b)), FORMATS[kind], mode)
    exact = Fraction(a) + Fraction(b)
    if exact:
        with np.errstate(over="ignore"):
            assert bits(found) == bits(one(round_exact(exact, kind, mode)).astype(FORMATS[kind]))
    else:
        assert float(found[0]) == 0


@given(DOUBLES.filter(bool), st.sampled_from(sorted(FORMATS)), MODES)
@example(2.0**-400, "bf16", "rn")  # zero after the first of two roundings
def test_narrow_rounds_a_double_once(x: float, kind: str, mode: str) -> None:
    with np.errstate(all="ignore"):
        found = arithmetic.narrow(one(x), FORMATS[kind], mode)
        assert bits(found) == bits(one(round_exact(Fraction(x), kind, mode)).astype(FORMATS[kind]))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("special", [math.inf, -math.inf, 0.0, -0.0])
def test_narrow_keeps_infinities_and_zeros(kind: str, special: float) -> None:
    for mode in arithmetic.MODES:
        with np.errstate(all="ignore"):
            found = arithmetic.narrow(one(special), FORMATS[kind], mode).astype(np.float64)
            assert np.isnan(arithmetic.narrow(one(math.nan), FORMATS[kind], mode).astype(np.float64)).all()
        assert bits(found) == bits(one(special))


@given(st.fractions(), st.integers(-1200, 1200), MODES)
def test_round_fraction(value: Fraction, exponent: int, mode: str) -> None:
    scaled = value * Fraction(2) ** exponent
    with np.errstate(all="ignore"):
        found = arithmetic.round_fraction(scaled, mode, zero=-0.0)
    expected = round_exact(scaled, "f64", mode) if scaled else -0.0
    assert bits(one(found)) == bits(one(expected))


def test_flush_keeps_signs_nan_and_the_smallest_normal_number() -> None:
    least, normal = 2.0**-149, 2.0**-126
    values = np.array([least, -least, normal - least, normal, -normal, 0.0, -0.0, math.inf, math.nan], np.float32)
    expected = np.array([0.0, -0.0, 0.0, normal, -normal, 0.0, -0.0, math.inf, math.nan], np.float32)
    assert bits(arithmetic.ftz(values)) == bits(expected)
    untouched = values[3:]
    assert arithmetic.ftz(untouched) is untouched


def test_canonical_nan() -> None:
    values = np.array([0x7FC00000, 0xFFC00001, 0x7F800001, 0x3F800000, 0xFF800000], np.uint32).view(np.float32)
    assert bits(arithmetic.canonical(values)) == [0x7FFFFFFF] * 3 + [0x3F800000, 0xFF800000]
    assert arithmetic.canonical(values[3:]).base is values[3:].base


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_saturate(dtype: Any) -> None:
    values = np.array([math.nan, -math.inf, -1, -0.0, 0.0, 0.25, 1.0, 1.5, math.inf], dtype)
    expected = np.array([0, 0, 0, 0, 0, 0.25, 1, 1, 1], dtype)
    assert bits(arithmetic.saturate(values)) == bits(expected)


@pytest.mark.parametrize("mode", arithmetic.MODES)
def test_what_vanishes_is_what_24_bits_leave_below_the_smallest_normal_number(mode: str) -> None:
    steps = np.array([0.0, 2.0**-46, 2.0**-25, 2.0**-25 + 2.0**-46, 2.0**-24 - 2.0**-46, 2.0**-24, 2.0**-23])
    for sign in (1.0, -1.0):
        exact = sign * 2.0**-126 * (1 - steps)
        expected = [abs(round_exact(Fraction(x), "f32.ftz", mode)) < 2.0**-126 for x in exact.tolist()]
        assert arithmetic.vanishes(exact, mode).tolist() == expected
