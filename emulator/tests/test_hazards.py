"""The race detector as a whole: blocks that part ways, real programs, what a report says."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import run
from tests.streams import LANE, Stream, found, other, own

from ptxemu.observe.hazards import Hazards
from ptxemu.syntax.tree import Instruction, SourceLine


def test_blocks_may_use_shared_memory_differently() -> None:
    hazards = Hazards()
    stream = Stream(hazards, blocks=6)
    shift = stream.ctaid % np.uint64(2) * np.uint64(1024)
    stream.access("st", own(stream) + shift, 1)
    stream.access("ld", own(stream) + shift, 2)
    assert not hazards.reports  # each thread reads what it wrote
    stream.access("ld", other(stream) + np.uint64(1024), 3)  # written by the odd blocks only
    report = hazards.reports[0]
    assert (found(hazards), report.block, report.count) == ({("shared", "RAW", 1, 3)}, (1, 0, 0), 3 * 64)


def test_blocks_may_skip_barriers_on_their_own() -> None:
    hazards = Hazards()
    stream = Stream(hazards, blocks=4)
    stream.access("st", own(stream), 1)
    stream.barrier(lanes=stream.ctaid != 2)
    stream.access("ld", other(stream), 2)
    assert [(report.block, report.count) for report in hazards.reports] == [((2, 0, 0), 64)]


def test_idle_lanes_hold_garbage() -> None:
    hazards = Hazards()
    stream = Stream(hazards, blocks=2)
    garbage = np.where(LANE < 4, own(stream), np.uint64(1 << 63) + stream.ctaid)
    stream.access("st", garbage, 1, mask=LANE < 4)
    stream.access("ld", garbage, 2, mask=LANE < 4)
    stream.access("ld", garbage, 3, mask=LANE < 0)
    assert not hazards.reports
    assert len(hazards._groups) == 1


def test_a_report_names_everything() -> None:
    hazards = Hazards()
    stream = Stream(hazards, blocks=2, first=7)
    stream.access("st", own(stream), 3)
    stream.access("ld", other(stream), 8)
    report = hazards.reports[0]
    assert (report.address, report.first_thread, report.second_thread, report.count) == (128, 32, 0, 128)
    assert (report.block, report.first_block) == ((7, 0, 0), (7, 0, 0))
    assert hazards.render() == (
        "k.ptx:8: shared RAW (read after write by another thread) at 0x80, block (7, 0, 0): "
        "thread 0 in `ld;` (line 8 from kernel.cu:108), not ordered after "
        "thread 32 in `st;` (line 3 from kernel.cu:103); 128 times"
    )


def test_a_report_shows_the_inlined_calls() -> None:
    source = None
    for depth in range(5):
        source = SourceLine(f"{depth}.cuh", depth, source)
    hazards = Hazards()
    stream = Stream(hazards)
    stream.access("st", own(stream), 3)
    step = stream.step("ld", 8)
    step.instruction = Instruction("ld.shared.u32", line=8, source=source)
    stream.access("ld", other(stream), 8)
    assert "`ld.shared.u32;` (line 8 from 4.cuh:4 < 3.cuh:3 < 2.cuh:2)" in hazards.render()


TILE = ".shared .align 16 .b8 tile[4096];"
PUT = "mov.u32 %r1, tile; shl.b32 %r2, %r0, 2; add.u32 %r2, %r1, %r2; st.shared.u32 [%r2], %r0;"
PUT_OUT = "st.global.u32 [%rd0], %r4;"
GET = "xor.b32 %r3, %r0, {}; shl.b32 %r3, %r3, 2; add.u32 %r3, %r1, %r3; ld.shared.u32 %r4, [%r3];" + PUT_OUT


@pytest.mark.parametrize(
    ("between", "distance", "expected"),
    [
        ("bar.sync 0;", 32, set()),
        ("bar.warp.sync -1;", 32, {"RAW"}),
        ("bar.warp.sync -1;", 1, set()),
        ("", 1, {"RAW"}),
        ("shfl.sync.idx.b32 %r5, %r0, 0, 31, -1;", 1, {"RAW"}),
        ("vote.sync.ballot.b32 %r5, 1, -1;", 1, {"RAW"}),
        ("match.any.sync.b32 %r5, %r0, -1;", 1, {"RAW"}),
        ("redux.sync.add.u32 %r5, %r0, -1;", 1, {"RAW"}),
        ("activemask.b32 %r5;", 1, {"RAW"}),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r1];", 1, {"RAW"}),
        ("movmatrix.sync.aligned.m8n8.trans.b16 %r5, %r0;", 1, {"RAW"}),
        ("barrier.sync 1, 64;", 32, set()),
    ],
)
def test_programs(between: str, distance: int, expected: set[str]) -> None:
    hazards = Hazards()
    body = "\n".join([PUT, between, GET.format(distance)])
    out = run(body, threads=64, blocks=3, declarations=TILE, observers=(hazards,))
    assert (out == np.arange(64) ^ distance).all()  # the emulator's order gives right numbers in any case
    assert {report.kind for report in hazards.reports} == expected
    assert all(report.first.opcode == "st.shared.u32" for report in hazards.reports)


@pytest.mark.parametrize("arrive_first", [True, False])
def test_a_program_with_bar_arrive(arrive_first: bool) -> None:
    # Warp 0 produces and signals, warp 1 waits and consumes; a store after the signal is too late.
    produce = [PUT, "bar.arrive 1, 64;"]
    body = "\n".join(
        [
            "setp.lt.u32 %p0, %r0, 32;",
            "@!%p0 bra consume;",
            *(reversed(produce) if arrive_first else produce),
            "bra done;",
            "consume: bar.sync 1, 64; mov.u32 %r1, tile;",
            GET.format(32),
            "done:",
        ]
    )
    hazards = Hazards()
    run(body, threads=64, declarations=TILE, observers=(hazards,))
    assert {report.kind for report in hazards.reports} == ({"RAW"} if arrive_first else set())


def test_reports_are_merged_and_bounded() -> None:
    hazards = Hazards(limit=2)
    stream = Stream(hazards)
    stream.access("st", own(stream), 1)
    for line in (2, 3, 4, 2):
        stream.access("ld", other(stream), line)
    assert found(hazards) == {("shared", "RAW", 1, 2), ("shared", "RAW", 1, 3)}
    assert (hazards.reports[0].count, hazards.dropped) == (128, 1)
    assert hazards.render().endswith("1 more races beyond the first 2")
