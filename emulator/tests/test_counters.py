"""Counters, by Nsight Compute's names: wavefronts, sectors, masks, lines, instructions, bulk copies."""

from __future__ import annotations

from collections import defaultdict
import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.events import LANE, Stream, u64
from tests.programs import run, table_of, text_of

import ptxemu
from ptxemu import Counters, TensorMap
from ptxemu.observe.counters import LARGEST, Patterns, load_wavefronts, sectors, wavefronts
from ptxemu.values import Array, BoolArray

LANES = np.arange(32, dtype=np.uint64)
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"


def one(address: Array, width: int, mask: BoolArray | None = None) -> tuple[int, int]:
    """(wavefronts, phases) of one warp."""
    passes, phases = wavefronts(address, width, mask)
    return int(passes), int(phases)


def counted(address: list[int], width: int, active: list[bool], load: bool = False) -> tuple[int, int]:
    """The definition, lane by lane: a load's phases are wide where all agree with a neighbour."""
    lanes, agree = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width], (1, 2) if load and width > 4 else ()
    both = [[lane for lane in range(32) if active[lane] and active[lane ^ away]] for away in agree]
    if any(all(address[i] == address[i ^ away] for i in pairs) for away, pairs in zip(agree, both, strict=True)):
        lanes *= 2
    passes = phases = 0
    for start in range(0, len(address), lanes):
        banks = defaultdict(set)
        for lane in range(start, start + lanes):
            if active[lane]:
                for byte in range(address[lane], address[lane] + width):
                    banks[byte // 4 % 32].add(byte // 4)
        if banks:
            phases += 1
            passes += max(len(words) for words in banks.values())
    return passes, phases


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8, 16]),
    st.lists(st.integers(0, 255), min_size=32, max_size=32),
    st.lists(st.booleans(), min_size=32, max_size=32),
)
def test_wavefronts_and_sectors_follow_the_definition(width: int, slots: list[int], active: list[bool]) -> None:
    address = [slot % 64 * width for slot in slots]
    assert one(np.array(address, dtype=np.uint64), width, np.array(active)) == counted(address, width, active)
    assert one(np.array(address, dtype=np.uint64), width) == counted(address, width, [True] * 32)
    for near in (~1, ~2):  # the last lanes need not agree
        loaded = [address[lane & near] if lane < slots[0] else address[lane] for lane in range(32)]
        held = np.where(active, loaded, LANES << np.uint64(40)).astype(np.uint64)  # idle lanes hold anything
        assert [*load_wavefronts(held, width, np.array(active))] == [*counted(loaded, width, active, load=True)]
    words = np.array(slots, dtype=np.uint64) * np.uint64(4) + np.uint64(1 << 40)
    found, requests = sectors(words, 4, np.array(active))
    expected = {slot // 8 for slot, here in zip(slots, active, strict=True) if here}  # distinct pieces of 32 bytes
    assert (int(found), int(requests)) == (len(expected), int(bool(expected)))


def test_totals_do_not_depend_on_how_values_are_stored() -> None:
    rng, own = np.random.default_rng(0), Counters()
    mask, some = rng.random((6, 4, 32)) < 0.5, rng.random((6, 4, 1)) < 0.5
    masks = (None, mask, np.broadcast_to(some, (6, 4, 32)), some, mask[:1], mask[:, :1])
    shifts = np.arange(6, dtype=np.uint64).reshape(6, 1, 1)
    for patterns in (own._shared, own._shared_loads, own._global, own._bypassing):
        for chosen, width, every in itertools.product(masks, (4, 16), (0, 16, 32, 64, 128)):
            pattern = rng.integers(0, 64, (1, 4, 32)).astype(np.uint64) * np.uint64(width)
            for compact in (pattern, pattern[..., LANES // 2], pattern[..., :1]):
                address = compact + shifts * np.uint64(every)
                full = np.broadcast_to(True if chosen is None else chosen, (6, 4, 32))
                plain = tuple(
                    int(each.sum()) for each in patterns.rule(np.broadcast_to(address, (6, 4, 32)), width, full)
                )
                assert patterns.total(address, width, chosen, 6, 4) == plain
                assert every or patterns.total(compact, width, chosen, 6, 4) == plain
    shared = Patterns(wavefronts, 128)
    stride = np.array([4, 8, 128], dtype=np.uint64).reshape(3, 1, 1)
    assert shared.total(stride * LANES, 4, None, 3, 2) == (2 * (1 + 2 + 32), 6)
    rows = (LANES * stride[:2]).astype(np.uint64)  # of two warps, then the same bytes of two blocks
    assert shared.total(rows.reshape(1, 2, 32), 4, None, 2, 2) == (6, 4)
    assert shared.total(rows, 4, np.array([True, False]).reshape(2, 1, 1), 2, 2) == (2, 2)
    garbage = np.where(LANES < 16, LANES * np.uint64(4), np.uint64(2**64 - 3)).reshape(1, 1, 32)
    assert shared.total(garbage, 4, (LANES < 16).reshape(1, 1, 32), 1, 1) == (1, 1)


def test_the_memory_of_patterns_is_bounded() -> None:
    patterns = Patterns(wavefronts, 128, limit=8)
    for shift in range(50):
        assert patterns.total((LANES + np.uint64(shift)).reshape(1, 1, 32) * np.uint64(4), 4, None, 1, 1) == (1, 1)
        assert len(patterns._known) <= 8
    large = np.broadcast_to(LANES * np.uint64(4), (1, LARGEST // 32 + 1, 32))
    before = len(patterns._known)
    assert patterns.total(large, 4, None, 1, LARGEST // 32 + 1) == (LARGEST // 32 + 1, LARGEST // 32 + 1)
    assert len(patterns._known) == before


# --- what a launch counts ---------------------------------------------------------------------------------------------


def test_an_unswizzled_tile_of_attention() -> None:
    """Rows of 128 halves without a swizzle; the totals are an H200's at sequence 1024, 16 heads."""
    counters = Counters()
    stream = Stream(counters, warps=4, blocks=256)
    for _ in range(3):
        stream.access("ldmatrix", u64(LANES * np.uint64(256)), 10, 16)
    stream.access("ld", stream.tid * np.uint64(16), 20, 16)
    stream.access("st", u64(LANE // 4 * 256 + LANE % 4 * 4), 30, 4)
    found = counters.as_dict()
    assert (found[WAVEFRONTS.format("ld")], found[CONFLICTS.format("ld")]) == (1024 * (3 * 32 + 4), 1024 * 3 * 28)
    assert (found[WAVEFRONTS.format("st")], found[CONFLICTS.format("st")]) == (1024 * 8, 1024 * 7)


def test_the_same_addresses_under_other_masks_are_other_accesses() -> None:
    counters = Counters()
    stream = Stream(counters, warps=1)
    for lanes, conflicts in ((1, 0), (32, 31), (2, 1), (32, 31)):  # all in one bank
        before = counters.as_dict()[CONFLICTS.format("st")]
        mask = (np.arange(32) < lanes).reshape(1, 1, 32)
        stream.access("st", np.arange(32, dtype=np.uint64).reshape(1, 1, 32) * np.uint64(128), 1, 4, mask=mask)
        assert counters.as_dict()[CONFLICTS.format("st")] - before == conflicts


def test_global_sectors_and_requests() -> None:
    counters = Counters()
    stream = Stream(counters, warps=2, blocks=4)
    base = u64(1 << 36) + stream.ctaid * np.uint64(4096) + stream.tid * np.uint64(16)
    for line, kind in enumerate(("cp.async", "ld", "st"), start=1):
        stream.access(kind, base, line, 16, space="global")
    stream.access("atom", np.full((1, 1, 1), 1 << 36), 4, 4, space="global")
    stream.copy(stream.tid * np.uint64(16), 1, 16)
    found = counters.as_dict()
    for kind, numbers in (("ld", (2 * 8 * 16, 2 * 8)), ("st", (8 * 16, 8)), ("atom", (8, 8))):
        assert (found[SECTORS.format(kind)], found[REQUESTS.format(kind)]) == numbers
    assert found[WAVEFRONTS.format("st")] == 0  # what a cp.async writes is not a shared store
    assert counters.copied_bytes == 4 * 64 * 16


def test_masks_weigh_warps_and_lanes() -> None:
    counters = Counters()
    stream = Stream(counters, warps=2, blocks=3)
    masks = {"ld": stream.only(1), "st": LANE < 4, "atom": LANE < 0}
    for line, (kind, mask) in enumerate(masks.items()):
        stream.access(kind, stream.tid * np.uint64(128), line, mask=mask)
    stream.copy(stream.tid * np.uint64(8), 4, 8, mask=LANE < 4)
    found = counters.as_dict()
    assert [found[WAVEFRONTS.format(kind)] for kind in masks] == [3 * 32, 6 * 4, 0]
    assert [counters.traffic("shared", kind).requests for kind in masks] == [3, 6, 0]
    assert counters.copied_bytes == 6 * 4 * 8


def test_lines_say_where_conflicts_come_from() -> None:
    counters = Counters()
    stream = Stream(counters)
    stream.access("st", stream.tid * np.uint64(4), 12)
    for _ in range(2):
        stream.access("ld", stream.tid * np.uint64(128), 7)
    stream.access("ld", u64(1 << 36), 9, space="global")
    stream.access("ld", LANE * 4, 13, mask=LANE < 16)  # one instruction in both spaces
    stream.access("ld", LANE * 4, 13, mask=LANE >= 16, space="global")
    for _ in range(50):  # more wavefronts, fewer conflicts
        stream.access("st", stream.tid * np.uint64(8), 20)
    lines = {(entry.line, entry.space): entry for entry in counters.lines}
    assert [line for line, _ in lines] == [7, 9, 12, 13, 13, 20]
    assert [(one.ptx_lines, one.traffic.conflicts) for one in counters.conflicts()] == [((7,), 124), ((20,), 100)]
    first = lines[7, "shared"]
    assert (first.traffic.wavefronts, first.traffic.conflicts, first.traffic.requests) == (128, 124, 4)
    assert str(first.source) == "kernel.cu:107"
    assert (lines[12, "shared"].operation, lines[12, "shared"].traffic.conflicts) == ("st", 0)
    assert (lines[9, "global"].traffic.sectors, lines[9, "global"].traffic.wavefronts) == (2, 0)
    assert [lines[13, space].traffic.requests for space in ("global", "shared")] == [2, 2]


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
    assert (counters.opcodes["add.s32"], counters.opcodes["bra"]) == (4 * warps, 6)
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
    assert (counters.as_dict()[WAVEFRONTS.format("ld")], counters.warp_instructions) == (5, 5)


def test_a_program() -> None:
    body = text_of("counters")
    counters = Counters()
    run(body, 64, 2, declarations=".shared .align 16 .b8 tile[4096];", observers=counters)
    assert counters.traffic("shared", "st").wavefronts == 2 * 8  # eight lanes of one warp on one bank
    assert counters.traffic("global", "st").sectors == 4 * 4
    assert counters.opcodes["add.u32"] == 4 + 2  # all warps, then the one that did not branch
    assert counters.opcodes["st.shared.u32"] == 4  # switched off in one warp, issued all the same
    assert counters.lane_instructions == counters.warp_instructions * 32 - 2 * 24  # 24 lanes skip one instruction


def test_conflicts_by_source_line() -> None:
    """All figures in their order; a line of a wrapper is left out unless it is alone."""
    counters, expected = Counters(), table_of("counters", "conflicts")
    kernel = ptxemu.load(text_of("screen")).kernel("conflicts")
    kernel.launch(2, 64, [np.zeros(64, np.uint32)], observers=counters)
    wrappers = ("kernels/wrap.h",)
    page = ptxemu.render_counters(counters, wrappers=wrappers, folder="kernels/")
    assert page.rpartition("\n\n")[2] == "\n".join(expected["page"])
    assert json.dumps(counters.facts(wrappers)) == json.dumps(expected["facts"])
    stream = Stream(five := Counters())
    for line in range(5):
        stream.access("ld", stream.tid * np.uint64(128), line)
    assert ptxemu.render_counters(five).count("\n          62  32.0x  ld, PTX line") == 5
    assert "more places" not in ptxemu.render_counters(five)


# --- bulk copies ------------------------------------------------------------------------------------------------------

HEAD = text_of("programs", "copy_head")
AWAIT = "\nagain: mbarrier.try_wait.parity.shared::cta.b64 ok, [mb], 0;\n@!ok bra again;\n"


def bulk(text: str, box: tuple[int, int] = (64, 16)) -> Counters:
    """Two blocks of a kernel with a map of 64 rows of 256 bytes."""
    tensor, counters = np.zeros((64, 128), np.float16), Counters()
    kernel = ptxemu.load(HEAD + text + "\nret;\n}\n").kernel()
    kernel.launch(2, 64, (TensorMap(tensor, "f16", (128, 64), (256,), box), tensor), observers=counters)
    return counters


@pytest.mark.parametrize(("corner", "box", "sectors_of_one"), table_of("counters", "boxes"))
def test_a_box_is_one_request_and_the_sectors_that_it_has(
    corner: str, box: tuple[int, int], sectors_of_one: int
) -> None:
    nbytes = 2 * box[0] * box[1]
    load = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    text = f"@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], {nbytes};\n"
    found = bulk(f"{text}@one {load} [at], [map, {{{corner}}}], [mb];{AWAIT}", box)
    traffic = found.traffic("global", "bulk ld")
    assert (traffic.requests, traffic.sectors, found.bulk_bytes) == (2, 2 * sectors_of_one, 2 * nbytes)
    line = next(line for line in found.lines if line.operation == "bulk ld")
    assert (line.line, line.traffic) == (13, traffic)


def test_stores_and_reductions_are_counted_apart() -> None:
    text = "mad.lo.u32 turn, turn, 16, at; st.shared.v4.u32 [turn], {mb, mb, mb, mb};\n"
    text += "fence.proxy.async;\nbar.sync 0;\n"
    text += "@one cp.async.bulk.global.shared::cta.bulk_group [out], [at], 160;\n"
    text += "@one cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [out+4096], [at], 64;\n"
    found = bulk(text + "@one cp.async.bulk.commit_group;\n@one cp.async.bulk.wait_group 0;")
    traffic = [found.traffic("global", kind) for kind in ("bulk st", "bulk red", "st")]
    assert [(each.requests, each.sectors) for each in traffic] == [(2, 10), (2, 4), (0, 0)]
    assert found.bulk_bytes == 2 * (160 + 64)
    assert {name: value for name, (value, _) in found.short().items() if name.startswith(("bulk", "cp"))} == {
        "bulk_bytes": 448,
        "bulk_ld_sectors": 0,
        "bulk_st_sectors": 10,
        "cp_async_bytes": 0,
    }
