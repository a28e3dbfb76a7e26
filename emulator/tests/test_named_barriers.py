"""Barriers by number: warps and blocks with different ones, partial warps, producers and consumers and their races."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import run

from ptxemu.errors import EmulationError
from ptxemu.observe.hazards import Hazards

SHARED = ".shared .align 16 .b8 tile[4096];"
OWN = "mov.u32 %r10, tile; shl.b32 %r11, %r0, 2; add.u32 %r11, %r10, %r11; "


def test_a_partial_last_warp_counts_as_32_threads() -> None:
    # The arrival count grows by the warp size (PTX ISA 9.0, 9.7.13.1); an H200 passes this barrier too.
    out = run("bar.sync 1, 64; st.global.u32 [%rd0], %r0;", threads=40, blocks=2)
    assert (out == np.arange(40)).all()


@pytest.mark.parametrize(
    ("opcode", "tail", "expected"),
    [
        ("bar.red.popc.u32 %r5, 0, %p1;", "", 30),
        ("bar.red.and.pred %p2, 0, %p3;", "selp.u32 %r5, 1, 0, %p2;", 1),
        ("bar.red.or.pred %p2, 0, !%p3;", "selp.u32 %r5, 1, 0, %p2;", 0),
    ],
)
def test_reductions_leave_out_threads_that_do_not_exist(opcode: str, tail: str, expected: int) -> None:
    body = f"setp.ge.u32 %p1, %r0, 10; setp.ge.u32 %p3, %r0, 0; {opcode} {tail} st.global.u32 [%rd0], %r5;"
    assert (run(body, threads=40, blocks=2) == expected).all()


def test_each_warp_names_its_own_barrier() -> None:
    body = "shr.u32 %r5, %r0, 5; add.u32 %r5, %r5, 1; bar.sync %r5, 32; st.global.u32 [%rd0], %r5;"
    assert (run(body, threads=96)[0] == np.arange(96) // 32 + 1).all()


def test_blocks_name_different_barriers_and_counts() -> None:
    body = "mul.lo.u32 %r6, %r60, 0; add.u32 %r6, %r6, 64; bar.sync %r60, %r6; st.global.u32 [%rd0], %r60;"
    assert (run(body, threads=64, blocks=3) == np.arange(3)[:, None]).all()


def test_two_barriers_in_one_warp_are_an_error() -> None:
    with pytest.raises(EmulationError, match="part of a warp") as caught:
        run("and.b32 %r5, %r0, 1; bar.sync %r5;", threads=64)
    assert caught.value.kind == "divergent-barrier"


def test_a_reduction_by_register_number_is_not_confused_by_blocks_that_went_on() -> None:
    # Block 0 completes barrier 3 first and changes the register that held its number; block 1 waits for warp 1.
    out = run(
        """
        mov.u32 %r5, 3;
        shr.u32 %r6, %r0, 5;
        mul.lo.u32 %r6, %r6, %r60;
        setp.eq.u32 %p1, %r6, 0;
        @%p1 bra meet;
        mov.u32 %r7, 0;
        wait:
        add.u32 %r7, %r7, 1;
        setp.lt.u32 %p2, %r7, 20;
        @%p2 bra wait;
        meet:
        bar.red.popc.u32 %r8, %r5, %p1;
        mov.u32 %r5, 9;
        add.u32 %r8, %r8, %r5;
        st.global.u32 [%rd0], %r8;
        """,
        threads=64,
        blocks=2,
    )
    assert out[:, 0].tolist() == [73, 41]
    assert (out == out[:, :1]).all()


def test_arriving_twice_before_the_barrier_is_complete_is_an_error() -> None:
    with pytest.raises(EmulationError, match="comes again") as caught:
        run("setp.ge.u32 %p1, %r0, 32; @%p1 bra end; bar.arrive 1, 64; bar.arrive 1, 64; end:", threads=64)
    assert caught.value.kind == "divergent-barrier"
    assert caught.value.lane == 0


def test_a_deadlock_of_some_blocks_names_one_of_them() -> None:
    body = "setp.lt.u32 %p1, %r0, 32; setp.eq.and.u32 %p2, %r60, 2, %p1; @%p2 bra end; bar.sync 5; end:"
    with pytest.raises(EmulationError, match="expected 64 threads, found 32 arrived, 32 exited") as caught:
        run(body, threads=64, blocks=4)
    assert caught.value.kind == "deadlock"
    assert caught.value.block == (2, 0, 0)
    assert caught.value.lane == 32


def hand_over(arrives: str, waits: str, *, wait_first: bool = False) -> str:
    """Hazards where warp 0 writes a tile and signals, and warp 1 waits and reads it."""
    hazards = Hazards()
    spin = (
        "mov.u32 %r20, 0; spin: add.u32 %r20, %r20, 1; setp.lt.u32 %p5, %r20, 9; @%p5 bra spin;" if wait_first else ""
    )
    run(
        OWN
        + f"""
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra consumer;
        {spin}
        st.shared.u32 [%r11], %r0;
        {arrives}
        bra done;
        consumer:
        {waits}
        ld.shared.u32 %r13, [%r11+-128];
        done:
        bar.sync 0;
        """,
        threads=64,
        declarations=SHARED,
        observers=(hazards,),
    )
    return hazards.render()


@pytest.mark.parametrize("wait_first", [False, True])
def test_a_consumer_that_waits_for_its_producer_does_not_race(wait_first: bool) -> None:
    assert hand_over("bar.arrive 2, 64;", "bar.sync 2, 64;", wait_first=wait_first) == ""
    by_register = "mov.u32 %r30, 2; bar.arrive %r30, 64;", "mov.u32 %r30, 2; bar.sync %r30, 64;"
    assert hand_over(*by_register, wait_first=wait_first) == ""


def test_a_consumer_that_waits_at_another_barrier_races() -> None:
    # Barrier 3 completes without the producer, who has signalled barrier 2 by then.
    assert "RAW" in hand_over("bar.arrive 2, 64;", "bar.sync 3, 32;")


def test_a_producer_that_signals_before_it_writes_races() -> None:
    hazards = Hazards()
    run(
        OWN
        + """
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra consumer;
        bar.arrive 2, 64;
        st.shared.u32 [%r11], %r0;
        bra done;
        consumer:
        bar.sync 2, 64;
        st.shared.u32 [%r11+-128], %r0;
        done:
        bar.sync 0;
        """,
        threads=64,
        declarations=SHARED,
        observers=(hazards,),
    )
    assert "WAW" in hazards.render()


@pytest.mark.parametrize(("read_before_signal", "kinds"), [(True, []), (False, ["RAW"])])
def test_a_ring_of_two_barriers_orders_every_round(read_before_signal: bool, kinds: list[str]) -> None:
    # Barrier 1 says "full", barrier 2 "empty": a consumer that says so before it reads races with the next
    # write, which the emulator happens to run first.
    hazards = Hazards()
    read = "ld.shared.u32 %r13, [%r11+-128];"
    run(
        OWN
        + f"""
        mov.u32 %r20, 0;
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra consumer;
        produce:
        bar.sync 2, 64;
        st.shared.u32 [%r11], %r20;
        bar.arrive 1, 64;
        add.u32 %r20, %r20, 1;
        setp.lt.u32 %p2, %r20, 3;
        @%p2 bra produce;
        bra done;
        consumer:
        bar.arrive 2, 64;
        consume:
        bar.sync 1, 64;
        {read if read_before_signal else ""}
        add.u32 %r20, %r20, 1;
        setp.ge.u32 %p2, %r20, 3;
        @%p2 bra done;
        bar.arrive 2, 64;
        {"" if read_before_signal else read}
        bra consume;
        done:
        bar.sync 0;
        """,
        threads=64,
        declarations=SHARED,
        observers=(hazards,),
    )
    assert [hazard.kind for hazard in hazards.reports] == kinds
