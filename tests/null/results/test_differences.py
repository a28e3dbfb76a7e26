"""What does not follow from the samples is named by cell and field, with what is written and what is derived."""

from __future__ import annotations

from typing import Any

import pytest

from flashladder.results.derive import derive, differences, unequal
from flashladder.results.schema import BenchResult
from tests.null.bench_fixture import FAST, SLOW, group, result

WHERE = "S=4096 B=16 H=16"
TOLD = "does not follow from the raw samples"


def made() -> BenchResult:
    return derive(result(group(0), group(1)))


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        (1.0, 1.0 + 1e-12, []),
        (1e-12, 0.0, []),
        (1e12, 1e12 * (1 + 1e-10), []),
        (1.0, 1.001, [("", 1.0, 1.001)]),
        (1, 2, [("", 1, 2)]),
        (1.0, None, [("", 1.0, None)]),
        (None, 1.0, [("", None, 1.0)]),
        ({"a": 1}, [1], [("", {"a": 1}, [1])]),
        ([1], {"a": 1}, [("", [1], {"a": 1})]),
        ([1, 2], [1], [("", [1, 2], [1])]),
        ([1], None, [("", [1], None)]),
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
