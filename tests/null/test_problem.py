"""What a call computes: its operations and its bytes, and how files and titles name it."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from flashladder.problem import Problem, kinds
from tests.data_files import table_of

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


@pytest.mark.parametrize(("own", "text", "kind"), table_of("null/problem", "named"))
def test_files_and_titles_name_what_is_not_as_usual_and_only_that(own: dict[str, Any], text: str, kind: str) -> None:
    problem = Problem(**SQUARE | own)
    assert problem.model_dump() == SQUARE | own
    assert Problem.model_validate_json(problem.model_dump_json()) == problem
    assert (str(problem), problem.kind, problem.is_square) == (text, kind, not own)
    assert kinds([problem, Problem(**SQUARE), problem]) == kind


PACKED = Problem.packing((3, 0, 8, 1), (8, 5, 3, 0), n_heads=6, n_kv_heads=3, d_head=128)


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_packed_sequences_cost_what_each_costs_alone(mask: Any) -> None:
    packed = PACKED.varied(mask=mask)
    alone = [Problem(**GROUPED | {"batch": 1, "seq_len": q, "kv_len": k, "mask": mask}) for q, k in ((3, 8), (8, 3))]
    assert packed.flops == sum(one.flops for one in alone), "the others have no scores"
    assert (packed.q_shape, packed.kv_shape) == ((1, 12, 6, 128), (1, 16, 3, 128))
    assert packed.input_bytes == 2 * 128 * (6 * 12 + 2 * 3 * 16)
    assert packed.bounds == ((0, 3, 3, 11, 12), (0, 8, 13, 16, 16))
    assert packed.sequences[2:] == ((slice(3, 11), slice(13, 16)), (slice(11, 12), slice(16, 16)))
    assert (packed.is_packed, packed.is_square) == (True, False)


def test_files_and_titles_of_packed_sequences() -> None:
    equal = Problem.packing((3, 9), n_heads=6, d_head=128)
    assert equal.model_dump() == {"batch": 1, "seq_len": 12, "n_heads": 6, "d_head": 128, "lengths": (3, 9)}
    assert (str(equal), equal.kind) == ("B=1 S=12 H=6 2 packed", "2 packed sequences")
    assert (str(PACKED), PACKED.kind) == (
        "B=1 S=12 H=6 KV=16 HK=3 4 packed",
        "4 packed sequences, heads 6:3, kv_len 16",
    )
    for one in (equal, PACKED, PACKED.varied(kv_len=12, kv_lengths=(0, 0, 12, 0))):
        assert Problem.model_validate_json(one.model_dump_json()) == one


@pytest.mark.parametrize(
    "wrong",
    [{"batch": 2}, {"seq_len": 6}, {"kv_len": 6}, {"kv_lengths": (2, 2, 1)}, {"lengths": ()}, {"lengths": (5, -1)}],
)
def test_lengths_that_are_not_those_of_the_tensors_are_refused(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"batch": 1, "lengths": (2, 3), "kv_lengths": (1, 4)}
    assert Problem(**SQUARE | good).kv_len == 5
    with pytest.raises(pydantic.ValidationError, match="lengths"):
        Problem(**SQUARE | good | wrong)


def test_what_is_equal_for_queries_and_keys_stays_equal_and_what_is_not_stays() -> None:
    assert Problem(**SQUARE).varied(seq_len=9, n_heads=4).kv_shape == (2, 9, 4, 128)
    assert Problem(**GROUPED, kv_len=77).varied(seq_len=9).kv_shape == (2, 77, 3, 128)
