"""Races of ``cp.async``: a missing wait, a missing barrier after it, an issue that comes too early."""

from __future__ import annotations

import numpy as np
import pytest
from tests.streams import Key, Stream, found

from ptxemu.observe.hazards import Hazards


@pytest.mark.parametrize(
    ("wait", "barrier", "expected"),
    [
        (True, True, set()),
        (True, False, {("shared", "RAW", 1, 3)}),
        (False, True, {("shared", "in-flight read", 1, 3)}),
    ],
)
@pytest.mark.parametrize("operation", ["ld", "ldmatrix"])
def test_a_copy_needs_a_wait_and_a_barrier(wait: bool, barrier: bool, expected: set[Key], operation: str) -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    copy = stream.copy(stream.tid * np.uint64(16), 1)
    if wait:
        stream.wait(copy, 2)
    if barrier:
        stream.barrier()
    stream.access(operation, (stream.tid + 32) % 64 * np.uint64(16), 3, 16)
    assert found(hazards) == expected


def test_the_issuing_thread_has_to_wait_too() -> None:
    for wait in (False, True):
        hazards = Hazards()
        stream = Stream(hazards)
        copy = stream.copy(stream.tid * np.uint64(16), 1)
        if wait:
            stream.wait(copy, 2)
        stream.access("ld", stream.tid * np.uint64(16), 3, 16)
        stream.access("st", stream.tid * np.uint64(16), 4, 4)
        expected = {("shared", "in-flight read", 1, 3), ("shared", "in-flight write", 1, 4)}
        assert found(hazards) == (set() if wait else expected)


def test_only_the_lanes_that_waited_have_landed() -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    copy = stream.copy(stream.tid * np.uint64(16), 1)
    stream.wait(copy, 2, stream.only(0))
    stream.barrier()
    stream.access("ld", stream.tid * np.uint64(16), 3, 16, mask=stream.only(0))
    assert not hazards.reports
    stream.access("ld", stream.tid * np.uint64(16), 4, 16, mask=stream.only(1))
    assert found(hazards) == {("shared", "in-flight read", 1, 4)}
    assert hazards.reports[0].second_thread == 32


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize(("before", "kind"), [("ld", "WAR"), ("ldmatrix", "WAR"), ("st", "WAW"), ("atom", "WAW")])
def test_issuing_a_copy_over_what_others_use(before: str, kind: str, barrier: bool) -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access(before, stream.tid * np.uint64(16), 1, 4 if before == "atom" else 16)
    if barrier:
        stream.barrier()
    stream.copy((stream.tid + 32) % 64 * np.uint64(16), 2)
    assert found(hazards) == (set() if barrier else {("shared", kind, 1, 2)})


def test_two_copies_in_flight_to_the_same_bytes() -> None:
    for wait in (False, True):
        hazards = Hazards()
        stream = Stream(hazards)
        copy = stream.copy(stream.tid * np.uint64(16), 1)
        if wait:
            stream.wait(copy, 2)
        stream.copy(stream.tid * np.uint64(16), 3)
        assert found(hazards) == (set() if wait else {("shared", "in-flight write", 1, 3)})


def test_a_wait_ends_its_own_copy_only() -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    early = stream.copy(stream.tid * np.uint64(16), 1)
    stream.copy(stream.tid * np.uint64(16), 2)
    stream.wait(early, 3)
    stream.access("ld", stream.tid * np.uint64(16), 4, 16)
    assert found(hazards) == {("shared", "in-flight write", 1, 2), ("shared", "in-flight read", 2, 4)}


def test_a_copy_that_nobody_waits_for_or_touches_is_no_hazard() -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    stream.copy(stream.tid * np.uint64(16), 1)
    hazards.finish(stream.machine)
    assert not hazards.reports


def test_a_pipeline_of_two_stages() -> None:
    # The ladder's main loop: copy the next tile while the warps read this one; each barrier and wait is needed.
    def run(*, wait: bool = True, landed: bool = True, done: bool = True) -> set[str]:
        hazards = Hazards()
        stream = Stream(hazards, warps=4)
        tile = stream.tid * np.uint64(16)
        copy = stream.copy(tile, 10)
        for turn in range(4):
            now, following = np.uint64(2048 * (turn % 2)), np.uint64(2048 * ((turn + 1) % 2))
            if wait:
                stream.wait(copy, 11)
            if landed:
                stream.barrier()
            copy = stream.copy(tile + following, 12)
            stream.access("ldmatrix", tile[:, ::-1] + now, 13, 16)
            stream.warp_sync()
            if done:
                stream.barrier()
        return {report.kind for report in hazards.reports}

    assert run() == set()
    assert run(done=False) == set()  # the barrier after the wait orders both ways
    assert "in-flight read" in run(wait=False)
    assert "RAW" in run(landed=False)
    assert {"RAW", "WAR"} <= run(landed=False, done=False)
