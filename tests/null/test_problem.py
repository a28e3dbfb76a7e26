"""What a call computes: its operations and its bytes, and how files and titles name it."""

from __future__ import annotations

from typing import Any

import pytest

from flashladder.problem import Problem, kinds

SQUARE: dict[str, Any] = {"batch": 2, "seq_len": 5, "n_heads": 6, "d_head": 128}
GROUPED = SQUARE | {"n_kv_heads": 3}


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 8), (8, 3), (1, 7), (7, 1)])
def test_scores_count_one_by_one_and_those_on_the_diagonal_half_under_a_mask(
    queries: int, keys: int, mask: Any
) -> None:
    problem = Problem(**GROUPED | {"seq_len": queries, "kv_len": keys, "mask": mask})
    behind = [row + keys - queries - column for row in range(queries) for column in range(keys)]
    scores = sum(1.0 if mask == "none" or one > 0 else 0.5 if one == 0 else 0 for one in behind)
    assert problem.flops == 4 * 128 * 2 * 6 * scores
    assert problem.input_bytes == 2 * 128 * 2 * (6 * queries + 2 * 3 * keys)


@pytest.mark.parametrize(
    ("own", "text", "kind"),
    [
        ({}, "B=2 S=5 H=6", ""),
        ({"kv_len": 77}, "B=2 S=5 H=6 KV=77", "kv_len 77"),
        ({"n_kv_heads": 3}, "B=2 S=5 H=6 HK=3", "heads 6:3"),
        ({"mask": "causal"}, "B=2 S=5 H=6 causal", "causal"),
        (
            {"kv_len": 77, "n_kv_heads": 3, "mask": "causal"},
            "B=2 S=5 H=6 KV=77 HK=3 causal",
            "heads 6:3, kv_len 77, causal",
        ),
    ],
)
def test_files_and_titles_name_what_is_not_as_usual_and_only_that(own: dict[str, Any], text: str, kind: str) -> None:
    problem = Problem(**SQUARE | own)
    assert problem.model_dump() == problem.model_dump(mode="json") == SQUARE | own
    assert Problem.model_validate_json(problem.model_dump_json()) == problem
    assert (str(problem), problem.kind, problem.is_square) == (text, kind, not own)
    assert kinds([problem, Problem(**SQUARE), problem]) == kind


@pytest.mark.parametrize("keys", [None, [2, 9]])
def test_files_name_the_lengths_of_packed_sequences_and_those_of_keys_if_they_differ(keys: list[int] | None) -> None:
    problem = Problem.packing([3, 5], keys, n_heads=6, d_head=128)
    own = {"kv_lengths": keys, "kv_len": 11} if keys else {}
    assert problem.model_dump(mode="json") == SQUARE | {"batch": 1, "seq_len": 8, "lengths": [3, 5]} | own
    assert Problem.model_validate_json(problem.model_dump_json()) == problem
    assert (problem.is_packed, problem.is_square) == (True, False)


def test_what_is_equal_for_queries_and_keys_stays_equal_and_what_is_not_stays() -> None:
    assert Problem(**SQUARE).varied(seq_len=9, n_heads=4).kv_shape == (2, 9, 4, 128)
    assert Problem(**GROUPED, kv_len=77).varied(seq_len=9).kv_shape == (2, 77, 3, 128)
