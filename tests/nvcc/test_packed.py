"""Packed sequences on the emulator: what lies behind a sequence, sequences without keys, CTAs without a tile."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
import pytest

from flashladder.emulate.command import expected_instructions
from flashladder.emulate.kernel import MULTIPROCESSORS, attention_fp64, bounds_of, forward, make_tensors
from flashladder.ladder.families.hopper import packed_map
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import one_config
from flashladder.problem import Problem
from tests.data_files import table_of
from tests.typed import command, error_line

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
    bounds = bounds_of(problem)
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


def test_a_bar_knows_about_how_long_they_take() -> None:
    iteration = load_iteration(33)
    config = one_config(iteration, "h200", "fp16", "causal", packed=True)
    problem, counts = Problem.packing((400, 300), n_heads=1, d_head=128, mask="causal"), list[int]()
    bounds, tensors = bounds_of(problem), make_tensors(iteration, config, problem)
    forward(iteration, config, tensors, bounds=bounds, progress=counts.append)
    assert 0.5 < expected_instructions(iteration, config, problem) / sum(counts) < 2


def test_rows_lie_as_far_apart_as_a_map_of_packed_sequences_can_tell() -> None:
    iteration = load_iteration(33)
    limit = iteration.family.max_row_bytes(one_config(iteration, "h200", "fp16", packed=True))
    assert limit < iteration.family.max_row_bytes(one_config(iteration, "h200", "fp16"))
    tensor = as_strided(np.zeros(1, np.float16), (1, 2, 1, 128), (0, limit, 256, 2), writeable=False)
    strides = packed_map(tensor, "fp16", 64).strides
    assert all(0 < stride < 2**40 and stride % 16 == 0 for stride in strides), strides


def test_the_command_takes_their_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    """Among them a sequence without queries and one without keys."""
    words = ("--lengths", "100,0,30", "--kv-lengths", "5,3,0", "--heads", "2", "--kv-heads", "1", "--hazards")
    assert command("emulate", "33", *words) == 0
    printed = capsys.readouterr().out
    assert "B=1 S=130 H=2 KV=8 HK=1 3 packed" in printed
    assert "numbers  right" in printed
    assert "no hazards" in printed


@pytest.mark.parametrize(("words", "message"), table_of("nvcc/packed", "wrong_lengths"))
def test_wrong_lengths_are_one_line(words: list[str], message: str) -> None:
    assert error_line(command, "emulate", *words).startswith(message)
