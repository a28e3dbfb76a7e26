"""CTA barriers: data that crosses them, named ones, reductions, exited threads, misuse; and the races around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.programs import races_of, refuses, run, table_of

SHARED = ".shared .align 16 .b8 tile[4096];"
OWN = "mov.u32 %r10, tile; shl.b32 %r11, %r0, 2; add.u32 %r11, %r10, %r11; "
PUT = OWN + "st.shared.u32 [%r11], %r0;"
LEAVE = "setp.ge.u32 %p1, %r0, {}; @%p1 ret;"
EXCHANGE = (
    PUT
    + """bar.sync 0; xor.b32 %r12, %r0, {}; shl.b32 %r12, %r12, 2; add.u32 %r12, %r10, %r12;
ld.shared.u32 %r13, [%r12]; st.global.u32 [%rd0], %r13;"""
)
LOOP = "{0}: bar.sync 1, 64; add.u32 %r20, %r20, 1; setp.lt.u32 %p2, %r20, 3; @%p2 bra {0};"
STORE_5 = "st.global.u32 [%rd0], %r5;"
SPIN = "mov.u32 %r7, 0; spin: add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 20; @%p2 bra spin;"
THREADS = np.arange(64)


@pytest.mark.parametrize(
    ("body", "threads", "blocks", "expected"),
    [
        (EXCHANGE.format(96), 128, 2, np.arange(128) ^ 96),
        # warps at one barrier from different loops
        ((f"mov.u32 %r20, 0; setp.ge.u32 %p1, %r0, 32; @%p1 bra b; {LOOP.format('a')} bra done; {LOOP.format('b')} "
         "done: st.global.u32 [%rd0], %r20;"), 64, 1, 3),
        # a producer signals, a consumer waits
        ((f"{OWN} setp.ge.u32 %p1, %r0, 32; @%p1 bra take; st.shared.u32 [%r11], %r0; bar.arrive 2, 64; "
         "st.global.u32 [%rd0], %r0; bra done; take: bar.sync 2, 64; ld.shared.u32 %r13, [%r11+-128]; "
         "st.global.u32 [%rd0], %r13; done:"), 64, 1, THREADS % 32),
        # of two blocks one is complete first, the other has been signalled, too
        (("setp.ge.u32 %p1, %r0, 32; @%p1 bra take; bar.arrive 2, 64; bra done; take: setp.eq.u32 %p2, %r60, 1; "
         "@%p2 bra later; bar.sync 2, 64; bra done; later: bar.sync 2, 64; done: st.global.u32 [%rd0], 7;"), 64, 2, 7),
        # a warp that arrives and then waits counts twice, in each round
        ((f"{LEAVE.format(32)} mov.u32 %r20, 0; again: bar.arrive 1, 64; bar.sync 1, 64; add.u32 %r20, %r20, 1; "
         "setp.lt.u32 %p2, %r20, 3; @%p2 bra again; st.global.u32 [%rd0], %r20;"), 64, 1,
         np.where(THREADS < 32, 3, 0xDEAD)),
        # reductions, also over a block that ends within a warp
        ("setp.gt.u32 %p1, %r0, 42; bar.red.popc.u32 %r5, 0, %p1; st.global.u32 [%rd0], %r5;", 64, 1, 21),
        *((f"setp.{one}.u32 %p1, %r0, 42; bar.red.{how}.pred %p2, 0, %p1; selp.u32 %r5, 1, 0, %p2; {STORE_5}",
           64, 1, value) for one, how, value in (("ne", "and", 0), ("eq", "or", 1))),
        # from different instructions
        ((f"setp.lt.u32 %p1, %r0, 32; setp.ge.u32 %p2, %r0, 5; @%p1 bra a; bar.red.popc.u32 %r5, 0, %p2; bra b; a: "
         f"bar.red.popc.u32 %r5, 0, !%p2; b: {STORE_5}"), 64, 1, 37),
        ("setp.ge.u32 %p1, %r0, 10; bar.red.popc.u32 %r5, 0, %p1; st.global.u32 [%rd0], %r5;", 40, 2, 30),
        (("setp.ge.u32 %p3, %r0, 0; setp.lt.u32 %p1, %r0, 32; @%p1 bra a; bar.red.and.pred %p2, 0, %p3; bra b; a: "
         f"bar.red.and.pred %p2, 0, %p3; b: selp.u32 %r5, 1, 0, %p2; {STORE_5}"), 40, 2, 1),
        ("setp.ge.u32 %p3, %r0, 0; bar.red.or.pred %p2, 0, !%p3; selp.u32 %r5, 1, 0, %p2; st.global.u32 [%rd0], %r5;",
         40, 2, 0),
        # a loop whose trips the block chooses
        (("mov.u32 %r1, 0; loop: bar.sync 0; add.u32 %r1, %r1, 1; setp.le.u32 %p1, %r1, %r60; @%p1 bra loop; "
         "st.global.u32 [%rd0], %r1;"), 64, 4, np.arange(1, 5)[:, None]),
        # the arrival count grows by the warp size (PTX ISA 9.0, 9.7.13.1); an H200 passes this barrier too
        ("bar.sync 1, 64; st.global.u32 [%rd0], %r0;", 40, 2, np.arange(40)),
        # a barrier that has been complete takes another count
        (f"bar.sync 1, 64; {LEAVE.format(32)} bar.sync 1, 32; st.global.u32 [%rd0], 7;", 64, 1,
         np.where(THREADS < 32, 7, 0xDEAD)),
        # barriers that warps and blocks name by a register
        ("shr.u32 %r5, %r0, 5; add.u32 %r5, %r5, 1; bar.sync %r5, 32; st.global.u32 [%rd0], %r5;", 96, 1,
         np.arange(96) // 32 + 1),
        ("mul.lo.u32 %r6, %r60, 0; add.u32 %r6, %r6, 64; bar.sync %r60, %r6; st.global.u32 [%rd0], %r60;", 64, 3,
         np.arange(3)[:, None]),
        # block 0 completes barrier 3 first and changes the register that held its number; block 1 waits for warp 1
        ((f"mov.u32 %r5, 3; shr.u32 %r6, %r0, 5; mul.lo.u32 %r6, %r6, %r60; setp.eq.u32 %p1, %r6, 0; @%p1 bra meet; "
         f"{SPIN} meet: bar.red.popc.u32 %r8, %r5, %p1; mov.u32 %r5, 9; add.u32 %r5, %r8, %r5; {STORE_5}"),
         64, 2, np.array([[73], [41]])),
    ],
)  # fmt: skip
def test_what_threads_find_behind_a_barrier(body: str, threads: int, blocks: int, expected: Any) -> None:
    assert (run(body, threads, blocks, declarations=SHARED) == expected).all()


@pytest.mark.parametrize(("body", "threads", "kind", "says", "block", "lane"), table_of("barriers", "bad_barriers"))
def test_misuse(body: str, threads: int, kind: str, says: str, block: int, lane: int | None) -> None:
    with refuses(kind, says or ".") as caught:
        run(body, threads, 4, declarations=SHARED, max_instructions=500)
    assert caught.value.block == (block, 0, 0)
    assert lane is None or caught.value.lane == lane
    assert caught.value.line > 0


# --- threads that have exited ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [32, 40, 64])
def test_exited_threads_arrive_where_gpus_are_followed(first: int) -> None:
    body = LEAVE.format(first) + EXCHANGE.format(1)
    out = run(body, 96, 2, declarations=SHARED, exited_arrive=True)
    assert (out[:, :first] == np.arange(first) ^ 1).all()
    assert (out[:, first:] == 0xDEAD).all()
    assert races_of(body, 96, 2, declarations=SHARED, exited_arrive=True) == []


def test_threads_that_exit_later_let_those_who_wait_go_on() -> None:
    body = f"setp.lt.u32 %p1, %r0, 32; @%p1 bra wait; {SPIN} ret; wait: bar.sync 0; st.global.u32 [%rd0], 7;"
    assert run(body, 64, exited_arrive=True)[0].tolist() == [7] * 32 + [0xDEAD] * 32
    apart = f"setp.ge.u32 %p1, %r0, 64; {PUT} @%p1 ret; setp.eq.u32 %p2, %r60, 1; @%p2 bra counts; bar.sync 1; ret; "
    apart += "counts: bar.sync 1, 64; ld.shared.u32 %r13, [%r10+256];"  # no barrier of another block's orders this
    assert races_of(apart, 96, 2, declarations=SHARED, exited_arrive=True) == ["RAW"]
    again = "bar.sync 1, 64;" + LEAVE.format(32) + "bar.sync 1;"  # a barrier with a count, then without
    assert run(f"{again} st.global.u32 [%rd0], 7;", 64, exited_arrive=True)[0].tolist() == [7] * 32 + [0xDEAD] * 32
    late = PUT + LEAVE.format(32) + "bar.sync 0; ld.shared.u32 %r13, [%r10+200]; st.global.u32 [%rd0], %r13;"
    assert (run(late, 64, declarations=SHARED, exited_arrive=True)[0, :32] == 50).all()
    assert races_of(late, declarations=SHARED, exited_arrive=True) == []


def test_exited_threads_do_not_meet_a_count_and_half_a_warp_stays_an_error() -> None:
    with refuses("deadlock"):
        run(LEAVE.format(32) + "bar.sync 1, 64;", 64, exited_arrive=True)
    apart = "setp.lt.u32 %p1, %r0, 16; @%p1 bra half; st.global.u32 [%rd0], 1; bar.sync 1; half: bar.sync 0;"
    for follow in (True, False):
        with refuses("divergent-barrier") as caught:
            run(apart, 32, exited_arrive=follow)
        assert "exited_arrive" not in str(caught.value)


# --- races ------------------------------------------------------------------------------------------------------------


def hand_over(arrives: str, waits: str, before: str = "") -> list[str]:
    """Kinds of races where warp 0 writes a tile and signals, and warp 1 waits and reads it."""
    return races_of(
        f"{OWN} setp.ge.u32 %p1, %r0, 32; @%p1 bra take; {before} st.shared.u32 [%r11], %r0; {arrives} bra done;"
        f"take: {waits} ld.shared.u32 %r13, [%r11+-128]; done: bar.sync 0;",
        declarations=SHARED,
    )


@pytest.mark.parametrize("before", ["", SPIN])
def test_a_consumer_that_waits_for_its_producer_does_not_race(before: str) -> None:
    assert hand_over("bar.arrive 2, 64;", "bar.sync 2, 64;", before) == []
    assert hand_over("mov.u32 %r30, 2; bar.arrive %r30, 64;", "mov.u32 %r30, 2; bar.sync %r30, 64;", before) == []


def test_a_consumer_that_waits_elsewhere_and_a_producer_that_signals_early_race() -> None:
    assert hand_over("bar.arrive 2, 64;", "bar.sync 3, 32;") == ["RAW"]
    assert hand_over("", "bar.sync 2, 64;", before="bar.arrive 2, 64;") == ["RAW"]


@pytest.mark.parametrize("early", [False, True])
def test_a_ring_of_two_barriers_orders_every_round(early: bool) -> None:
    """Barrier 1 says "full", barrier 2 "empty"; a consumer that says so before it reads races with the next write."""
    read, signal = "ld.shared.u32 %r13, [%r11+-128];", "setp.ge.u32 %p2, %r20, 3; @%p2 bra done; bar.arrive 2, 64;"
    produce = "bar.sync 2, 64; st.shared.u32 [%r11], %r20; bar.arrive 1, 64; add.u32 %r20, %r20, 1;"
    take = signal + read if early else read + signal
    body = f"""{OWN} mov.u32 %r20, 0; setp.ge.u32 %p1, %r0, 32; @%p1 bra consumer;
    produce: {produce} setp.lt.u32 %p2, %r20, 3; @%p2 bra produce; bra done;
    consumer: bar.arrive 2, 64; consume: bar.sync 1, 64; add.u32 %r20, %r20, 1; {take} bra consume; done: bar.sync 0;"""
    assert races_of(body, declarations=SHARED) == (["RAW"] if early else [])
