"""wgmma beyond its numbers: what is in flight, what a fence and a wait order, who takes part, where matrices may lie.

Numbers, layouts and types are in tests/emulator_cases/wgmma.py. Run: pytest tests/null/emulator/test_wgmma.py
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.wgmma_programs import (
    COMMIT,
    FENCE,
    MMA,
    OTHER,
    RS,
    SS,
    STORE,
    WAIT,
    WIDE,
    D,
    E,
    fragment,
    kernel,
    matrices,
    memory,
    run,
)

from ptxemu import EmulationError


def refused(*body: str, threads: int = 128, kind: str) -> EmulationError:
    """The error of a program that may not run."""
    with pytest.raises(EmulationError) as caught:
        run(*body, threads=threads)
    assert caught.value.kind == kind, caught.value
    return caught.value


def test_one_product() -> None:
    a, b = matrices(memory()[0])
    assert np.array_equal(run(FENCE, SS, COMMIT, WAIT, STORE)[0], fragment(a @ b))


def test_each_block_has_its_own_matrices_however_the_grid_is_cut() -> None:
    wanted = [fragment(a @ b) for a, b in map(matrices, memory(3))]
    for budget in (1 << 30, 40_000):
        found = run(FENCE, SS, COMMIT, WAIT, STORE, blocks=3, memory_budget=budget)
        assert np.array_equal(found, np.array(wanted))


def test_two_warpgroups_and_a_warp_that_takes_no_part() -> None:
    """Warps 4 to 7 multiply by A's second half as their first rows: another descriptor; warp 8 skips all."""
    skip = "setp.ge.u32 %p2, %r0, 256; @%p2 bra done; setp.ge.u32 %p3, %r0, 128; selp.b64 %rd12, 64, 0, %p3;"
    moved = "and.b64 %rd13, %rd10, 0xffffffff00000000; mov.b64 %rd13, %rd10; add.u64 %rd10, %rd10, %rd12;"
    found = run(skip, moved, FENCE, SS, COMMIT, WAIT, STORE, "done:", threads=288)
    image = memory()[0]
    a, b = matrices(image)
    assert np.array_equal(found[0, :128], fragment(a @ b))
    later, _ = matrices(np.concatenate([image[512:1536], image[1024:]]))
    assert np.array_equal(found[0, 128:256], fragment(later @ b))
    assert not found[0, 256:].any()


def test_a_chain_needs_one_fence_and_adds_in_order() -> None:
    a, b = matrices(memory()[0])
    found = run(FENCE, SS, SS, RS, COMMIT, WAIT, STORE)
    assert np.array_equal(found[0], fragment(2 * (a @ b) + np.ones((64, 16)) @ b))


def test_shared_memory_is_read_as_late_as_the_wait() -> None:
    """An operand that is overwritten before the wait is wrong numbers on every run."""
    overwrite = "mov.b32 %r20, 0; st.shared.v4.b32 [%r5+2048], {%r20, %r20, %r20, %r20};"
    assert not run(FENCE, SS, COMMIT, overwrite, WAIT, STORE)[0].any()
    assert run(FENCE, SS, COMMIT, WAIT, overwrite, STORE)[0].any()


def test_wait_group_leaves_the_newest_groups_in_flight() -> None:
    a, b = matrices(memory()[0])
    both = (FENCE, SS, COMMIT, OTHER, COMMIT)
    found = run(*both, "wgmma.wait_group.sync.aligned 1;", STORE, WAIT)
    assert np.array_equal(found[0], fragment(a @ b))
    second = STORE.replace("%f0, %f1, %f2, %f3", "%f4, %f5, %f6, %f7")
    error = refused(*both, "wgmma.wait_group.sync.aligned 1;", second, WAIT, kind="in-flight")
    assert "register %f4 is read while a wgmma writes it" in str(error)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ((FENCE, SS, COMMIT, STORE, WAIT), "register %f0 is read while a wgmma writes it"),
        ((FENCE, SS, WAIT, STORE), "register %f0 is read while a wgmma writes it"),  # no commit: nothing to wait for
        ((FENCE, SS, COMMIT, "mov.f32 %f1, 0f00000000;", WAIT), "register %f1 is overwritten while a wgmma writes it"),
        ((FENCE, RS, COMMIT, "mov.b32 %r11, 0;", WAIT), "register %r11 is overwritten while a wgmma reads it"),
        (
            (FENCE, RS, COMMIT, f"{MMA} {E}, {{%f0, %r11, %r12, %r13}}, %rd11, %p0, 1, 1, 0;"),
            "register %f0 is A of a wgmma while another one writes it",
        ),
        (
            (FENCE, RS, COMMIT, f"{MMA} {{%r10, %f4, %f5, %f6}}, %rd10, %rd11, %p0, 1, 1, 0, 0;"),
            "register %r10 is an accumulator while a wgmma reads it as A",
        ),
        (
            (FENCE, SS, COMMIT, f"{MMA.replace('n8', 'n16')} {WIDE}, %rd10, %rd11, %p0, 1, 1, 0, 0;"),
            "register %f0 is an accumulator of two shapes at once",
        ),
    ],
)
def test_a_register_in_flight_may_not_be_touched(body: tuple[str, ...], what: str) -> None:
    error = refused(*body, kind="in-flight")
    assert what in str(error)
    first = body[1]
    assert f"found `{first}` (line " in str(error)
    assert "not waited for" in str(error)


def test_a_in_registers_may_be_read_while_it_is_multiplied() -> None:
    _, b = matrices(memory()[0])
    found = run(FENCE, RS, COMMIT, "add.u32 %r20, %r10, %r11;", WAIT, STORE)
    assert np.array_equal(found[0], fragment(np.ones((64, 16)) @ b))


@pytest.mark.parametrize(
    ("body", "what", "found"),
    [
        ((SS,), "wgmma before any wgmma.fence", ""),
        ((FENCE, "mov.f32 %f2, 0f3F800000;", SS), "register %f2 of a wgmma was written after", "mov.f32 %f2"),
        ((FENCE, "add.f32 %f9, %f2, %f2;", SS), "register %f2 of a wgmma was read after", "add.f32 %f9, %f2"),
        ((FENCE, "mov.b32 %r12, 0;", RS), "register %r12 of a wgmma was written after", "mov.b32 %r12, 0"),
        ((FENCE, SS, COMMIT, WAIT, "mul.f32 %f3, %f3, 0f40000000;", SS), "register %f3 of a wgmma was", "mul.f32 %f3"),
    ],
)
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


def test_all_four_warps_take_part() -> None:
    error = refused("setp.ge.u32 %p2, %r0, 96; @%p2 bra done;", FENCE, SS, COMMIT, WAIT, "done:", kind="divergent-warp")
    assert "expected warps 0 to 3" in str(error)
    assert "warps 0, 1, 2" in str(error)
    assert "warps 0, 1" in str(refused(FENCE, SS, threads=64, kind="divergent-warp"))
    part = refused("setp.eq.u32 %p2, %r0, 77; @%p2 bra done;", FENCE, SS, "done:", kind="divergent-warp")
    assert part.lane is not None
    assert part.lane // 32 == 2


def test_warps_meet_at_the_fence_however_they_come() -> None:
    """Warp 2 waits at a barrier that warp 4 reaches late; the other three wait for it at the fence."""
    a, b = matrices(memory()[0])
    apart = "shr.u32 %r20, %r0, 5; setp.eq.u32 %p2, %r20, 2; @%p2 bar.sync 1, 64; setp.eq.u32 %p3, %r20, 4;"
    found = run(apart, "@%p3 bra late;", FENCE, SS, COMMIT, WAIT, STORE, "ret; late:", "bar.sync 1, 64;", threads=160)
    assert np.array_equal(found[0, :128], fragment(a @ b))


def test_a_warp_that_never_comes_to_the_fence_is_a_deadlock() -> None:
    apart = "shr.u32 %r20, %r0, 5; setp.eq.u32 %p2, %r20, 2; @%p2 bar.sync 1, 64;"
    error = refused(apart, FENCE, SS, COMMIT, WAIT, kind="deadlock")
    assert "warps wait at wgmma.fence for others of their warpgroup" in str(error)
    assert "without warp 2 of the warpgroup" in str(error)
    assert "barrier 1" in str(error)


WARP = "shr.u32 %r20, %r0, 5; setp.eq.u32 %p2, %r20, 2;"  # true in warp 2 alone
ONE = "wgmma.wait_group.sync.aligned 1;"


@pytest.mark.parametrize(
    ("body", "expected", "found"),
    [
        (("@!%p2 bra past;", WAIT, "past:", WAIT, STORE), "warp 2 executed", "wait_group.sync.aligned 0;` (line"),
        (("@%p2 bra past;", WAIT, "past:", WAIT, STORE), "warps 0, 1, 3 executed", "in warp 2"),
        (("@%p2 bra other;", WAIT, "bra past;", "other:", ONE, "past:", WAIT), "executed", "wait_group.sync.aligned 1"),
        (("@!%p2 bra past;", COMMIT, "past:", WAIT, STORE), "commit_group.sync.aligned;` (line", "warps 0, 1, 3"),
        (("@!%p2 bra past;", WAIT, "past:", FENCE, SS, COMMIT, WAIT), "wait_group", "wgmma.fence.sync.aligned;` (line"),
        (("@%p2 bra done;", WAIT, STORE, "done:"), "expected warps 0 to 3", "only warps 0, 1, 3"),
        ((WAIT, "@!%p2 bra done;", WAIT, "done:"), "expected warps 0 to 3", "only warp 2"),
        (("@!%p2 bra done;", WAIT, COMMIT, "done:"), "in `wgmma.wait_group.sync", "only warp 2"),
    ],
)
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
    with pytest.raises(EmulationError) as caught:
        kernel(WARP, *body, *meeting, *behind).launch((1,), (288,), (out, memory()))
    assert caught.value.kind == "divergent-warp"
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
    a, b = matrices(memory()[0])
    apart = ("@%p2 bra late;", "early:", COMMIT, WAIT, STORE, "bra done;", "late: add.u32 %r20, %r20, 1; bra early;")
    group = ("setp.ge.u32 %p3, %r0, 128;", "@!%p3 bra past;", WAIT, "past:")
    out = np.zeros((1, 256, 4), np.float32)
    kernel(WARP, FENCE, SS, COMMIT, *group, *apart, "done:").launch((1,), (256,), (out, memory()), schedule=schedule)
    assert np.array_equal(out[0], np.tile(fragment(a @ b), (2, 1)))


@pytest.mark.parametrize("schedule", ["reverse", 1, 2])
def test_the_order_in_which_warps_run_changes_nothing(schedule: str | int) -> None:
    body = ("setp.ge.u32 %p2, %r0, 256; @%p2 bra done;", FENCE, SS, RS, COMMIT, WAIT, STORE, "done:")
    out = np.zeros((2, 288, 4), np.float32)
    kernel(*body).launch((2,), (288,), (out, memory(2)), schedule=schedule)
    assert np.array_equal(out, run(*body, threads=288, blocks=2))


def test_a_warpgroup_agrees_on_descriptors_and_scale() -> None:
    warp = "shr.u32 %r20, %r0, 5; cvt.u64.u32 %rd12, %r20;"
    error = refused(warp, "add.u64 %rd11, %rd11, %rd12;", FENCE, SS, kind="divergent-warp")
    assert "a descriptor of a wgmma is not the same in all threads" in str(error)
    error = refused(warp, "setp.eq.u32 %p0, %r20, 1;", FENCE, SS, kind="divergent-warp")
    assert "scale-d of a wgmma is not the same in all threads" in str(error)


def test_a_matrix_lies_in_written_shared_memory() -> None:
    error = refused("add.u64 %rd11, %rd11, 0x90;", FENCE, SS, kind="out-of-bounds")
    assert "matrix B of a wgmma reaches 512 bytes past the end of the block's 4096 bytes" in str(error)
    assert "start 0x1100, leading offset 128, stride offset 256" in str(error)
    with pytest.raises(EmulationError) as caught:
        kernel("add.u64 %rd11, %rd11, 0x80;", FENCE, SS, memory=8192).launch(
            (1,), (128,), (np.zeros(512, np.float32), memory())
        )
    assert (caught.value.kind, caught.value.address) == ("uninitialised", 4096)


@pytest.mark.parametrize(
    ("line", "what", "numbers"),
    [
        (f"{MMA} {{%f0, %f1}}, %rd10, %rd11, %p0, 1, 1, 0, 0;", "registers of D", "expected 4, found 2"),
        (f"{MMA} {D}, {{%r10, %r11}}, %rd11, %p0, 1, 1, 0;", "registers of A", "expected 4, found 2"),
        (f"{MMA} {D}, %rd10, %rd11, %p0, 1, 1;", "operands of wgmma", "expected 8, found 6"),
        (f"{MMA} {D}, %rd10, %rd11, %p0, 1, 2, 0, 0;", "operand 6 of wgmma", "expected 1 or -1, found 2"),
        (f"{MMA} {{%f0, %f1, %f1, %f2}}, %rd10, %rd11, %p0, 1, 1, 0, 0;", "registers of wgmma", "each named once"),
    ],
)
def test_what_is_not_well_formed(line: str, what: str, numbers: str) -> None:
    error = refused(FENCE, line, COMMIT, WAIT, kind="syntax")
    assert what in str(error)
    assert numbers in str(error)


def test_only_constants_are_waited_for() -> None:
    assert "a constant" in str(refused("wgmma.wait_group.sync.aligned %r0;", kind="unsupported"))


def test_what_a_shuffle_left_undefined_may_not_be_multiplied() -> None:
    shuffle = "setp.lt.u32 %p2, %r0, 8; @!%p2 bra skip; shfl.sync.down.b32 %r10, %r10, 4, 31, 0xff; skip:"
    error = refused(shuffle, FENCE, RS, COMMIT, WAIT, kind="undefined")
    assert "an undefined value goes into a wgmma" in str(error)
