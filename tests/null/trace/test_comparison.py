"""One comparison of the trace on made-up values: what is beyond, where it is, and whose query that is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flashladder.ladder.iteration import load_iteration
from flashladder.problem import Shape
from flashladder.trace import compare
from flashladder.trace.compare import Comparison, Trace
from flashladder.trace.recorder import Held

STEP = load_iteration(16)
CONFIG = STEP.configs["a100"]
SHAPE = Shape(batch=1, seq_len=256, n_heads=1, d_head=128)


def compared(value: float, allowed: float = 0.5) -> tuple[Trace, Comparison]:
    """S of the second CTA, zeros but for `value` in row 70 and column 9; they should be 0, and 1 throughout."""
    held = np.zeros((1, CONFIG.B_r, CONFIG.B_c), np.float32)
    held[0, 70, 9] = value
    empty = np.zeros((1, 256, 1, 128), np.float16)
    found = Trace(STEP, CONFIG, SHAPE, (empty,) * 4, ((1, 0, 0),), (), 4, True, ())
    zeros = torch.zeros(held.shape, dtype=torch.float64)
    pair = compare._Pair(compare.S, Held(held, {}), (zeros, zeros + allowed), zeros + 1)
    return found, compare._comparison(found, pair, 0, 3)


@pytest.mark.parametrize("value", [0.75, -3.0, math.nan, math.inf, -math.inf])
def test_a_value_that_is_off_or_none_is_found_where_it_is(value: float) -> None:
    assert CONFIG.B_r == 2 * CONFIG.B_c
    _, one = compared(value)
    assert one.n_beyond == 1
    assert one.first is not None
    assert one.first == one.worst or math.isnan(value)
    for place in (one.first, one.worst):
        assert (place.row, place.column, place.query, place.cta) == (70, 9, CONFIG.B_r + 70, (1, 0, 0))
    assert one.share > 1


def test_errors_are_of_what_is_expected_and_drift_of_the_whole() -> None:
    _, one = compared(0.25)
    assert (one.n_beyond, one.first) == (0, None)
    assert (one.max_error, one.share, one.drift) == (0.25, 0.5, 1.0)
    assert one.rms == pytest.approx(0.25 / math.sqrt(CONFIG.B_r * CONFIG.B_c))


def test_a_trace_that_visits_too_few_blocks_has_not_passed() -> None:
    found, _ = compared(0.0)
    assert found.first is None
    assert not found.passed
