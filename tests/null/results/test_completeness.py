"""Raw samples that are not all there are named: processes, blocks, looks, pairs, the floor."""

from __future__ import annotations

from typing import Any

import pytest

from flashladder.problem import Problem
from flashladder.results.derive import incomplete
from flashladder.results.schema import A_A, BenchResult, Group, Pair, PlannedCell, Series, Sweep
from tests.null.bench_fixture import FAST, GOOD, SHAPE, SLOW, group, result

WHERE = "process 0 fp16 S=4096"
FAST_KEY, SLOW_KEY = f"16 {FAST}", f"01 {SLOW}"
CELL = PlannedCell(subject="16", config=FAST, dtype="fp16", shape=SHAPE, code="", address="0" * 16)
SWEEP = Sweep(grid="smoke", grid_sha256="0" * 64, planned=(CELL,))


def edited(**changed: Any) -> Group:
    return group().model_copy(update=changed)


def with_blocks(n: int, disturbed: int = 0, **changed: object) -> BenchResult:
    """A group of `n` blocks, three pairs each; the last `disturbed` blocks do not count. Its settings ask for four."""
    first, pair = group().blocks[0], Pair(0, 0, 2.0, 1.0)
    late = [int(index >= n - disturbed) for index in range(n)]
    blocks = tuple(first.model_copy(update={"index": index, "late": one}) for index, one in enumerate(late))
    pairs = tuple(pair._replace(block=index) for index in range(n) for _ in range(3))
    series = tuple(one.model_copy(update={"pairs": pairs}) for one in group().series)
    return result(edited(blocks=blocks, series=series)).model_copy(update=changed)


def lines(made: BenchResult) -> list[str]:
    return [line.removeprefix(f"{WHERE}: ") for line in incomplete(made)]


def few(n: int, counted: int, more: str = ", and up to 8 until 4 count") -> list[str]:
    return [f"blocks: expected at least 4{more}, found {n}, of which {counted} count"]


@pytest.mark.parametrize(
    ("n", "disturbed", "found"),
    [
        (4, 0, []),
        (3, 0, few(3, 3)),
        (4, 1, few(4, 3)),  # a dropped block is replaced
        (5, 1, []),
        (8, 5, []),  # that many are tried, and no more
        (9, 5, few(9, 4)),
        (9, 0, few(9, 9)),
    ],
)
def test_dropped_blocks_are_replaced_by_four_at_most(n: int, disturbed: int, found: list[str]) -> None:
    assert lines(with_blocks(n, disturbed)) == found


def test_a_sweeps_cells_have_twelve_blocks_more_and_a_tuning_run_any_number() -> None:
    assert lines(with_blocks(16, 13, sweep=SWEEP)) == []
    assert lines(with_blocks(15, 13, sweep=SWEEP)) == few(15, 2, ", and up to 16 until 4 count")
    assert lines(with_blocks(8, 5, sweep=SWEEP, protocol_version="1")) == []
    assert lines(with_blocks(9, 8, sweep=SWEEP, protocol_version="1")) == few(9, 1)
    assert lines(with_blocks(30, 30, purpose="tune")) == []
    assert lines(with_blocks(3, 0, purpose="tune")) == few(3, 3, "")


def test_blocks_are_numbered_from_nothing() -> None:
    own = group().blocks
    found = incomplete(result(edited(blocks=(own[0], own[2], own[1], own[3]))))
    assert found[0] == f"{WHERE}: blocks: expected 0 to 3, found 0, 2, 1, 3"


@pytest.mark.parametrize(
    ("order", "odd"), [((A_A, FAST_KEY), SLOW_KEY), ((A_A, FAST_KEY, SLOW_KEY, SLOW_KEY), "one of them twice")]
)
def test_a_blocks_order_names_the_kernels_that_have_pairs(order: tuple[str, ...], odd: str) -> None:
    own = group().blocks
    found = incomplete(result(edited(blocks=(own[0].model_copy(update={"order": order}), *own[1:]))))
    told = "block 0: its order and the series with pairs are not the same kernels"
    assert found == [f"{WHERE}: {told}: {odd}"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda pairs: pairs.pop(), "2 in block 3"),
        (lambda pairs: pairs.append(pairs[-1]._replace(block=7)), "1 in block 7"),
        (lambda pairs: pairs.reverse(), "them in another order"),
    ],
)
def test_every_block_has_its_pairs_in_turn(change: Any, found: str) -> None:
    a_a, fast, slow = group().series
    pairs = list(fast.pairs)
    change(pairs)
    made = result(edited(series=(a_a, fast.model_copy(update={"pairs": tuple(pairs)}), slow)))
    assert lines(made) == [f"{FAST_KEY}: expected 3 pairs in each of 4 blocks, found {found}"]


def test_only_a_kernel_that_was_wrong_before_has_no_pairs() -> None:
    a_a, fast, slow = group().series
    own = tuple(block.model_copy(update={"order": (A_A, FAST_KEY)}) for block in group().blocks)
    wrong = GOOD.model_copy(update={"max_error": 1.0})
    none = f"{SLOW_KEY}: expected 3 pairs in each of 4 blocks, found 0 in block 0"
    for before, found in ((wrong, []), (GOOD, [none]), (None, [none])):
        series = (a_a, fast, slow.model_copy(update={"pairs": (), "before": before}))
        assert lines(result(edited(blocks=own, series=series))) == found
    timed_though_wrong = slow.model_copy(update={"pairs": slow.pairs[:-1], "before": wrong})
    found = lines(result(edited(series=(a_a, fast, timed_though_wrong))))
    assert found == [none.replace("0 in block 0", "2 in block 3")]


def test_every_shape_has_its_floor_but_for_a_sweeps_cells() -> None:
    _, fast, slow = group().series
    own = tuple(block.model_copy(update={"order": (FAST_KEY, SLOW_KEY)}) for block in group().blocks)
    bare = edited(blocks=own, series=(fast, slow))
    short = bare.model_copy(update={"shape": Problem.model_validate(bare.shape.model_dump() | {"seq_len": 512})})
    told = f"no pairs of {A_A}, the floor"
    assert incomplete(result(bare)) == [f"fp16 S=4096: {told}"]
    assert incomplete(result(group(), short)) == [f"fp16 S=512: {told}"]
    empty = edited(blocks=own, series=(Series(kernel=A_A, pairs=()), fast, slow))
    assert f"fp16 S=4096: {told}" in incomplete(result(empty))
    assert incomplete(result(bare).model_copy(update={"sweep": SWEEP})) == []
