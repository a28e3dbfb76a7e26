"""Which blocks count, on looks at the GPU small enough to judge by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flashladder.results.derive import SW_POWER_CAP, cells_of_host_time, changed_state, kept, settle, waited_for_host
from flashladder.results.schema import Block, Group
from tests.null.bench_fixture import group, sample

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
        ((0, THERMAL), DROPPED + "hardware thermal"),
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
        ([0, 1], [2], True),  # two of three
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
