"""Races in shared memory on dictated events: each missing barrier is reported, and its present twin is not."""

from __future__ import annotations

import numpy as np
import pytest
from tests.streams import LANE, Stream, found, other, own, u64

from ptxemu.observe.hazards import Hazards


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("st", "ld", "RAW"),
        ("ld", "st", "WAR"),
        ("st", "st", "WAW"),
        ("atom", "ld", "RAW"),
        ("ld", "atom", "WAR"),
        ("st", "atom", "WAW"),
        ("atom", "st", "WAW"),
        ("st", "ldmatrix", "RAW"),
        ("ldmatrix", "st", "WAR"),
    ],
)
@pytest.mark.parametrize("width", [4, 16])
@pytest.mark.parametrize("barrier", [False, True])
def test_two_warps_need_a_barrier(first: str, second: str, kind: str, width: int, barrier: bool) -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    size = np.uint64(width)
    for line, (operation, address) in enumerate([(first, stream.tid), (second, (stream.tid + 32) % 64)], start=1):
        wide = 16 if operation == "ldmatrix" else width
        place = address * size // np.uint64(wide) * np.uint64(wide)
        stream.access(operation, place, line, wide)
        if barrier:
            stream.barrier()
    assert found(hazards) == (set() if barrier else {("shared", kind, 1, 2)})


@pytest.mark.parametrize(("first", "second"), [("ld", "ld"), ("atom", "atom"), ("ld", "ldmatrix")])
def test_reads_and_atomics_do_not_race_among_themselves(first: str, second: str) -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    for line, operation in enumerate((first, second), start=1):
        stream.access(operation, u64(0) + 0 * LANE, line, 16 if operation == "ldmatrix" else 4)
    assert not hazards.reports
    assert hazards.render() == ""


def test_a_thread_does_not_race_with_itself() -> None:
    hazards = Hazards()
    stream = Stream(hazards, threads=50)
    for line, operation in enumerate(["st", "ld", "st", "atom", "ld", "st"]):
        stream.access(operation, own(stream), line)
    assert not hazards.reports


def test_atomics_of_others_race_with_the_plain_read_of_one_of_them() -> None:
    # A count by atomics, read without a barrier: the reader's own atomic came last.
    for barrier in (False, True):
        hazards = Hazards()
        stream = Stream(hazards)
        stream.access("atom", u64(0), 1)
        if barrier:
            stream.barrier()
        stream.access("ld", u64(0), 2, mask=stream.tid == 63)
        assert found(hazards) == (set() if barrier else {("shared", "RAW", 1, 2)})


@pytest.mark.parametrize("sync", [False, True])
def test_lanes_of_a_warp_need_bar_warp_sync(sync: bool) -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access("st", own(stream), 1)
    if sync:
        stream.warp_sync()
    stream.access("ld", own(stream) ^ np.uint64(4), 2)
    assert found(hazards) == (set() if sync else {("shared", "RAW", 1, 2)})


@pytest.mark.parametrize("named", [(0, 16), (0, 8)])
def test_a_partial_warp_sync_orders_the_lanes_it_names(named: tuple[int, int]) -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access("st", own(stream), 1)
    lanes = (named[0] <= LANE) & (named[1] > LANE)
    stream.warp_sync(lanes=lanes)
    stream.access("ld", own(stream) ^ np.uint64(32), 2, mask=LANE < 16)  # from eight lanes away
    assert found(hazards) == (set() if named == (0, 16) else {("shared", "RAW", 1, 2)})


def test_a_warp_sync_passes_on_what_a_lane_learned_at_a_barrier() -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access("st", own(stream), 1, mask=stream.only(1))
    everyone = LANE >= 0
    stream.warp_sync(lanes=everyone)
    stream.barrier(lanes=stream.only(1) | (stream.tid == 0))  # barrier.sync without .aligned
    stream.warp_sync(lanes=everyone)
    stream.access("ld", own(stream) + np.uint64(128), 2, mask=stream.only(0))
    assert not hazards.reports


def test_masks_may_name_threads_that_do_not_exist() -> None:
    hazards = Hazards()
    stream = Stream(hazards, threads=50)
    stream.access("st", own(stream), 1)
    stream.warp_sync(lanes=LANE >= 0)
    stream.access("ld", own(stream) ^ np.uint64(4), 2, mask=LANE >= 0)
    stream.barrier(lanes=LANE >= 0)
    assert not hazards.reports
    assert hazards._groups[0].races.clocks.per_warp


def test_a_write_takes_the_place_of_the_reads_before_it() -> None:
    hazards = Hazards()
    stream = Stream(hazards, warps=3)
    stream.access("ld", u64(0), 1, mask=stream.only(1))
    stream.access("atom", u64(4), 1, mask=stream.only(1))
    stream.barrier(lanes=stream.only(0, 1))
    stream.access("st", own(stream), 2, mask=stream.tid < 2)
    stream.access("st", own(stream) % np.uint64(128), 3, mask=(stream.tid >= 64) & (stream.tid < 66))
    assert found(hazards) == {("shared", "WAW", 2, 3)}


@pytest.mark.parametrize("sync", [False, True])
def test_a_reader_that_comes_after_another_takes_its_place(sync: bool) -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access("ld", u64(0), 1, mask=stream.tid == 3)
    if sync:
        stream.warp_sync()
    stream.access("ld", u64(0), 2, mask=stream.tid == 4)
    stream.access("st", u64(0), 3, mask=stream.tid == 4)
    assert [(report.kind, report.first_thread) for report in hazards.reports] == ([] if sync else [("WAR", 3)])


def test_a_warp_sync_orders_no_other_warp() -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access("st", own(stream), 1)
    stream.warp_sync()
    stream.access("ld", other(stream), 2)
    assert found(hazards) == {("shared", "RAW", 1, 2)}


@pytest.mark.parametrize("synced", [set(), {1}, {2}, {1, 2}])
def test_ldmatrix_orders_no_memory(synced: set[int]) -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    own_row, others_row = stream.tid * np.uint64(16), (stream.tid ^ np.uint64(1)) * np.uint64(16)
    for line, (kind, address) in enumerate([("st", own_row), ("ldmatrix", others_row), ("st", own_row)], start=1):
        stream.access(kind, address, line, 16)
        if line in synced:
            stream.warp_sync()
    expected = {("shared", "RAW", 1, 2), ("shared", "WAR", 2, 3)}
    assert found(hazards) == {race for race in expected if race[2] not in synced}


def test_a_row_of_ldmatrix_is_read_by_the_lane_that_names_it() -> None:
    hazards = Hazards()
    stream = Stream(hazards, warps=2)
    rows = stream.tid[:, :, :16] * np.uint64(16)  # of .x2: lanes 0 to 15 name their own bytes
    stream.access("st", stream.tid * np.uint64(16), 1, 16)
    stream.access("ldmatrix", rows, 2, 16)
    assert not hazards.reports
    stream.access("ldmatrix", rows + np.uint64(16), 3, 16, mask=stream.only(1))
    (race,) = hazards.reports
    assert (race.first_thread, race.second_thread, race.address, race.count) == (33, 32, 33 * 16, 16)


@pytest.mark.parametrize("number", [1, 2])
def test_a_named_barrier_orders_its_two_warps(number: int) -> None:
    hazards = Hazards()
    stream = Stream(hazards, warps=3)
    stream.access("st", own(stream), 1, mask=stream.only(0))
    stream.barrier(lanes=stream.only(0, number), number=number)
    stream.access("ld", own(stream) % np.uint64(128), 2, mask=stream.only(1))
    assert found(hazards) == (set() if number == 1 else {("shared", "RAW", 1, 2)})


def test_order_is_passed_on_by_third_warps() -> None:
    hazards = Hazards()
    stream = Stream(hazards, warps=3)
    stream.access("st", u64(0), 1, mask=stream.tid == 0)
    stream.barrier(lanes=stream.only(0, 1), number=1)
    stream.barrier(lanes=stream.only(1, 2), number=2)
    stream.access("ld", u64(0), 2, mask=stream.only(2))
    assert not hazards.reports


@pytest.mark.parametrize("late", [False, True])
def test_bar_arrive_orders_what_came_before_it(late: bool) -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access("st", own(stream), 1, mask=stream.only(0))
    stream.arrive(3, stream.only(0))
    if late:
        stream.access("st", own(stream), 2, mask=stream.only(0))
    stream.barrier(lanes=stream.only(1), number=3)
    stream.access("ld", own(stream) % np.uint64(128), 4, mask=stream.only(1))
    assert found(hazards) == ({("shared", "RAW", 2, 4)} if late else set())


def test_bar_arrive_teaches_the_arriver_nothing() -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access("st", own(stream), 1, mask=stream.only(1))
    stream.arrive(3, stream.only(0))
    stream.barrier(lanes=stream.only(1), number=3)
    stream.access("ld", other(stream), 2, mask=stream.only(0))
    assert found(hazards) == {("shared", "RAW", 1, 2)}


@pytest.mark.parametrize("address", [[0, 0], [0, 4]])
def test_two_lanes_of_one_instruction_write_one_byte(address: list[int]) -> None:
    hazards = Hazards()
    stream = Stream(hazards, warps=1)
    lanes = np.where(LANE == 5, np.uint64(address[0]), np.uint64(address[1]))
    stream.access("st", lanes, 7, mask=(LANE == 5) | (LANE == 9))
    assert found(hazards) == ({("shared", "same-instruction write", 7, 7)} if address == [0, 0] else set())
    if hazards.reports:
        assert (hazards.reports[0].first_thread, hazards.reports[0].second_thread) == (5, 9)


def test_bytes_are_told_apart_within_a_word() -> None:
    hazards = Hazards()
    stream = Stream(hazards, warps=1)
    stream.access("st", stream.tid * np.uint64(16), 1, 16)
    stream.warp_sync()
    stream.access("st", stream.tid, 2, 1)
    assert not hazards.reports
    stream.access("ld", stream.tid // np.uint64(2) * np.uint64(2), 3, 2)
    assert found(hazards) == {("shared", "RAW", 2, 3)}
    stream.access("ld", stream.tid * np.uint64(2) + np.uint64(64), 4, 2)  # written before the sync
    assert found(hazards) == {("shared", "RAW", 2, 3)}
