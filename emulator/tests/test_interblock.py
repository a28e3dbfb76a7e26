"""Global-memory races between blocks on dictated events, each with the twin that has none."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import run
from tests.streams import Stream, found, u64

from ptxemu.observe.hazards import Hazards


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("st", "ld", "RAW"),
        ("ld", "st", "WAR"),
        ("st", "st", "WAW"),
        ("st", "cp.async", "RAW"),
        ("cp.async", "st", "WAR"),
        ("atom", "ld", "RAW"),
        ("atom", "st", "WAW"),
        ("ld", "atom", "WAR"),
        ("st", "atom", "WAW"),
        ("ld", "ld", None),
        ("atom", "atom", None),
    ],
)
@pytest.mark.parametrize("distance", [0, 1])
def test_blocks_are_concurrent(first: str, second: str, kind: str | None, distance: int) -> None:
    hazards = Hazards()
    stream = Stream(hazards, blocks=3)
    tile = u64(1 << 40) + stream.tid * np.uint64(16)
    stream.access(first, tile + stream.ctaid * np.uint64(1024), 1, 16, space="global")
    stream.barrier()
    stream.access(second, tile + (stream.ctaid + np.uint64(distance)) % 3 * np.uint64(1024), 2, 16, space="global")
    expected = {("global", kind, 1, 2)} if kind and distance else set()
    assert found(hazards) == expected
    if expected:
        assert hazards.reports[0].first_block != hazards.reports[0].block


def test_blocks_of_other_slices_are_concurrent_too_but_not_other_launches() -> None:
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access("st", stream.tid * np.uint64(4), 1, space="global")
    hazards.finish(stream.machine)
    Stream(hazards, first=1).access("ld", stream.tid * np.uint64(4), 2, space="global")
    assert not hazards.reports  # another memory: another launch
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access("st", stream.tid * np.uint64(4), 1, space="global")
    hazards.finish(stream.machine)
    Stream(hazards, first=1, symbols=stream.symbols).access("ld", stream.tid * np.uint64(4), 2, space="global")
    assert [(report.first_block, report.block) for report in hazards.reports] == [((0, 0, 0), (1, 0, 0))]


def test_all_blocks_write_one_global_word() -> None:
    hazards = Hazards()
    stream = Stream(hazards, blocks=3)
    stream.access("st", u64(1 << 40), 5, mask=stream.tid == 0, space="global")
    assert found(hazards) == {("global", "WAW", 5, 5)}
    quiet = Hazards(global_memory=False)
    Stream(quiet, blocks=3).access("st", u64(1 << 40), 5, space="global")
    assert not quiet.reports


def test_readers_of_several_blocks_are_remembered() -> None:
    # Block 0 read last; the writer is block 0: block 1's read still races.
    hazards = Hazards()
    stream = Stream(hazards, blocks=2)
    for block in (0, 1, 0):
        stream.access("ld", u64(1 << 40), 1, mask=stream.ctaid == block, space="global")
    stream.access("st", u64(1 << 40), 2, mask=(stream.ctaid == 0) & (stream.tid == 0), space="global")
    assert [(report.kind, report.first_block) for report in hazards.reports] == [("WAR", (1, 0, 0))]


def test_global_pages_and_widths() -> None:
    hazards = Hazards()
    stream = Stream(hazards, blocks=2)
    far = u64(1 << 50) + stream.ctaid * np.uint64(64)
    stream.access("st", far + stream.tid, 1, 1, space="global")  # bytes: blocks touch neighbouring ones
    pages = u64(1 << 20) + stream.tid[..., ::-1] * np.uint64(1 << 16)
    stream.access("st", pages + stream.ctaid * np.uint64(2), 2, 2, space="global")
    stream.access("ld", far + stream.tid, 3, 1, space="global")
    assert not hazards.reports
    stream.access("ld", u64(1 << 50) + np.uint64(60), 4, 4, space="global")
    assert [(report.kind, report.address, report.block) for report in hazards.reports] == [
        ("RAW", (1 << 50) + 60, (1, 0, 0))
    ]


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("atom.global.add.u32 %r2, [%rd3], 1;", "ld.volatile.global.u32 %r2, [%rd3];", None),
        ("ld.relaxed.gpu.global.u32 %r2, [%rd3];", "atom.global.add.u32 %r2, [%rd3], 1;", None),
        ("st.release.gpu.global.u32 [%rd3], 1;", "ld.acquire.gpu.global.u32 %r2, [%rd3];", None),
        ("st.volatile.global.u32 [%rd3], 1;", "st.volatile.global.u32 [%rd3], 1;", None),
        ("st.global.u32 [%rd3], 1;", "ld.volatile.global.u32 %r2, [%rd3];", "RAW"),
        ("ld.volatile.global.u32 %r2, [%rd3];", "st.global.u32 [%rd3], 1;", "WAR"),
        ("ld.global.u32 %r2, [%rd3];", "st.volatile.global.u32 [%rd3], 1;", "WAR"),
        ("st.volatile.global.u32 [%rd3], 1;", "ld.global.u32 %r2, [%rd3];", "RAW"),
        ("ld.volatile.global.u32 %r2, [%rd3];", "ld.global.u32 %r2, [%rd3];", None),
    ],
)
def test_strong_accesses_race_with_weak_ones_only(first: str, second: str, kind: str | None) -> None:
    body = f"""mov.u64 %rd3, word; setp.eq.u32 %p2, %r60, 1; setp.ne.u32 %p3, %r0, 0;
    @%p3 bra done; @%p2 bra two; {first} bra done; two: {second} done:"""
    hazards = Hazards()
    run(body, blocks=2, module=".global .align 4 .u32 word;", observers=(hazards,))
    assert [report.kind for report in hazards.reports] == ([kind] if kind else [])
