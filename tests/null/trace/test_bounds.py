"""Bounds of the trace's reference by hand: no wider than the roundings of fp32 and of PTX's approximate instructions.

Why: kernels that are right pass any bound, so that nothing else notices one that is too wide.
"""

from __future__ import annotations

import math

import pytest
import torch

from flashladder.trace import reference as ref

U = 2.0**-24  # fp32
EX2 = DIV = 2.0**-22  # PTX ISA 9.0, 9.7.3: ex2.approx.ftz, div.approx.ftz
ROOT = 2.0**-22.9  # rsqrt.approx.ftz
SCALE = 1 / math.sqrt(128)
SLACK = 1.01


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


def state() -> ref.State:
    """m = 0, l = 1 in each lane of a quad, O = 1."""
    return ref.State(0 * ones(1, 16, 4), ones(1, 16, 4), ones(1, 16, 128))


def largest(bounded: ref.Bounded) -> float:
    return float(bounded[1].max())


def test_products_may_be_off_by_a_rounding_of_each_term_and_each_tile() -> None:
    assert largest(ref.scores(ones(1, 16, 128), ones(1, 64, 128))) <= SLACK * 128 * (128 + 128 / 16) * U
    kept = ones(1, 16, 128)
    assert largest(ref.output(kept, ones(1, 16, 64), ones(1, 64, 128))) <= SLACK * 65 * (64 + 64 / 16 + 1) * U


@pytest.mark.parametrize("exponent", [0.0, -1.0, -10.0])
def test_an_exponential_may_be_off_by_its_own_error_and_that_of_its_exponent(exponent: float) -> None:
    s = ones(1, 16, 64) * exponent * math.log(2) / SCALE
    allowed = 2**exponent * (EX2 - exponent * (ROOT + 6 * U) * math.log(2))
    for folded in (True, False):
        assert largest(ref.weights(s, 0 * ones(1, 16, 4), SCALE, folded=folded)) <= SLACK * allowed
    m = -s[..., :4]  # P = 0: the sum of before at a new maximum, and O
    nothing = 0 * ones(1, 16, 64)
    assert largest(ref.total(state(), m, nothing, SCALE)) <= SLACK * (allowed + 2**exponent * 18 * U)
    assert largest(ref.rescaled(state(), m, SCALE)) <= SLACK * (allowed + 2**exponent * U)


def test_a_constant_that_is_rounded_by_itself_counts_where_it_is_folded_in() -> None:
    s = m = 100 * ones(1, 16, 64)
    folded, apart = (largest(ref.weights(s, m[..., :4], SCALE, folded=one)) for one in (True, False))
    assert apart <= SLACK * EX2
    assert EX2 < folded <= SLACK * (EX2 + 100 * SCALE / math.log(2) * U * math.log(2))


def test_a_sum_may_be_off_by_a_rounding_of_each_term() -> None:
    assert largest(ref.total(state(), 0 * ones(1, 16, 4), ones(1, 16, 64), SCALE)) <= SLACK * (17 * 18 * U + EX2)


@pytest.mark.parametrize(("dtype", "half_unit", "least"), [("fp16", 2.0**-11, 2.0**-25), ("bf16", 2.0**-8, 2.0**-134)])
def test_what_is_stored_may_be_off_by_half_a_unit_and_a_division(dtype: str, half_unit: float, least: float) -> None:
    o = 4 * ones(1, 16, 128)
    assert largest(ref.normalised(o, ones(1, 16, 4), dtype)) <= SLACK * (half_unit + DIV + 4 * U)
    assert largest(ref.normalised(0 * o, ones(1, 16, 4), dtype)) == least
    assert largest(ref.rounded(ones(1, 16, 64), dtype)) == half_unit
    assert largest(ref.rounded(0 * ones(1, 16, 64), dtype)) == least


def test_a_scaled_score_may_be_off_by_its_factor_and_a_rounding() -> None:
    assert largest(ref.scaled_scores(ones(1, 16, 64), 1.0)) <= SLACK * (ROOT + 3 * U)
