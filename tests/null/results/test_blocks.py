"""Which blocks count, and what does not follow from the samples: named by cell and field, both values beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flashladder.results import derive as deriving
from flashladder.results.derive import SW_POWER_CAP, cells_of_host_time, changed_state, derive, kept, settle, unequal
from flashladder.results.schema import Block, Group
from tests.data_files import table_of
from tests.null.bench_fixture import FAST, SLOW, group, result, sample

THERMAL = 0x40
DROPPED = "throttle reasons changed: "


def block(index: int = 0, *bits: int, late: int | None = None) -> Block:
    looks = tuple(sample(one) for one in bits or (0, 0))
    return Block(index=index, kernel_first=False, order=("a",), samples=looks, late=late)


@pytest.mark.parametrize(
    ("bits", "found"),
    [
        ((0, 0), None),
        ((THERMAL, THERMAL), None),  # all the time, so nothing changed
        ((0, THERMAL, 0, 0), DROPPED + "hardware thermal"),  # it came and went
        ((0, 0x4, 0x44), DROPPED + "power cap, hardware thermal"),
        ((0, 0x103), None),  # idling and chosen clocks say nothing
    ],
)
def test_a_block_is_dropped_for_reasons_that_came_or_went(bits: tuple[int, ...], found: str | None) -> None:
    assert changed_state([sample(one) for one in bits]) == found


def test_a_look_without_reasons_is_passed_over() -> None:
    looks = [sample(0), sample(0).model_copy(update={"throttle_bits": None}), sample(0x8)]
    assert changed_state(looks) == DROPPED + "hardware slowdown"
    assert changed_state(looks, ignore=0x8) is None


def test_only_where_too_few_pairs_are_left_do_power_and_late_blocks_count_again() -> None:
    blocks = [block(0), block(1, 0, SW_POWER_CAP), block(2, late=2), block(3, 0, THERMAL)]
    late = "the GPU waited for the host before 2 launches"
    strict = [None, f"{DROPPED}power cap", late, f"{DROPPED}hardware thermal"]
    enough, lenient = (settle(blocks, visit=3, min_pairs=least) for least in (3, 4))  # one block of three, or more
    assert [one.dropped for one in enough] == strict
    assert [one.dropped for one in lenient] == [None, None, None, f"{DROPPED}hardware thermal"]
    assert (kept(enough), kept(lenient)) == (1, 3)
    again = settle(lenient, visit=3, min_pairs=3)
    assert [one.dropped for one in again] == strict, "from the samples alone, whatever was written"


@pytest.mark.parametrize(("late", "dropped", "expected"), table_of("null/results/blocks", "late"))
def test_a_cell_waited_for_the_host_in_most_blocks_that_count(
    late: Sequence[int], dropped: Sequence[int], expected: bool
) -> None:
    blocks = tuple(
        one.model_copy(update={"late": int(one.index in late), "dropped": "power" if one.index in dropped else None})
        for one in group().blocks
    )
    made = group().model_copy(update={"blocks": blocks})
    assert deriving.waited_for_host([(made, made.series[0])]) is expected
    cells = {(one.kernel, made.dtype, made.shape) for one in made.series}
    assert cells_of_host_time([made]) == (cells if expected else set())


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        (1.0, 1.0 + 1e-12, []),
        (1.0, 1.001, [("", 1.0, 1.001)]),
        (1.0, None, [("", 1.0, None)]),
        ({"a": 1}, [1], [("", {"a": 1}, [1])]),
        ([1, 2], [1], [("", [1, 2], [1])]),
        ({"a": [1, {"b": 2}], "c": 3}, {"a": [1, {"b": 5}], "c": 4}, [(" a.1.b", 2, 5), (" c", 3, 4)]),
    ],
)
def test_values_that_differ_by_more_than_rounding_are_found_where_they_stand(a: Any, b: Any, found: object) -> None:
    assert list(unequal(a, b)) == found


DERIVED = derive(result(group(0), group(1)))
SLOW_ONE, FAST_ONE = DERIVED.summaries
WHERE, FLOOR = "fp16 S=4096 B=16 H=16", f"floors_pct: fp16: written 9.0, derived {DERIVED.floors_pct['fp16']}"
REPEATED = "summaries: cells repeated or in another order"


def without_first_block() -> tuple[Group, ...]:
    first, *others = DERIVED.groups
    dropped = first.blocks[1].model_copy(update={"dropped": "because"})
    return first.model_copy(update={"blocks": (first.blocks[0], dropped, *first.blocks[2:])}), *others


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (
            {"groups": without_first_block()},
            [f"groups: process 0 {WHERE} blocks.1.dropped: written because, derived None"],
        ),
        (
            {"summaries": (SLOW_ONE.model_copy(update={"n_pairs": 3}), FAST_ONE), "floors_pct": {"fp16": 9.0}},
            [f"summaries: 01 {SLOW} {WHERE} n_pairs: written 3, derived 24", FLOOR],
        ),
        (
            {"means": (DERIVED.means[0].model_copy(update={"seq_lens": (512,)}), *DERIVED.means[1:])},
            [f"means: 01 {SLOW} fp16 all S seq_lens.0: written 512, derived 4096"],
        ),
        (
            {"summaries": (SLOW_ONE,), "floors_pct": {"fp16": 9.0}},
            [f"summaries: 16 {FAST} {WHERE}: not written", FLOOR],
        ),
        (
            {"summaries": (SLOW_ONE, FAST_ONE, FAST_ONE.model_copy(update={"dtype": "bf16"}))},
            [f"summaries: 16 {FAST} {WHERE.replace('fp16', 'bf16')}: written, not derived"],
        ),
        ({"summaries": (FAST_ONE, SLOW_ONE)}, [REPEATED]),
        ({"summaries": (SLOW_ONE, FAST_ONE, SLOW_ONE)}, [REPEATED]),
    ],
)
def test_every_difference_is_one_line(change: dict[str, Any], lines: list[str]) -> None:
    found = deriving.differences(DERIVED.model_copy(update=change), DERIVED)
    assert [line.replace(" does not follow from the raw samples", "", 1) for line in found] == lines
