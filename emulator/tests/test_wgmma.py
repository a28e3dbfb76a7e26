"""wgmma beyond its numbers: what is in flight, fences and waits, who takes part, races, counters.

Programs have one ``wgmma`` or several: a block's first 128 threads fill 4096 bytes, A first and B 2048 bytes behind,
both K-major without swizzling; %rd10 and %rd11 are their descriptors, %p0 is true, D and a second accumulator E are
zero, A in registers is all ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.programs import refuses, table_of, text_of

import ptxemu
from ptxemu import Counters, EmulationError, Hazards, Instruction, Kernel
from ptxemu.observe.counters import cycles, tensor_cycles
from ptxemu.syntax.tree import Register, Vector
from ptxemu.table import ROWS
from ptxemu.values import Array

MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
D = "{%f0, %f1, %f2, %f3}"
E = "{%f4, %f5, %f6, %f7}"
WIDE = "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}"
A = "{%r10, %r11, %r12, %r13}"
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
SS = f"{MMA} {D}, %rd10, %rd11, %p0, 1, 1, 0, 0;"
RS = f"{MMA} {D}, {A}, %rd11, %p0, 1, 1, 0;"
OTHER = f"{MMA} {E}, %rd10, %rd11, %p0, 1, 1, 0, 0;"
STORE = "st.global.v4.f32 [%rd0], {%f0, %f1, %f2, %f3};"
HEAD = text_of("wgmma")


def kernel(*body: str, memory: int = 4096, head: str = HEAD) -> Kernel:
    """A block's first 128 threads fill 4096 bytes: A first, B 2048 bytes behind; then the body runs."""
    return ptxemu.load(head.replace("MEMORY", str(memory)) + "\n".join(body) + "\nret;\n}\n", path="k.ptx").kernel()


def memory(blocks: int = 1) -> Array:
    """What each block's shared memory is filled with: small f16 integers."""
    return np.random.default_rng(1).integers(-5, 6, (blocks, 2048)).astype(np.float16)


def run(*body: str, threads: int = 128, blocks: int = 1, image: Array | None = None, **options: Any) -> Array:
    """(blocks, threads, 4): the four numbers that each thread stores."""
    out = np.zeros((blocks, threads, 4), np.float32)
    kernel(*body).launch(blocks, threads, (out, memory(blocks) if image is None else image), **options)
    return out


def matrices(image: Array) -> tuple[Array, Array]:
    """A (64, 16) and B (16, 8) of one block's memory, by the canonical layout without swizzling."""
    tiles = image[:1024].reshape(8, 2, 8, 8)  # rows / 8, K / 8, row, K
    a = tiles.transpose(0, 2, 1, 3).reshape(64, 16).astype(np.float64)
    b = image[1024:1152].reshape(2, 8, 8).transpose(1, 0, 2).reshape(8, 16).astype(np.float64)
    return a, b.T


def fragment(d: Array) -> Array:
    """(128, 4): a (64, 8) matrix as the threads of a warpgroup hold it."""
    thread = np.arange(128)
    row, column = 16 * (thread // 32) + thread % 32 // 4, 2 * (thread % 4)
    return np.stack([d[row, column], d[row, column + 1], d[row + 8, column], d[row + 8, column + 1]], axis=1)


def refused(*body: str, threads: int = 128, kind: str, says: str = ".") -> EmulationError:
    """The error of a program that may not run."""
    with refuses(kind, says) as caught:
        run(*body, threads=threads)
    return caught.value


A0, B0 = matrices(memory()[0])
AB, ONES_B = fragment(A0 @ B0), fragment(np.ones((64, 16)) @ B0)
NEVER = "setp.ne.u32 %p4, %r0, %r0;"
ZERO = "mov.b32 %r20, 0;"
OVER_A = "st.shared.v4.b32 [%r5], {%r20, %r20, %r20, %r20};"
OVER_B = "st.shared.v4.b32 [%r5+2048], {%r20, %r20, %r20, %r20};"
WAIT_1 = "wgmma.wait_group.sync.aligned 1;"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((FENCE, SS, COMMIT, WAIT, STORE), AB),
        ((FENCE, SS, SS, RS, COMMIT, WAIT, STORE), 2 * AB + ONES_B),  # a chain needs one fence and adds in order
        ((NEVER, FENCE, SS, RS.replace("%p0", "%p4"), SS, COMMIT, WAIT, STORE), ONES_B + AB),  # and may begin anew
        ((FENCE, SS, COMMIT, OTHER, COMMIT, WAIT_1, STORE, WAIT), AB),  # the newest group is left in flight
        # A in registers may be read after the fence, and while it is multiplied
        ((FENCE, "add.u32 %r20, %r10, %r11;", RS, COMMIT, WAIT, STORE), ONES_B),
        ((FENCE, RS, COMMIT, "add.u32 %r20, %r10, %r11;", WAIT, STORE), ONES_B),
        # shared memory is read as late as the wait: an operand that is overwritten before is wrong numbers on every run
        ((FENCE, SS, COMMIT, ZERO, OVER_B, WAIT, STORE), 0 * AB),
        ((FENCE, SS, COMMIT, WAIT, ZERO, OVER_B, STORE), AB),
        (("or.b64 %rd10, %rd10, 0x1C000C000C000;", FENCE, SS, COMMIT, WAIT, STORE), AB),  # bits that no field has
    ],
)
def test_what_is_multiplied(body: tuple[str, ...], expected: Array) -> None:
    assert np.array_equal(run(*body)[0], expected)


def test_blocks_and_warpgroups_have_matrices_and_scales_of_their_own() -> None:
    wanted = [fragment(a @ b) for a, b in map(matrices, memory(3))]
    for budget in (1 << 30, 40_000):
        assert np.array_equal(run(FENCE, SS, COMMIT, WAIT, STORE, blocks=3, memory_budget=budget), np.array(wanted))
    # warps 4 to 7 multiply by A's second half as their first rows: another descriptor; warp 8 takes no part
    skip = "setp.ge.u32 %p2, %r0, 256; @%p2 bra done; setp.ge.u32 %p3, %r0, 128; selp.b64 %rd12, 64, 0, %p3;"
    image = memory()[0]
    later, _ = matrices(np.concatenate([image[512:1536], image[1024:]]))
    found = run(skip, "add.u64 %rd10, %rd10, %rd12;", FENCE, SS, COMMIT, WAIT, STORE, "done:", threads=288)
    assert np.array_equal(found[0], np.concatenate([AB, fragment(later @ B0), np.zeros((32, 4))]))
    other = "setp.lt.u32 %p0, %r0, 128;"
    found = run(FENCE, SS, COMMIT, WAIT, other, FENCE, SS, COMMIT, WAIT, STORE, threads=256)
    assert np.array_equal(found[0], np.concatenate([2 * AB, AB]))
    loop = ("add.u32 %r21, %r21, 1; setp.lt.u32 %p3, %r21, 3;", "@%p3 bra again;", STORE, "done:")
    alone = "mov.u32 %r21, 0; setp.ge.u32 %p2, %r0, 128; @%p2 bra done; again:"
    assert np.array_equal(run(alone, FENCE, SS, COMMIT, WAIT, *loop, threads=160)[0, :128], 3 * AB)
    turned = SS.replace("%f1, %f2", "%f2, %f1")  # other accumulators, though the first is the same
    assert np.array_equal(run(FENCE, SS, turned, COMMIT, WAIT, STORE)[0], AB + AB[:, [0, 2, 1, 3]])
    apart = "setp.eq.u32 %p3, %r1, 0; @%p3 bra one;"
    found = run(apart, FENCE, SS, "bra both; one:", FENCE, RS, "both:", COMMIT, WAIT, STORE, blocks=2)
    (_, b), (a, late) = map(matrices, memory(2))
    assert np.array_equal(found, [fragment(np.ones((64, 16)) @ b), fragment(a @ late)])


def test_some_warpgroups_multiply_and_matrices_end_with_the_memory() -> None:
    first = "setp.lt.u32 %p2, %r0, 128; selp.b32 %r10, 0, %r10, %p2;"
    skip = "@%p2 add.u64 %rd11, %rd11, %rd2; @%p2 setp.eq.u32 %p0, %r0, 9; @%p2 bra past;"
    rest = (skip, RS, "past:", COMMIT, WAIT, STORE)
    assert np.array_equal(run(first, FENCE, *rest, threads=256)[0], [*(0 * AB), *ONES_B])
    assert np.array_equal(run(first, FENCE, SS, *rest, threads=256)[0], [*AB, *(AB + ONES_B)])
    found = run("setp.eq.u32 %p2, %r1, 0;", FENCE, SS, *rest, blocks=2)  # the same warpgroup of one block alone
    (a, b), (c, d) = map(matrices, memory(2))
    assert np.array_equal(found, [fragment(a @ b), fragment((c + 1) @ d)])
    cross = "shr.u32 %r20, %r0, 7; setp.eq.u32 %p2, %r20, %r1;"  # of each block another warpgroup
    found = run(cross, FENCE, *rest, threads=256, blocks=2)
    ones = [fragment(np.ones((64, 16)) @ each) for each in (b, d)]
    assert np.array_equal(found, [[*(0 * AB), *ones[0]], [*ones[1], *(0 * AB)]])
    for torn in ("setp.eq.u32 %p2, %r3, 205;", "sub.u32 %r20, %r3, 192; setp.lt.u32 %p2, %r20, 32;"):
        with refuses("divergent-warp") as caught:  # a lane or a warp of the second block alone
            run(torn, FENCE, *rest, blocks=2)
        assert (caught.value.block, caught.value.lane) == ((1, 0, 0), 64 * ("205" in torn))
    image = memory()[0]
    _, end = matrices(np.concatenate([image[:1024], image[1920:]]))
    last = "add.u64 %rd11, %rd11, 112;"
    assert np.array_equal(run(last, FENCE, SS, COMMIT, WAIT, STORE)[0], fragment(A0 @ end))
    last, says = last.replace("112", "114"), "matrix B .* reaches 32 bytes past"
    assert refused(last, FENCE, SS, kind="out-of-bounds", says=says).address == 1024 + 4096
    for who, where, place in (("%r1, 1", (1, 0, 0), "start 0x1c00"), ("%r0, 128", (0, 0, 0), "start 0x1c00")):
        wrong = f"setp.ge.u32 %p3, {who}; selp.b64 %rd12, 256, 0, %p3; add.u64 %rd11, %rd11, %rd12;"
        with refuses("uninitialised", f"matrix B .*{place}") as caught:
            kernel(wrong, FENCE, SS, memory=8192).launch(2, 256, (np.zeros(8192, "f4"), memory(2)))
        assert caught.value.block == where


@pytest.mark.parametrize(("value", "chained"), [(2048, 2048), (1024, 1026)])
def test_half_sums_are_rounded_after_each_product(value: int, chained: int) -> None:
    """2048 + 1 is 2048 in f16, and so is that plus 1."""
    image = np.zeros((1, 2048), np.float16)
    image[0, 1024:1088:8] = 1  # of B's first row alone, so that every product adds 1
    bits = int(np.array(value, np.float16).view(np.uint16)) * 0x10001
    half = f"wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {{%r20, %r21}}, {A}, %rd11, %p0, 1, 1, 0;"
    load = f"mov.b32 %r20, {bits}; mov.b32 %r21, {bits};"
    show = "mov.b32 %f0, %r20; mov.b32 %f1, %r21;"
    out = run(load, FENCE, half, half, COMMIT, WAIT, show, STORE, image=image)[0]
    assert (out[:, :2].copy().view(np.float16) == chained).all()


@pytest.mark.parametrize(
    ("clamp", "start", "a", "wanted"),
    [
        (".satfinite", 2**31 - 40, 1, 2**31 - 1),
        (".satfinite", 40 - 2**31, -1, -(2**31)),
        ("", 2**31 - 40, 1, 24 - 2**31),
        ("", 40 - 2**31, -1, 2**31 - 24),
    ],
)
def test_integer_sums_wrap_or_are_clamped(clamp: str, start: int, a: int, wanted: int) -> None:
    """Twice 32 products of 1 or -1."""
    image = np.full((1, 4096), 1, np.int8).view(np.float16)
    d, left = "{%r20, %r21, %r22, %r23}", "{%r24, %r25, %r26, %r27}"
    whole = f"wgmma.mma_async.sync.aligned.m64n8k32{clamp}.s32.s8.s8 {d}, {left}, %rd11, %p0;"
    load = " ".join(f"mov.b32 %r{20 + i}, {start & 0xFFFFFFFF};" for i in range(4))
    load += " ".join(f"mov.b32 %r{24 + i}, {0x01010101 * (a & 0xFF)};" for i in range(4))
    show = " ".join(f"mov.b32 %f{i}, %r{20 + i};" for i in range(4))
    out = run(load, FENCE, whole, whole, COMMIT, WAIT, show, STORE, image=image)[0]
    assert (out.view(np.int32) == wanted).all()


def table(name: str) -> list[tuple[Any, ...]]:
    """Rows of the table ``wgmma``: a body, in which constants of this module go by their names, and what is found."""
    return [(tuple(globals().get(part, part) for part in body), *rest) for body, *rest in table_of("wgmma", name)]


@pytest.mark.parametrize(("body", "what"), table("in flight"))
def test_a_register_in_flight_may_not_be_touched(body: tuple[str, ...], what: str) -> None:
    error = refused(*body, kind="in-flight", says=what)
    first = body[1]
    assert f"found `{OTHER if OTHER in body else first}` (line " in str(error)
    assert "not waited for" in str(error)


@pytest.mark.parametrize(("body", "what", "found"), table("fences"))
def test_a_missing_fence_is_an_error(body: tuple[str, ...], what: str, found: str) -> None:
    error = refused(*body, COMMIT, WAIT, kind="missing-fence")
    assert what in str(error)
    assert found in str(error)
    assert ("warpgroup_fence_operand" in str(error)) == found.startswith("mov")  # what nvcc itself puts there
    run(*body[:-1], FENCE, body[-1], COMMIT, WAIT, STORE)


def test_a_fence_of_one_warpgroup_is_not_anothers() -> None:
    apart = "setp.ge.u32 %p2, %r0, 128; @%p2 bra later;"
    error = refused(apart, FENCE, "later:", SS, COMMIT, WAIT, threads=256, kind="missing-fence")
    assert error.lane == 128
    body = ("shr.u32 %r20, %r0, 5; setp.eq.u32 %p2, %r20, 5;", FENCE, "@%p2 mov.f32 %f2, 0f00000000;", SS)
    assert refused(*body, threads=256, kind="missing-fence", says="%f2 of a wgmma was written after").lane == 160


def test_all_four_warps_take_part() -> None:
    error = refused("setp.ge.u32 %p2, %r0, 96; @%p2 bra done;", FENCE, SS, COMMIT, WAIT, "done:", kind="divergent-warp")
    assert "expected warps 0 to 3" in str(error)
    assert "warps 0, 1, 2" in str(error)
    assert "warps 0, 1" in str(refused(FENCE, SS, threads=64, kind="divergent-warp"))
    part = refused("setp.eq.u32 %p2, %r0, 77; @%p2 bra done;", FENCE, SS, "done:", kind="divergent-warp")
    assert part.lane is not None
    assert part.lane // 32 == 2


@pytest.mark.parametrize("left_out", [COMMIT, WAIT], ids=["commit", "wait"])
def test_one_warpgroup_neither_commits_nor_waits_for_another(left_out: str) -> None:
    skip = f"setp.ge.u32 %p2, %r0, 128; @%p2 bra skip; {left_out} skip:"
    body = [skip if part == left_out else part for part in (FENCE, SS, COMMIT, WAIT)]
    assert refused(*body, STORE, threads=256, kind="in-flight", says="%f0 is read while a wgmma writes").lane == 128


def test_warps_meet_at_the_fence_however_they_come() -> None:
    """Warp 2 waits at a barrier that warp 4 reaches late; the other three wait for it at the fence."""
    apart = "shr.u32 %r20, %r0, 5; setp.eq.u32 %p2, %r20, 2; @%p2 bar.sync 1, 64; setp.eq.u32 %p3, %r20, 4;"
    found = run(apart, "@%p3 bra late;", FENCE, SS, COMMIT, WAIT, STORE, "ret; late:", "bar.sync 1, 64;", threads=160)
    assert np.array_equal(found[0, :128], AB)


def test_a_warp_that_never_comes_to_the_fence_is_a_deadlock() -> None:
    apart = "shr.u32 %r20, %r0, 5; setp.eq.u32 %p2, %r20, 2; @%p2 bar.sync 1, 64;"
    says = "wgmma.fence for others of their warpgroup"
    error = str(refused(apart, FENCE, SS, COMMIT, WAIT, kind="deadlock", says=says))
    assert ("without warp 2 of the warpgroup" in error, "barrier 1" in error) == (True, True)
    late = "@%p4 bra late; setp.eq.u32 %p3, %r20, 1; @%p3 bar.sync 2, 64;"  # warp 1 comes after 0 and 3
    body = (f"{apart} setp.eq.u32 %p4, %r20, 4;", late, FENCE, SS, COMMIT, WAIT, "ret; late:", "bar.sync 2, 64;")
    assert str(refused(*body, threads=160, kind="deadlock")).count("without warp 2 of the warpgroup") == 2


@pytest.mark.parametrize(("body", "says", "lane"), table("second warpgroup"))
def test_a_message_names_warps_of_the_second_warpgroup(body: tuple[str, ...], says: str, lane: int) -> None:
    warp = "shr.u32 %r20, %r0, 5; setp.eq.u32 %p2, %r20, 6;"
    assert refused(warp, *body, threads=256, kind="divergent-warp", says=says).lane == lane


WARP = "shr.u32 %r20, %r0, 5; setp.eq.u32 %p2, %r20, 2;"  # true in warp 2 alone


@pytest.mark.parametrize(("body", "expected", "found"), table("waits"))
@pytest.mark.parametrize("schedule", ["together", "reverse", 1])
def test_a_warp_waits_where_all_four_do(body: tuple[str, ...], expected: str, found: str, schedule: str | int) -> None:
    """wait_group and commit_group are .aligned over the warpgroup, though each warp executes them for itself."""
    out = np.zeros((1, 128, 4), np.float32)
    with pytest.raises(EmulationError, match="the four warps of a warpgroup execute the same wgmma") as caught:
        kernel(WARP, FENCE, SS, COMMIT, *body).launch((1,), (128,), (out, memory()), schedule=schedule)
    assert caught.value.kind == "divergent-warp"
    if schedule == "together":
        assert expected in str(caught.value)
        assert found in str(caught.value)


TWICE = "mov.u32 %r21, 0; @%p2 bra {};"  # warp 2 comes to a wait that the others had before; then all are through
AGAIN = ("again:", WAIT, "setp.eq.u32 %p3, %r21, 1; @%p3 bra done;")


@pytest.mark.parametrize("meeting", [("fence:", FENCE), ("fence:", SS)], ids=["fence", "product"])
def test_where_the_four_meet_is_part_of_the_order(meeting: tuple[str, str]) -> None:
    """One wait instruction, before the meeting in three warps and behind it in the fourth; a ninth takes no part."""
    out = np.zeros((1, 288, 4), np.float32)
    body = ("setp.ge.u32 %p4, %r0, 256; @%p4 bra done;", FENCE, SS, COMMIT, TWICE.format("fence"), *AGAIN)
    behind = ("mov.u32 %r21, 1; @%p2 bra again;", "done:")
    with refuses("divergent-warp"):
        kernel(WARP, *body, *meeting, *behind).launch((1,), (288,), (out, memory()))
    kernel(WARP, *body[:-3], *meeting, WAIT, "done:").launch((1,), (288,), (out, memory()))


@pytest.mark.parametrize("schedule", ["together", "reverse", 1, 2, 3])
def test_what_one_warpgroup_has_done_is_no_difference_when_it_parts_again(schedule: str | int) -> None:
    """The second one is apart over one wait all the time; the first over a wait, then level, then over a commit."""
    second = ("setp.ge.u32 %p3, %r0, 128; setp.eq.u32 %p4, %r20, 6; @%p4 bar.sync 2, 256;", "@%p3 bra second;")
    first = (
        "bar.sync 4, 224;", "@%p2 bar.sync 1, 128;", WAIT, "@!%p2 bar.arrive 1, 128;", "bar.sync 3, 128;",
        "@%p2 bar.sync 1, 128;", COMMIT, "@!%p2 bar.arrive 1, 128;", "bar.arrive 2, 256;", "bra done;",
    )  # fmt: skip
    rest = ("second:", WAIT, "@!%p4 bar.arrive 4, 224;", "@!%p4 bar.arrive 2, 256;", "done:")
    out = np.zeros((1, 256, 4), np.float32)
    body = (WARP, FENCE, SS, COMMIT, *second, *first, *rest)
    kernel(*body).launch((1,), (256,), (out, memory()), schedule=schedule)


@pytest.mark.parametrize("schedule", ["together", "reverse", 1])
def test_warps_may_come_to_a_wait_one_by_one(schedule: str | int) -> None:
    """Warp 2 goes another way to the same instructions, and the second warpgroup waits where the first one does not."""
    apart = ("@%p2 bra late;", "early:", COMMIT, WAIT, STORE, "bra done;", "late: add.u32 %r20, %r20, 1; bra early;")
    group = ("setp.ge.u32 %p3, %r0, 128;", "@!%p3 bra past;", WAIT, "past:")
    out = np.zeros((1, 256, 4), np.float32)
    kernel(WARP, FENCE, SS, COMMIT, *group, *apart, "done:").launch((1,), (256,), (out, memory()), schedule=schedule)
    assert np.array_equal(out[0], np.tile(AB, (2, 1)))


def test_a_warpgroup_agrees_on_descriptors_and_scale() -> None:
    warp = "shr.u32 %r20, %r0, 5; cvt.u64.u32 %rd12, %r20;"
    error = refused(warp, "add.u64 %rd11, %rd11, %rd12;", FENCE, SS, kind="divergent-warp")
    assert "a descriptor of a wgmma is not the same in all threads" in str(error)
    assert " and " in str(error).partition(": found ")[2]
    error = refused(warp, "setp.eq.u32 %p0, %r20, 1;", FENCE, SS, kind="divergent-warp")
    assert "scale-d of a wgmma is not the same in all threads" in str(error)


def test_a_matrix_lies_in_written_shared_memory() -> None:
    error = refused("add.u64 %rd11, %rd11, 0x90;", FENCE, SS, kind="out-of-bounds")
    assert "matrix B of a wgmma reaches 512 bytes past the end of the block's 4096 bytes" in str(error)
    assert "start 0x1500, leading offset 128, stride offset 256" in str(error)
    turned = "add.u64 %rd11, %rd11, 0x90; or.b64 %rd11, %rd11, 0x800A000000000000;"
    assert "base offset 5, swizzle 64B" in str(refused(turned, FENCE, SS, kind="out-of-bounds"))
    for highest in (13, 29, 45):  # of start, leading and stride offset
        refused(f"or.b64 %rd10, %rd10, {1 << highest};", FENCE, SS, kind="out-of-bounds", says="matrix A .* reaches")
    with pytest.raises(EmulationError) as caught:
        beyond = kernel("add.u64 %rd11, %rd11, 0x80;", FENCE, SS, memory=8192)
        beyond.launch((1,), (128,), (np.zeros(512, np.float32), memory()))
    assert (caught.value.kind, caught.value.address) == ("uninitialised", 1024 + 4096)


@pytest.mark.parametrize(("body", "what", "numbers"), table("forms"))
def test_what_is_not_well_formed(body: tuple[str, ...], what: str, numbers: str) -> None:
    error = refused(FENCE, *body, COMMIT, WAIT, kind="syntax")
    assert what in str(error)
    assert numbers in str(error)


def test_how_wide_a_product_may_be() -> None:
    widths = {"k16.f32.bf16.bf16": range(8, 257, 8), "k32.s32.u8.s8": [8, 16, 24, *range(32, 257, 16)]}
    for kind, some in widths.items():
        assert [n for n in range(300) if f"wgmma.mma_async.sync.aligned.m64n{n}{kind}" in ROWS] == [*some]


def test_only_constants_are_waited_for() -> None:
    assert "a constant" in str(refused("wgmma.wait_group.sync.aligned %r0;", kind="unsupported"))


def test_what_a_shuffle_left_undefined_may_not_be_multiplied() -> None:
    shuffle = "setp.lt.u32 %p2, %r0, 8; @!%p2 bra skip; shfl.sync.down.b32 %r10, %r10, 4, 31, 0xff; skip:"
    error = refused(shuffle, FENCE, RS, COMMIT, WAIT, kind="undefined")
    assert "an undefined value goes into a wgmma" in str(error)


# --- races ---

CONSUMERS = "setp.ge.u32 %p2, %r0, 128; @%p2 bra other;"
LEAVE = "ret; other:"
ARRIVE = "bar.arrive 1, 160;"
MEET = "bar.sync 1, 160;"
LATE = "sub.u32 %r21, %r5, 2048;"  # the fifth warp writes where the first one's part of A and B lie


def races(*body: str, threads: int = 128, blocks: int = 1, **options: Any) -> list[tuple[str, str, str]]:
    """Kind, first and second opcode (their first words) of each report."""
    found = Hazards()
    run(*body, threads=threads, blocks=blocks, observers=found, **options)
    words = ((each.kind, each.first.opcode, each.second.opcode) for each in found.reports)
    return [(kind, first.partition(".")[0], second.partition(".")[0]) for kind, first, second in words]


PROXY = "fence.proxy.async.shared::cta;"


@pytest.mark.parametrize(("body", "found"), table("races"))
def test_a_matrix_is_written_in_order(body: tuple[str, ...], found: list[list[str]]) -> None:
    assert [list(race) for race in races(*body, blocks=3)] == found


def test_all_threads_of_the_warpgroup_have_to_know_of_a_write() -> None:
    """Without a barrier a thread knows of its own write alone."""
    assert ("RAW", "st", "wgmma") in races(ZERO, OVER_B, PROXY, FENCE, RS, COMMIT, WAIT)


def test_a_stage_is_released_after_the_wait() -> None:
    """Warp 4 writes over the matrices when the consumers have arrived at barrier 1."""
    writer = (LEAVE, MEET, ZERO, LATE, "st.shared.v4.b32 [%r21], {%r20, %r20, %r20, %r20};")
    assert races(CONSUMERS, FENCE, SS, COMMIT, WAIT, ARRIVE, STORE, *writer, threads=160) == []
    early = races(CONSUMERS, FENCE, SS, COMMIT, ARRIVE, WAIT, STORE, *writer, threads=160)
    assert early
    assert {kind for kind, _, _ in early} <= {"WAR", "async overwrite"}


@pytest.mark.parametrize(("meet", "found"), [("", [("WAR", "wgmma", "st")]), ("bar.sync 0;", [])], ids=["alone", "met"])
def test_a_warp_that_has_waited_knows_nothing_of_the_others(meet: str, found: list[tuple[str, str, str]]) -> None:
    """The first warp comes to the wait before the others, who are held up at a barrier until it has waited."""
    first = ("setp.lt.u32 %p2, %r0, 32; @!%p2 bar.sync 1, 128;", WAIT, "@%p2 bar.arrive 1, 128;")
    over = ("@!%p2 bra over;", OVER_B, "over:")
    assert races(FENCE, SS, COMMIT, *first, meet, ZERO, *over) == found


@pytest.mark.parametrize("per_block", ["", "mul.wide.u32 %rd12, %r1, 0; add.u64 %rd10, %rd10, %rd12;"])
def test_in_a_cluster_each_block_has_its_own_matrices(per_block: str) -> None:
    """The same descriptors in both blocks, once as one number for both and once as one for each."""
    for body, kinds in (
        ((FENCE, SS, COMMIT, WAIT, "bar.sync 0;", ZERO, OVER_A), set()),
        ((FENCE, SS, COMMIT, ZERO, OVER_A, WAIT), {"async overwrite"}),
    ):
        hazards = Hazards()
        out = memory(4).astype("f4")
        kernel(per_block, *body).launch((4,), (128,), (out, memory(4)), cluster=2, observers=(hazards,))
        assert {each.kind for each in hazards.reports} == kinds
        assert {each.count for each in hazards.reports} <= {4 * 128}


def test_the_peer_may_not_write_over_a_matrix_that_is_read() -> None:
    """The second block of a cluster stores into the first one's B while that multiplies, or after both have met."""
    remote = (
        "setp.ne.u32 %p3, %r1, 1; mov.u32 %r22, 0; mapa.shared::cluster.u32 %r23, %r5, %r22; mov.b32 %r20, 0;"
        "@!%p3 st.shared::cluster.b32 [%r23+2048], %r20;"
    )
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    for body, found in (
        ((meet, FENCE, SS, COMMIT, WAIT, meet, remote, meet), False),
        ((meet, FENCE, SS, COMMIT, WAIT, remote, meet), True),
    ):
        hazards = Hazards()
        out = memory(2).astype("f4")
        kernel(*body).launch((2,), (128,), (out, memory(2)), cluster=2, observers=(hazards,))
        assert bool(hazards.reports) == found, hazards.render()
        assert {each.second.opcode for each in hazards.reports} <= {"st.shared::cluster.b32"}
        assert {each.first_block for each in hazards.reports} <= {(0, 0, 0)}


# --- counters ---------------------------------------------------------------------------------------------------------


def test_products_count_by_warp_and_cycles_by_warpgroup() -> None:
    counters = Counters()
    skip = "setp.ge.u32 %p2, %r0, 256; @%p2 bra done;"
    run(skip, FENCE, SS, RS, SS, COMMIT, WAIT, "done:", threads=288, blocks=2, observers=counters)
    warpgroups = 2 * 2
    assert counters.as_dict()["smsp__inst_executed_pipe_tensor.sum"] == 3 * 4 * warpgroups
    assert counters.tensor_cycles == 3 * 4 * warpgroups  # N = 8: 4 cycles each
    assert counters.wgmma_shared_bytes == warpgroups * (2 * (64 + 8) * 32 + 8 * 32)
    assert counters.short()["wgmma_cycles"][0] == counters.wgmma_cycles == warpgroups * (2 * 18 + 4)


def test_narrow_products_wait_for_a() -> None:
    """Per cent of the tensor cores' peak; an H800 was measured at 21, 38, 63 and 95 up (arXiv 2402.13499)."""
    descriptor = Register("%rd0")
    for n, share in ((8, 22), (16, 40), (32, 66), (64, 100), (128, 100), (256, 100)):
        operands = (Vector((Register("%f0"),)), descriptor, descriptor)
        instruction = Instruction(f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16", operands)
        assert 100 * tensor_cycles(instruction) // cycles(instruction) == share
    assert cycles(Instruction("wgmma.fence.sync.aligned")) == 0
