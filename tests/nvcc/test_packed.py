"""Packed sequences on the emulator: what lies behind a sequence, sequences without keys, CTAs without a tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flashladder.emulate.kernel import MULTIPROCESSORS, attention_fp64, forward, make_tensors
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import one_config
from flashladder.problem import Problem

pytestmark = pytest.mark.nvcc

QUERIES = (130, 20, 130, 30, 3, 0)  # the third sequence holds what the first one does; the fourth one's are no numbers
KEYS = (150, 30, 150, 40, 0, 4)


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_a_sequence_does_not_depend_on_the_one_behind_it(mask: Any) -> None:
    """One launch, in which some CTAs have no tile."""
    iteration = load_iteration(33)
    config = one_config(iteration, "h200", "fp16", mask, packed=True)
    problem = Problem.packing(QUERIES, KEYS, n_heads=1, d_head=128, mask=mask)
    q, k, v, out = tensors = make_tensors(iteration, config, problem)
    rows, keys = zip(*problem.sequences, strict=True)
    for tensor, places in ((q, rows), (k, keys), (v, keys)):
        tensor[:, places[2]] = tensor[:, places[0]]
        tensor[:, places[3]] = np.nan
        tensor[:, places[3]][:, ::2] = np.inf
    lse = np.full((1, problem.seq_len), np.nan, np.float32)
    bounds = [np.array(one, np.int32) for one in problem.bounds]
    launch = iteration.family.launch(config, tensors, MULTIPROCESSORS, lse, bounds)
    assert launch.ctas(MULTIPROCESSORS)[0] > sum(-(-one // config.B_r) for one in QUERIES), "too few to have no tile"
    forward(iteration, config, tensors, lse=lse, bounds=bounds)
    assert out[:, rows[0]].tobytes() == out[:, rows[2]].tobytes()
    assert lse[:, rows[0]].tobytes() == lse[:, rows[2]].tobytes()
    for i in (0, 1):
        expected = attention_fp64(q[:, rows[i]], k[:, keys[i]], v[:, keys[i]], mask=mask)
        assert np.abs(out[:, rows[i]] - expected).max() < 2e-3
    assert not out[:, rows[4]].any()
    assert np.isneginf(lse[:, rows[4]]).all()
