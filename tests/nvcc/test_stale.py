"""The softmax part `stale` alone, one warp on the emulator: how far a weight may grow, and when the warp notices.

Cases of whole kernels miss a slightly wrong limit, the cap of 256, which needs longer sequences, and a NaN.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashladder.build import compile as compiling
from flashladder.build.store import fill_all, ptx_entry
from flashladder.ladder.iteration import included_files
from flashladder.paths import KERNELS
import ptxemu
from ptxemu.values import Array

pytestmark = pytest.mark.nvcc

SOURCE = Path(__file__).parent / "softmax_parts" / "stale.cu"
LANES, SCORES = 32, 16  # and the scores of a lane in the file: 8 of each row
LIMITS = (4.0, 2.0)  # of a lane's two rows


@cache
def program() -> ptxemu.Program:
    text = SOURCE.read_text(encoding="utf-8")
    entry = ptx_entry(text, KERNELS, included_files(text), compiling.tools_of())
    fill_all([entry])
    return ptxemu.load(entry.ptx.read_text(encoding="utf-8"), path="stale.ptx")


def of_rows(values: tuple[float, float]) -> Array:
    """The same two rows in every lane."""
    return np.tile(np.array(values, np.float32), (LANES, 1))


def launch(kernel: str, *arguments: Any) -> None:
    program().kernel(kernel).launch((1,), (LANES,), arguments)


def decide(sums: Array, seen: int, seq_len: int) -> Array:
    limits = np.full((LANES, 2), np.nan, np.float32)
    launch("decide", limits, sums, seen, seq_len)
    return limits


def vote(kernel: str, *arguments: Any) -> bool:
    """The answer of a kernel of one warp, which must be the same in all lanes."""
    answers = np.full(LANES, -1, np.int32)
    launch(kernel, answers, *arguments)
    (answer,) = set(answers.tolist())
    return bool(answer)


def outgrown(scores: Array, m: tuple[float, float] = (0.0, 0.0), scale: float = 1.0) -> bool:
    return vote("outgrown", scores, of_rows(m), of_rows(LIMITS), scale)


@pytest.mark.parametrize(("seen", "seq_len"), [(256, 512), (128, 512), (1, 641), (384, 4096), (129, 1 << 18)])
def test_a_weight_may_be_so_much_of_what_the_rows_sum_will_be(seen: int, seq_len: int) -> None:
    """2.5 / sqrt(seq_len) of l x seq_len / seen, at least 1 and at most 256; l is a row's sum over the quad."""
    sums = np.random.default_rng(1).uniform(0, seen / 8, (LANES, 2)).astype(np.float32)
    whole = sums.reshape(LANES // 4, 4, 2).sum(1).repeat(4, axis=0)
    expected = np.clip(2.5 * np.sqrt(seq_len) * whole / seen, 1, 256)
    np.testing.assert_allclose(decide(sums, seen, seq_len), expected, rtol=1e-5)


def test_a_limit_is_neither_below_one_nor_above_256() -> None:
    assert (decide(of_rows((1e-3, 1e-3)), 256, 512) == 1).all()
    assert (decide(of_rows((32, 32)), 128, 20_000) == 256).all()  # equal keys: all weights 1, 2.5 sqrt(20,000) = 354


@pytest.mark.parametrize("lane", [0, 13, 31])
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(
    ("value", "expected"), [(1.0, True), (1.0001, True), (np.inf, True), (np.nan, True), (0.9999, False)]
)
def test_one_sum_above_its_rows_limit_is_enough(lane: int, part: int, value: float, expected: bool) -> None:
    """`value` times the limit of its row; all other sums equal their limits, which is allowed."""
    limits, own = of_rows(LIMITS), LIMITS[part // 2]
    sums = np.tile(np.array(LIMITS, np.float32).repeat(2), (LANES, 1))
    assert not vote("suspicious", sums, limits)
    sums[lane, part] = np.float32(own * value) if value != 1.0 else np.nextafter(np.float32(own), np.float32(9))
    assert vote("suspicious", sums, limits) is expected


@pytest.mark.parametrize("lane", [0, 13, 31])
@pytest.mark.parametrize("place", range(SCORES))
def test_one_weight_above_its_rows_limit_is_enough(lane: int, place: int) -> None:
    """2^(scale s - m): elements 0 and 1 of each tile belong to the first row, 2 and 3 to the second."""
    row = place % 4 // 2
    scores = np.zeros((LANES, SCORES), np.float32)
    own = np.log2(LIMITS[row])
    scores[lane, place] = own + 0.01
    assert outgrown(scores)
    scores[lane, place] = own - 0.01
    assert not outgrown(scores)
    scores[lane, place] = 2 * own + 2 * 3.01  # scaled by a half, in a row with m = 3
    m = (3.0, 7.0) if row == 0 else (7.0, 3.0)
    assert outgrown(scores, m, 0.5)
    scores[lane, place] = 2 * own + 2 * 2.99
    assert not outgrown(scores, m, 0.5)


@pytest.mark.parametrize("row", [0, 1])
def test_a_row_with_nan_is_followed(row: int) -> None:
    scores = np.zeros((LANES, SCORES), np.float32)
    scores[5].reshape(4, 4)[:, 2 * row : 2 * row + 2] = np.nan
    assert outgrown(scores)


def test_a_limit_falls_by_what_the_maximum_grew_and_not_below_one() -> None:
    grown = np.random.default_rng(2).uniform(0, 9, (LANES, 2)).astype(np.float32)
    grown[7] = (0.0, 9.0)
    limits, sums = of_rows((16.0, 64.0)), of_rows((5.0, 7.0))
    factors = np.full((LANES, 2), np.nan, np.float32)
    launch("rescale", factors, limits, sums, grown)
    np.testing.assert_allclose(factors, np.exp2(-grown.astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(limits, np.maximum(of_rows((16.0, 64.0)) * factors, 1), rtol=1e-6)
    np.testing.assert_allclose(sums, of_rows((5.0, 7.0)) * factors, rtol=1e-6)
    assert {1.0} < set(limits.ravel().tolist())
