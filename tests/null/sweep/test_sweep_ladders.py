"""Who is left out of a rung that failed: the one that is named, or found by halving; and failures that name nobody."""

from __future__ import annotations

from collections.abc import Callable

from flashladder.results.schema import Failure, FailureKind, PlannedCell
from flashladder.sweep.cells import Settings, Wanted
from flashladder.sweep.measure.rung import MARK, last_marked, names_alone, told
from flashladder.sweep.records import CellRecord
from flashladder.sweep.tune.command import PLANS
from flashladder.sweep.tune.ladders import Ladder, key_of

SETTINGS = Settings("h200", "tune", 2, 2, 20)
FORMS = [f"(FP16, 128, {rows}, 64, 4): async+eager+swizzled+load_{load}_tiles{opt}"
         for rows in (64, 128) for load in ("2_2_2", "2_2_0") for opt in ("", "+buffer", "+opt_softmax")]  # fmt: skip
CELLS = [Wanted("16", form, "fp16", (1, 128, 16, 128)).planned("c", SETTINGS) for form in FORMS]


def ladder() -> Ladder:
    return Ladder(list(CELLS), SETTINGS, PLANS)


def failed(part: tuple[PlannedCell, ...], of: Ladder, kind: FailureKind, message: str, tail: str = "") -> CellRecord:
    cell = of.cell(part)
    failure = Failure(address=cell.address, kind=kind, message=message, tail=tail)
    return CellRecord(cell=cell, failure=failure, lane="gpu0", attempts=1, seconds=1.0)


def until_alone(of: Ladder, fails: Callable[[tuple[PlannedCell, ...]], bool]) -> int:
    """Fails every part that holds the guilty one; returns how many failed."""
    count = 0
    while bad := [part for part in of.parts if fails(part)]:
        of.follow(failed(bad[0], of, "crash", "its worker ended with signal SIGSEGV"))
        count += 1
    return count


def test_without_a_name_the_rung_is_halved_until_the_guilty_one_is_alone() -> None:
    of, guilty = ladder(), CELLS[7]
    assert until_alone(of, lambda part: guilty in part) <= 5
    assert [failure.address for failure in of.failures] == [guilty.address]
    left = [cell for part in of.parts for cell in part]
    assert sorted(key_of(cell) for cell in left) == sorted(key_of(cell) for cell in CELLS if cell != guilty)


def test_who_was_being_checked_when_the_process_died_is_left_out_at_once() -> None:
    of, guilty = ladder(), CELLS[4]
    tail = f"{MARK}\n{MARK}{key_of(CELLS[3])}\n{MARK}{key_of(guilty)}\nsomething else\n"
    of.follow(failed(of.parts[0], of, "timeout", "no answer within 60 s: its worker was ended", tail))
    assert [failure.address for failure in of.failures] == [guilty.address]
    assert [len(part) for part in of.parts] == [len(CELLS) - 1]


def test_a_failure_that_says_nothing_about_a_candidate_holds_the_ladder() -> None:
    kinds: tuple[FailureKind, ...] = ("refused", "gpu-lost")
    for kind in kinds:
        of = ladder()
        of.follow(failed(of.parts[0], of, kind, "2 other processes use this GPU"))
        assert of.held == f"{kind}: 2 other processes use this GPU"
        assert not of.failures
        assert len(of.parts) == 1


def test_when_all_fail_the_ladder_ends() -> None:
    of = ladder()
    until_alone(of, lambda _: True)
    assert of.done
    assert len(of.failures) == len(CELLS)


def test_a_key_that_another_begins_with_is_not_taken_for_it() -> None:
    keys = [key_of(cell) for cell in CELLS]
    for key in keys:
        assert names_alone(f"{key}: CUDA error", keys) == key
        assert told(key, RuntimeError("CUDA error")) == f"{key}: CUDA error"
        assert last_marked(f"{MARK}{key}\n", keys) == key
    assert last_marked(f"{MARK}{keys[0]}\n{MARK}\n", keys) is None
    assert names_alone("CUDA error", keys) is None


def test_addresses_tell_rungs_parts_seeds_and_finals_apart() -> None:
    of, other = ladder(), Ladder(list(CELLS), SETTINGS, PLANS, first_seed=1)
    final = Ladder(list(CELLS), SETTINGS, PLANS[:1])
    parts = [tuple(CELLS), tuple(CELLS[1:])]
    found = {one.cell(part).address for one in (of, other, final) for part in parts}
    of.rung = 1
    assert len(found | {of.cell(part).address for part in parts}) == 8
