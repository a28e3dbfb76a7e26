"""Which blocks count, and what does not follow from the samples: named by cell and field, both values beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flashladder.results.derive import (
    SW_POWER_CAP,
    cells_of_host_time,
    changed_state,
    derive,
    differences,
    kept,
    settle,
    unequal,
    waited_for_host,
)
from flashladder.results.schema import BenchResult, Block, Group
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


def reasons(blocks: list[Block], visit: int, min_pairs: int) -> list[str | None]:
    return [one.dropped for one in settle(blocks, visit=visit, min_pairs=min_pairs)]


def test_only_where_too_few_pairs_are_left_do_power_and_late_blocks_count_again() -> None:
    blocks = [block(0), block(1, 0, SW_POWER_CAP), block(2, late=2), block(3, 0, THERMAL)]
    strict = [
        None,
        DROPPED + "power cap",
        "the GPU waited for the host before 2 launches",
        DROPPED + "hardware thermal",
    ]
    assert reasons(blocks, visit=3, min_pairs=3) == strict  # one block of three is just enough
    assert reasons(blocks, visit=3, min_pairs=4) == [None, None, None, DROPPED + "hardware thermal"]
    assert kept(settle(blocks, visit=3, min_pairs=3)) == 1
    assert kept(settle(blocks, visit=3, min_pairs=4)) == 3
    again = settle(settle(blocks, visit=3, min_pairs=4), visit=3, min_pairs=3)
    assert [one.dropped for one in again] == strict  # from the samples alone, whatever was written


def late(group: Group, late_blocks: Sequence[int], dropped: Sequence[int] = ()) -> Group:
    """The group with launches that came late in these many blocks."""
    blocks = tuple(
        block.model_copy(
            update={"late": int(block.index in late_blocks), "dropped": "power" if block.index in dropped else None}
        )
        for block in group.blocks
    )
    return group.model_copy(update={"blocks": blocks})


@pytest.mark.parametrize(
    ("late_blocks", "dropped", "expected"),
    [
        ([], [], False),
        ([0, 1], [], False),  # half of four
        ([0, 1, 2], [], True),
        ([0, 1, 2], [0, 1], False),  # one of the two that count
        ([0, 1, 2, 3], [0, 1, 2, 3], False),  # where no block counts nothing is known
    ],
)
def test_a_cell_waited_for_the_host_in_most_blocks_that_count(
    late_blocks: Sequence[int], dropped: Sequence[int], expected: bool
) -> None:
    made = late(group(), late_blocks, dropped)
    assert len(made.blocks) == 4
    assert waited_for_host([(made, made.series[0])]) is expected
    own = {(one.kernel, made.dtype, made.shape) for one in made.series}
    assert cells_of_host_time([made]) == (own if expected else set())


WHERE = "S=4096 B=16 H=16"
TOLD = "does not follow from the raw samples"


def made() -> BenchResult:
    return derive(result(group(0), group(1)))


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


def test_every_difference_is_one_line() -> None:
    derived = made()
    first, second = derived.summaries
    one = first.model_copy(update={"n_pairs": 3})
    mean = derived.means[0].model_copy(update={"seq_lens": (512,)})
    late = derived.groups[0].blocks[1].model_copy(update={"dropped": "because"})
    blocks = (derived.groups[0].blocks[0], late, *derived.groups[0].blocks[2:])
    groups = (derived.groups[0].model_copy(update={"blocks": blocks}), derived.groups[1])
    written = derived.model_copy(
        update={
            "summaries": (one, second),
            "means": (mean, *derived.means[1:]),
            "groups": groups,
            "floors_pct": {"fp16": 9.0},
        }
    )
    floor = derived.floors_pct["fp16"]
    assert differences(written, derived) == [
        f"groups {TOLD}: process 0 fp16 {WHERE} blocks.1.dropped: written because, derived None",
        f"summaries {TOLD}: 01 {SLOW} fp16 {WHERE} n_pairs: written 3, derived 24",
        f"means {TOLD}: 01 {SLOW} fp16 all S seq_lens.0: written 512, derived 4096",
        f"floors_pct {TOLD}: fp16: written 9.0, derived {floor}",
    ]


def test_cells_that_are_gone_added_or_repeated_are_named_and_the_rest_is_still_compared() -> None:
    derived = made()
    first, second = derived.summaries
    told, slow, fast = f"summaries {TOLD}", f"01 {SLOW} fp16 {WHERE}", f"16 {FAST} fp16 {WHERE}"
    gone = derived.model_copy(update={"summaries": (first,), "floors_pct": {"fp16": 9.0}})
    assert differences(gone, derived) == [
        f"{told}: {fast}: not written",
        f"floors_pct {TOLD}: fp16: written 9.0, derived {derived.floors_pct['fp16']}",
    ]
    other = second.model_copy(update={"dtype": "bf16"})
    assert differences(derived.model_copy(update={"summaries": (first, second, other)}), derived) == [
        f"{told}: 16 {FAST} bf16 {WHERE}: written, not derived"
    ]
    for order in ((second, first), (first, second, first)):
        found = differences(derived.model_copy(update={"summaries": order}), derived)
        assert found == [f"{told}: cells repeated or in another order"]
    assert slow != fast
