"""Descriptors of wgmma against tiles that tensor copies wrote; and what copies and other blocks do to global memory.

Tiles are written as `TensorMap`'s boxes are: rows of the span's bytes, with 16-byte chunks permuted by the swizzle.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import races_of, run
from tests.test_verdicts import DATA

import ptxemu
from ptxemu.__main__ import main
from ptxemu.machine.bulk_copies import boxes, swizzled
from ptxemu.machine.tensor_map import Decoded
from ptxemu.machine.warpgroups import SWIZZLES, Shape
from ptxemu.observe.descriptors import Misfit, Tiles, explained

A, B = 1024, 32768  # addresses of two tiles


def box(columns: int, rows: int, swizzle: str = "128B") -> ptxemu.TensorMap:
    """Of f16."""
    return ptxemu.TensorMap(0, "f16", (columns, rows), (2 * columns,), (columns, rows), swizzle=swizzle)


def tiles(*loaded: tuple[int, ptxemu.TensorMap]) -> Tiles:
    """Boxes at addresses."""
    made = Tiles()
    for number, (address, each) in enumerate(loaded):
        places = boxes(Decoded(0, each), np.zeros((1, each.rank), np.int64)).places
        made.loaded(swizzled(address + places, each.swizzle), places, each, number, 32 * number)
    return made


def descriptor(start: int, stride: int = 1024, leading: int = 16, swizzle: str = "128B") -> int:
    """Of bytes."""
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLES.index(swizzle) << 62


def misfit(made: Tiles, raw: int, shape: Shape, base: int = 0) -> str:
    found = made.misfit("B", raw, shape, base)
    assert found is None or isinstance(found, Misfit)
    return "" if found is None else found.text


@pytest.mark.parametrize(("swizzle", "columns"), [("128B", 64), ("64B", 32), ("32B", 16)])
def test_steps_along_k_and_other_rows_of_a_tile_are_read_as_copied(swizzle: str, columns: int) -> None:
    made, span = tiles((A, box(columns, 128, swizzle))), 2 * columns
    for step in range(columns // 16):
        for first in (0, 64):
            raw = descriptor(A + 32 * step + first * span, 8 * span, swizzle=swizzle)
            assert misfit(made, raw, Shape(64, k_major=True)) == ""
    for first in range(0, 128, 16):  # 16 rows of K
        raw = descriptor(A + first * span, 8 * span, swizzle=swizzle)
        assert misfit(made, raw, Shape(columns, k_major=False)) == ""


def test_a_wide_mn_major_operand_is_several_boxes_side_by_side() -> None:
    made = tiles((A, box(64, 64)), (A + 8192, box(64, 64)))
    assert misfit(made, descriptor(A, leading=8192), Shape(128, k_major=False)) == ""
    said = misfit(made, descriptor(A, leading=4096), Shape(128, k_major=False))
    assert "leading offset (LBO) of the descriptor: expected 0x200 (8192 bytes), found 0x100 (4096 bytes)" in said


@pytest.mark.parametrize(("raw", "field"), [
    (descriptor(A, swizzle="64B"), "swizzle of the descriptor: expected 128B (1), found 64B (2)"),
    (descriptor(A, swizzle="none"), "swizzle of the descriptor: expected 128B (1), found none (0)"),
    (descriptor(A, stride=512), "stride offset (SBO) of the descriptor: expected 0x40 (1024 bytes), found 0x20"),
    (descriptor(A, stride=2048), "stride offset (SBO) of the descriptor: expected 0x40 (1024 bytes), found 0x80"),
    (descriptor(A + 512), "start of the descriptor: expected 0x42 (1056 bytes), found 0x60 (1536 bytes)"),
    (descriptor(A << 4), "start of the descriptor: expected 0x40 (1024 bytes), found 0x400 (16384 bytes)"),
    (descriptor(A, stride=512, swizzle="64B"), "no single field explains it"),
])  # fmt: skip
def test_the_field_is_named_with_its_value(raw: int, field: str) -> None:
    made = tiles((A, box(64, 128)), (16384, box(32, 128, "64B")))
    assert field in misfit(made, raw, Shape(64, k_major=True))


def test_the_place_of_a_block_in_its_cluster_is_added() -> None:
    made = tiles((A + 65536, box(64, 64)))
    assert misfit(made, descriptor(A), Shape(64, k_major=True), base=65536) == ""
    assert "stride offset" in misfit(made, descriptor(A, stride=512), Shape(64, k_major=True), base=65536)


def test_what_nobody_knows_is_not_judged() -> None:
    wrong = descriptor(A, swizzle="64B")
    assert misfit(tiles(), wrong, Shape(64, k_major=True)) == ""
    assert misfit(tiles((B, box(64, 64))), wrong, Shape(64, k_major=True)) == ""  # written by threads
    row = ptxemu.TensorMap(0, "f16", (4096,), (), (256,))
    assert misfit(tiles((A, row)), wrong, Shape(64, k_major=True)) == ""
    plain = tiles((A, box(64, 64, "none")))  # perhaps core matrices already
    assert misfit(plain, descriptor(A, 256, 128, "none"), Shape(64, k_major=True)) == ""
    assert misfit(plain, descriptor(A), Shape(64, k_major=True)) != ""


def test_chunks_that_threads_write_over_are_forgotten() -> None:
    made, wrong = tiles((A, box(64, 64))), descriptor(A, stride=512)
    made.forget(np.arange(A, A + 8192) // 16)
    assert misfit(made, wrong, Shape(64, k_major=True)) == ""
    made = tiles((A, box(64, 64)), (B, box(64, 8)))
    made.forget(np.array([A // 16, 1 << 20]))  # one chunk of the first row, and one far away
    assert "stride offset" in misfit(made, wrong, Shape(64, k_major=True))
    assert misfit(made, descriptor(A), Shape(64, k_major=True)) == ""


def test_a_line_over_a_tile_and_a_second_block_of_a_cluster() -> None:
    made, wrong = tiles((A, box(64, 128))), descriptor(A, 512)
    line = ptxemu.TensorMap(0, "f16", (8192,), (), (256,))
    for at in range(A, A + 16384, 512):
        made.loaded(np.arange(at, at + 512, 16), np.arange(0, 512, 16), line, 9, 0)
    assert misfit(made, wrong, Shape(64, k_major=True)) == ""
    step, base, shape = descriptor(A + 512), 1 << 16, Shape(64, k_major=True)
    assert misfit(tiles((A, box(64, 128))), step, shape) == misfit(tiles((base + A, box(64, 128))), step, shape, base)


def test_a_box_of_three_axes_may_hold_rows_in_another_order() -> None:
    halo = ptxemu.TensorMap(0, "f16", (64, 16, 8), (128, 2048), (64, 16, 8), swizzle="128B")
    assert misfit(tiles((A, halo)), descriptor(A, stride=2048), Shape(64, k_major=True)) == ""
    assert "swizzle" in misfit(tiles((A, halo)), descriptor(A, stride=2048, swizzle="64B"), Shape(64, k_major=True))


def test_the_command_explains_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["descriptor", hex(descriptor(A, 1024, 16)), "0x8000004000080040"]) == 0
    said = capsys.readouterr().out
    for line in ("0x400 = 1024\n", "(LBO)  0x10 = 16", "1: 128B", "2: 64B", "an SBO of 512"):
        assert line in said, line
    assert "outside of all fields" in explained(1 << 60)
    assert "LBO apart along K" in explained(0)


@pytest.mark.parametrize("words", [[], ["x"], ["-1"], [hex(1 << 64)]])
def test_what_is_no_descriptor(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["descriptor", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- global memory between threads and copies of a block --------------------------------------------------------------

PROXY = DATA["cases"]["global_proxy"]["variants"]
FENCE = "fence.proxy.async;"


def kinds(text: str) -> set[str]:
    hazards, arrays = ptxemu.Hazards(), [np.zeros(256, np.float32) for _ in range(2)]
    ptxemu.load(text).kernel().launch(1, 256, arrays, observers=[hazards])
    return {each.kind for each in hazards.reports}


@pytest.mark.parametrize(("fence", "found"), [
    (FENCE, set()), ("fence.proxy.async.global;", set()),
    ("fence.proxy.async.shared::cluster;", {"proxy"}), ("fence.proxy.async.shared::cta;", {"proxy"}),
    ("", {"proxy"}), ("fence.acq_rel.gpu;", {"proxy"}),
])  # fmt: skip
def test_which_fence_lets_a_copy_read_what_threads_wrote(fence: str, found: set[str]) -> None:
    text = PROXY["0"]["ptx"]
    assert text.count(FENCE) == 1
    assert kinds(text.replace(FENCE, fence)) == found


def test_one_fence_behind_the_barrier_is_enough() -> None:
    tail = PROXY["0"]["ptx"]
    at = tail.index("bar.sync", tail.index(FENCE))
    end = tail.index(";", at) + 1
    moved = tail[:end] + f"\n{FENCE}\n" + tail[end:]
    assert kinds(moved.replace(FENCE, "", 1)) == set()


def test_what_a_copy_still_writes_is_not_read() -> None:
    assert kinds(PROXY["3"]["ptx"]) == set()
    assert kinds(PROXY["4"]["ptx"]) == {"in-flight read"}
    assert kinds(PROXY["5"]["ptx"]) == {"in-flight read"}
    assert "RAW" in kinds(PROXY["2"]["ptx"])


def test_a_launch_is_ordered_after_the_last_one() -> None:
    hazards, out = ptxemu.Hazards(), np.zeros(128, np.float32)
    loaded = ptxemu.load(DATA["cases"]["store_exit"]["variants"]["0"]["ptx"]).kernel()  # waits for reads alone
    for _ in range(2):
        loaded.launch(1, 128, (out,), observers=[hazards])
    assert hazards.reports == ()


# --- global memory between blocks -------------------------------------------------------------------------------------

WORDS = ".global .align 4 .u32 data[64]; .global .align 4 .u32 count; .global .align 4 .u32 flag;"
GL, CTA = "fence.acq_rel.gpu;", "fence.acq_rel.cta;"
# Each block stores; whoever takes the last ticket reads what the others have stored.
TICKET = """mov.u64 %rd1, data; mul.wide.u32 %rd2, %r60, 4; add.u64 %rd2, %rd1, %rd2; setp.ne.u32 %p1, %r0, 0;
setp.eq.u32 %p3, %r0, WRITER; @%p3 st.global.u32 [%rd2], %r60; MEET
@%p1 bra done; RELEASE TAKE setp.ne.u32 %p2, %r5, 2; @%p2 bra done; ACQUIRE
ld.global.u32 %r6, [%rd1]; ld.global.u32 %r7, [%rd1+4]; ld.global.u32 %r8, [%rd1+8];
done:"""
TAKE = "atom.global.add.u32 %r5, [count], 1;"
BOTH = "atom.acq_rel.gpu.global.add.u32 %r5, [count], 1;"


def ticket(release: str = "", acquire: str = "", take: str = TAKE, meet: str = "", writer: int = 0) -> set[str]:
    text = TICKET.replace("RELEASE", release).replace("ACQUIRE", acquire).replace("TAKE", take).replace("MEET", meet)
    given = text.replace("WRITER", str(writer))
    orders = ("together", "reverse", 3)
    return {kind for order in orders for kind in races_of(given, 32, 3, module=WORDS, schedule=order)}


@pytest.mark.parametrize(("given", "found"), [
    ({"release": GL, "acquire": GL}, set()), ({"take": BOTH}, set()),
    ({"release": "membar.gl;", "acquire": "fence.sc.sys;"}, set()),
    ({"release": GL, "take": BOTH.replace("acq_rel", "acquire")}, set()),
    ({"acquire": GL, "take": BOTH.replace("acq_rel", "release")}, set()),
    ({"release": GL}, {"RAW"}), ({"acquire": GL}, {"RAW"}), ({"release": CTA, "acquire": GL}, {"RAW"}),
    ({"take": BOTH.replace("acq_rel", "release")}, {"RAW"}), ({}, {"RAW"}),
    ({"release": GL, "acquire": GL, "writer": 5}, {"RAW"}),
    ({"release": GL, "acquire": GL, "writer": 5, "meet": "bar.sync 0;"}, set()),
])  # fmt: skip
def test_what_blocks_tell_each_other_by_tickets(given: dict[str, object], found: set[str]) -> None:
    assert ticket(**given) == found  # type: ignore[arg-type]


def test_a_missing_fence_behind_the_ticket_is_named() -> None:
    text = TICKET.replace("RELEASE", GL).replace("ACQUIRE", "").replace("TAKE", TAKE).replace("MEET", "")
    hazards = ptxemu.Hazards()
    run(text.replace("WRITER", "0"), 32, 3, module=WORDS, observers=hazards)
    (race,) = hazards.reports
    assert race.render().endswith("behind the load or atomic that found it a fence is missing")


# Block 0 stores and raises a flag, block 1 waits for it and raises the next one, block 2 waits for that one and reads.
CHAIN = """mov.u64 %rd1, data; mov.u64 %rd2, flag; mov.u64 %rd3, count; setp.ne.u32 %p1, %r0, 0; @%p1 bra done;
setp.eq.u32 %p2, %r60, 1; @%p2 bra one; setp.eq.u32 %p2, %r60, 2; @%p2 bra two;
st.global.u32 [%rd1], 7; st.release.gpu.global.u32 [%rd2], 1; bra done;
one: ld.acquire.gpu.global.u32 %r5, [%rd2]; setp.eq.u32 %p3, %r5, 0; @%p3 bra one;
st.release.gpu.global.u32 [%rd3], 1; bra done;
two: ld.acquire.gpu.global.u32 %r5, [%rd3]; setp.eq.u32 %p3, %r5, 0; @%p3 bra two;
ld.global.u32 %r6, [%rd1];
done:"""


def test_what_one_block_has_learned_it_hands_on() -> None:
    assert races_of(CHAIN, 32, 3, module=WORDS) == []
    assert races_of(CHAIN.replace("ld.acquire.gpu.global.u32 %r5, [%rd2]", "ld.relaxed.gpu.global.u32 %r5, [%rd2]"),
                    32, 3, module=WORDS) == ["RAW"]  # fmt: skip
    assert races_of(CHAIN.replace("st.release.gpu.global.u32 [%rd3]", "st.relaxed.gpu.global.u32 [%rd3]"),
                    32, 3, module=WORDS) == ["RAW"]  # fmt: skip
    generic = CHAIN.replace(".gpu.global", ".gpu")
    assert "global.u32 [%rd1]" in generic
    assert races_of(generic, 32, 3, module=WORDS) == []
    assert ticket(take=BOTH.replace(".global", "")) == set()


# Block 1 stores over the flag that block 0 has raised, without a fence; then block 2 learns nothing of block 0.
OVER = """mov.u64 %rd1, data; mov.u64 %rd2, flag; mov.u64 %rd3, count; setp.ne.u32 %p1, %r0, 0; @%p1 bra done;
setp.eq.u32 %p2, %r60, 1; @%p2 bra one; setp.eq.u32 %p2, %r60, 2; @%p2 bra two;
st.global.u32 [%rd1], 7; st.release.gpu.global.u32 [%rd2], 1; bra done;
one: ld.relaxed.gpu.global.u32 %r5, [%rd2]; setp.eq.u32 %p3, %r5, 0; @%p3 bra one;
st.relaxed.gpu.global.u32 [%rd2], 2; st.relaxed.gpu.global.u32 [%rd3], 1; bra done;
two: ld.relaxed.gpu.global.u32 %r5, [%rd3]; setp.eq.u32 %p3, %r5, 0; @%p3 bra two;
ld.acquire.gpu.global.u32 %r5, [%rd2]; ld.global.u32 %r6, [%rd1];
done:"""
# Blocks 0 and 1 read; block 0 tells block 2 so, and block 1 does not; block 2 stores.
READ = """mov.u64 %rd1, data; mov.u64 %rd2, flag; mov.u64 %rd3, count; setp.ne.u32 %p1, %r0, 0; @%p1 bra done;
setp.eq.u32 %p2, %r60, 1; @%p2 bra one; setp.eq.u32 %p2, %r60, 2; @%p2 bra two;
ld.global.u32 %r6, [%rd1]; st.release.gpu.global.u32 [%rd2], 1; bra done;
one: ld.relaxed.gpu.global.u32 %r5, [%rd2]; setp.eq.u32 %p3, %r5, 0; @%p3 bra one;
ld.global.u32 %r6, [%rd1]; st.relaxed.gpu.global.u32 [%rd3], 1; bra done;
two: ld.relaxed.gpu.global.u32 %r5, [%rd3]; setp.eq.u32 %p3, %r5, 0; @%p3 bra two;
ld.acquire.gpu.global.u32 %r5, [%rd2]; st.global.u32 [%rd1], 1;
done:"""


def test_what_a_block_is_not_told() -> None:
    assert races_of(OVER, 32, 3, module=WORDS) == ["RAW"]
    assert races_of(READ, 32, 3, module=WORDS) == ["WAR"]


def test_blocks_of_a_cluster_tell_each_other_through_global_memory_too() -> None:
    pair = """mov.u64 %rd1, data; mov.u64 %rd2, flag; setp.ne.u32 %p1, %r0, 0; @%p1 bra done;
setp.eq.u32 %p2, %r60, 0; @%p2 bra zero;
st.global.u32 [%rd1], 7; st.release.gpu.global.u32 [%rd2], 1; bra done;
zero: ld.acquire.gpu.global.u32 %r5, [%rd2]; setp.eq.u32 %p3, %r5, 0; @%p3 bra zero;
ld.global.u32 %r6, [%rd1];
done:"""
    assert races_of(pair, 32, 2, module=WORDS, cluster=2, target="sm_90") == []


def test_threads_that_read_what_one_of_them_writes_may_differ() -> None:
    text = (
        "mov.u64 %rd1, data; setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p2, %r0, 32; or.pred %p3, %p1, %p2;"
        "@%p3 ld.global.u32 %r6, [%rd1]; @%p2 st.global.u32 [%rd1], 1;"
    )
    hazards = ptxemu.Hazards()
    run(text, 64, 1, module=WORDS, observers=hazards)
    assert hazards.may_differ
