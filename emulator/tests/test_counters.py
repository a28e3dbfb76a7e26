"""Counters over dictated events: Nsight Compute's names, weights of masks, PTX lines, instruction counts."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import run
from tests.streams import LANE, Stream, u64

from ptxemu.observe.counters import Counters

CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"


def test_first_iteration_of_the_ladder() -> None:
    # Rows of 128 halves without a swizzle, as iteration 1 reads its tiles; the totals are the H200's at S=1024, H=16.
    counters = Counters()
    stream = Stream(counters, warps=4, blocks=256)
    row = np.arange(32, dtype=np.uint64)
    for _ in range(3):
        stream.access("ldmatrix", u64(row * np.uint64(256)), 10, 16)
    stream.access("ld", stream.tid * np.uint64(16), 20, 16)
    stream.access("st", u64(LANE // 4 * 256 + LANE % 4 * 4), 30, 4)
    found = counters.as_dict()
    warps = 1024
    assert found[WAVEFRONTS.format("ld")] == warps * (3 * 32 + 4)
    assert found[CONFLICTS.format("ld")] == warps * 3 * 28
    assert found[WAVEFRONTS.format("st")] == warps * 8  # 262144 wavefronts for 32768 requests
    assert found[CONFLICTS.format("st")] == warps * 7


def test_global_sectors_and_requests() -> None:
    counters = Counters()
    stream = Stream(counters, warps=2, blocks=4)
    base = u64(1 << 36) + stream.ctaid * np.uint64(4096) + stream.tid * np.uint64(16)
    stream.access("cp.async", base, 1, 16, space="global")
    stream.access("ld", base, 2, 16, space="global")
    stream.access("st", base, 3, 16, space="global")
    stream.access("atom", np.full((1, 1, 1), 1 << 36), 4, 4, space="global")
    stream.copy(stream.tid * np.uint64(16), 1, 16)
    found = counters.as_dict()
    assert found[SECTORS.format("ld")] == 2 * 8 * 16
    assert found[REQUESTS.format("ld")] == 2 * 8
    assert (found[SECTORS.format("st")], found[REQUESTS.format("st")]) == (8 * 16, 8)
    assert (found[SECTORS.format("atom")], found[REQUESTS.format("atom")]) == (8, 8)
    assert found[WAVEFRONTS.format("st")] == 0  # what a cp.async writes is not a shared store
    assert counters.copied_bytes == 4 * 64 * 16


def test_masks_weigh_warps_and_lanes() -> None:
    counters = Counters()
    stream = Stream(counters, warps=2, blocks=3)
    stream.access("ld", stream.tid * np.uint64(128), 1, mask=stream.only(1))
    stream.access("st", stream.tid * np.uint64(128), 2, mask=LANE < 4)
    stream.access("atom", stream.tid * np.uint64(128), 3, mask=LANE < 0)
    stream.copy(stream.tid * np.uint64(8), 4, 8, mask=LANE < 4)
    found = counters.as_dict()
    assert found[WAVEFRONTS.format("ld")] == 3 * 32
    assert found[WAVEFRONTS.format("st")] == 6 * 4
    assert found[WAVEFRONTS.format("atom")] == 0
    assert counters.copied_bytes == 6 * 4 * 8
    assert counters.traffic("shared", "ld").requests == 3
    assert counters.traffic("shared", "st").requests == 6
    assert counters.traffic("shared", "atom").requests == 0


def test_lines_say_where_conflicts_come_from() -> None:
    counters = Counters()
    stream = Stream(counters)
    stream.access("st", stream.tid * np.uint64(4), 12)
    for _ in range(2):
        stream.access("ld", stream.tid * np.uint64(128), 7)
    stream.access("ld", u64(1 << 36), 9, space="global")
    lines = {entry.line: entry for entry in counters.lines}
    assert list(lines) == [7, 9, 12]
    assert (lines[7].traffic.wavefronts, lines[7].traffic.conflicts, lines[7].traffic.requests) == (128, 124, 4)
    assert (lines[12].operation, lines[12].traffic.conflicts) == ("st", 0)
    assert (lines[9].space, lines[9].traffic.sectors, lines[9].traffic.wavefronts) == ("global", 2, 0)
    assert str(lines[7].source) == "kernel.cu:107"


def test_one_instruction_may_reach_both_spaces() -> None:
    counters = Counters()
    stream = Stream(counters, warps=1)
    stream.access("ld", LANE * 4, 5, mask=LANE < 16)
    stream.access("ld", LANE * 4, 5, mask=LANE >= 16, space="global")
    assert [(entry.space, entry.traffic.requests) for entry in counters.lines] == [("global", 1), ("shared", 1)]


@pytest.mark.parametrize(
    ("mask", "warps", "lanes"),
    [
        (None, 6, 192),
        (np.ones((1, 1, 1), dtype=np.bool_), 6, 192),
        (np.array([True, False]).reshape(1, 2, 1), 3, 96),
        (np.array([True, False, False]).reshape(3, 1, 1), 2, 64),
        ((np.arange(32) < 5).reshape(1, 1, 32), 6, 30),
    ],
)
def test_instructions_count_per_warp_and_per_lane(mask: object, warps: int, lanes: int) -> None:
    counters = Counters()
    stream = Stream(counters, warps=2, blocks=3)
    stream.block("add.s32", "add.s32", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", mask=mask, times=2)
    stream.block("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "bra")
    assert counters.opcodes["add.s32"] == 4 * warps
    assert counters.opcodes["bra"] == 6
    assert counters.warp_instructions == 6 * warps + 12 == sum(counters.opcodes.values())
    assert counters.lane_instructions == 6 * lanes + 2 * 192
    assert counters.as_dict()["smsp__inst_executed_pipe_tensor.sum"] == 2 * warps
    assert counters.as_dict()["smsp__inst_executed_op_ldsm.sum"] == 6


def test_slices_and_launches_add_up() -> None:
    counters = Counters()
    for blocks in (3, 2):
        stream = Stream(counters, warps=1, blocks=blocks)
        stream.access("ld", LANE * 4, 1)
        stream.block("add.s32")
    assert counters.as_dict()[WAVEFRONTS.format("ld")] == 5
    assert counters.warp_instructions == 5


def test_a_program() -> None:
    body = """
    mov.u32 %r1, tile; shl.b32 %r2, %r0, 7; and.b32 %r2, %r2, 4095; add.u32 %r2, %r1, %r2;
    setp.lt.u32 %p0, %r0, 8;
    @%p0 st.shared.u32 [%r2], %r0;
    @!%p0 bra done;
    add.u32 %r5, %r0, 1;
    done: st.global.u32 [%rd0], %r0;
    """
    counters = Counters()
    run(body, threads=64, blocks=2, declarations=".shared .align 16 .b8 tile[4096];", observers=(counters,))
    assert counters.traffic("shared", "st").wavefronts == 2 * 8  # eight lanes of one warp on one bank
    assert counters.traffic("global", "st").sectors == 4 * 4
    assert counters.opcodes["add.u32"] == 4 + 2  # all warps, then the one that did not branch
    assert counters.opcodes["st.shared.u32"] == 4  # switched off in one warp, issued all the same
    assert counters.lane_instructions == counters.warp_instructions * 32 - 2 * 24  # 24 lanes skip one instruction
