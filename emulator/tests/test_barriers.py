"""CTA barriers: threads that wait, named barriers, reductions, and the errors of barriers that cannot complete."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import run

from ptxemu.errors import EmulationError
from ptxemu.observe.hazards import Hazards

SHARED = ".shared .align 16 .b8 tile[4096];"
PUT = "mov.u32 %r10, tile; shl.b32 %r11, %r0, 2; add.u32 %r11, %r10, %r11; st.shared.u32 [%r11], %r0;"


def error(body: str, **options: object) -> EmulationError:
    with pytest.raises(EmulationError) as caught:
        run(body, declarations=SHARED, **options)  # type: ignore[arg-type]
    return caught.value


def test_data_crosses_warps_at_a_barrier() -> None:
    out = run(
        PUT
        + """
        bar.sync 0;
        xor.b32 %r12, %r0, 96;
        shl.b32 %r12, %r12, 2;
        add.u32 %r12, %r10, %r12;
        ld.shared.u32 %r13, [%r12];
        st.global.u32 [%rd0], %r13;
        """,
        threads=128,
        blocks=2,
        declarations=SHARED,
    )
    assert (out == np.arange(128) ^ 96).all()


def test_warps_wait_at_different_barriers_of_different_loops() -> None:
    # Warp 0 runs three rounds of barrier 1, warp 1 of barrier 1 as well, but by another loop.
    out = run(
        PUT
        + """
        mov.u32 %r20, 0;
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra other;
        first:
        bar.sync 1, 64;
        add.u32 %r20, %r20, 1;
        setp.lt.u32 %p2, %r20, 3;
        @%p2 bra first;
        bra done;
        other:
        bar.sync 1, 64;
        add.u32 %r20, %r20, 1;
        setp.lt.u32 %p2, %r20, 3;
        @%p2 bra other;
        done:
        st.global.u32 [%rd0], %r20;
        """,
        threads=64,
        declarations=SHARED,
    )
    assert (out == 3).all()


def test_producer_signals_consumer_waits() -> None:
    out = run(
        """
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra consumer;
        mov.u32 %r10, tile;
        shl.b32 %r11, %r0, 2;
        add.u32 %r11, %r10, %r11;
        st.shared.u32 [%r11], %r0;
        bar.arrive 2, 64;
        bra done;
        consumer:
        bar.sync 2, 64;
        mov.u32 %r10, tile;
        sub.u32 %r12, %r0, 32;
        shl.b32 %r12, %r12, 2;
        add.u32 %r12, %r10, %r12;
        ld.shared.u32 %r13, [%r12];
        st.global.u32 [%rd0], %r13;
        done:
        """,
        threads=64,
        declarations=SHARED,
    )
    assert (out[0, 32:] == np.arange(32)).all()


@pytest.mark.parametrize(
    ("opcode", "result", "expected"),
    [
        ("bar.red.popc.u32 %r5, 0, %p1;", "%r5", 21),
        ("bar.red.and.pred %p2, 0, %p1;", "", 0),
        ("bar.red.or.pred %p2, 0, %p1;", "", 1),
    ],
)
def test_reduction_over_the_block(opcode: str, result: str, expected: int) -> None:
    tail = "" if result else "selp.u32 %r5, 1, 0, %p2;"
    out = run(f"setp.gt.u32 %p1, %r0, 42; {opcode} {tail} st.global.u32 [%rd0], %r5;", threads=64)
    assert (out == expected).all()


def test_barrier_in_a_loop_with_per_block_trip_counts() -> None:
    out = run(
        """
        mov.u32 %r1, 0;
        loop:
        bar.sync 0;
        add.u32 %r1, %r1, 1;
        setp.le.u32 %p1, %r1, %r60;
        @%p1 bra loop;
        st.global.u32 [%rd0], %r1;
        """,
        threads=64,
        blocks=4,
    )
    assert (out == np.arange(1, 5)[:, None]).all()


def test_half_a_warp_at_an_aligned_barrier_is_an_error() -> None:
    found = error("setp.lt.u32 %p1, %r0, 16; @%p1 bra half; bra done; half: bar.sync 0; done:", threads=64, blocks=2)
    assert found.kind == "divergent-barrier"
    assert found.block == (0, 0, 0)
    assert found.lane == 0
    assert found.line > 0
    assert "bar.sync" in str(found)


def test_exited_lanes_do_not_arrive() -> None:
    found = error("setp.gt.u32 %p1, %r0, 16; @%p1 ret; bar.sync 0;")
    assert found.kind == "divergent-barrier"
    assert "exited" in str(found)


def test_a_barrier_that_a_warp_never_reaches_is_a_deadlock() -> None:
    found = error("setp.lt.u32 %p1, %r0, 32; @%p1 bra wait; bra done; wait: bar.sync 3; done:", threads=64, blocks=2)
    assert found.kind == "deadlock"
    assert found.block == (0, 0, 0)
    assert found.lane == 0
    assert "expected 64 threads, found 32 arrived, 32 exited" in str(found)


def test_two_halves_of_a_block_at_different_barriers_are_a_deadlock() -> None:
    found = error("setp.lt.u32 %p1, %r0, 32; @%p1 bra a; bar.sync 1; bra done; a: bar.sync 2; done:", threads=64)
    assert found.kind == "deadlock"


def test_counts_that_differ_are_an_error() -> None:
    found = error(
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra a; bar.sync 1, 128; bra done; a: bar.sync 1, 64; done:", threads=128
    )
    assert found.kind == "divergent-barrier"
    assert "thread count" in str(found)


@pytest.mark.parametrize("operands", ["16", "0, 33", "0, 0"])
def test_impossible_operands_are_errors(operands: str) -> None:
    assert error(f"bar.sync {operands};").kind == "unsupported"


def test_endless_loop_ends_with_the_budget() -> None:
    found = error("here: bra here;", max_instructions=500)
    assert found.kind == "budget"
    assert found.block == (0, 0, 0)


def test_trap_is_an_error_with_its_lane() -> None:
    found = error("setp.eq.u32 %p1, %r0, 9; @%p1 trap;")
    assert found.kind == "trap"
    assert found.lane == 9


# --- threads that have exited ---------------------------------------------------------------------------------------

LEAVE = "setp.ge.u32 %p1, %r0, {first}; @%p1 ret;"
EXCHANGE = (
    PUT
    + """
    bar.sync 0;
    xor.b32 %r12, %r0, 1;
    shl.b32 %r12, %r12, 2;
    add.u32 %r12, %r10, %r12;
    ld.shared.u32 %r13, [%r12];
    st.global.u32 [%rd0], %r13;
    """
)


@pytest.mark.parametrize("first", [32, 40, 64])
def test_exited_threads_arrive_where_gpus_are_followed(first: int) -> None:
    hazards = Hazards()
    body = LEAVE.format(first=first) + EXCHANGE
    out = run(body, threads=96, blocks=2, declarations=SHARED, observers=(hazards,), exited_arrive=True)
    assert (out[:, :first] == np.arange(first) ^ 1).all()
    assert (out[:, first:] == 0xDEAD).all()
    assert not hazards.reports


def test_threads_that_exit_later_let_those_who_wait_go_on() -> None:
    body = """
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra wait;
    mov.u32 %r5, 0;
    spin: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 50; @%p2 bra spin;
    ret;
    wait: bar.sync 0;
    st.global.u32 [%rd0], 7;
    """
    out = run(body, threads=64, exited_arrive=True)
    assert out[0].tolist() == [7] * 32 + [0xDEAD] * 32


def test_what_an_exited_thread_wrote_is_ordered_before_the_barrier() -> None:
    hazards = Hazards()
    body = (
        PUT
        + LEAVE.format(first=32)
        + "bar.sync 0; ld.shared.u32 %r13, [%r10+200]; st.global.u32 [%rd0], %r13;"  # written by thread 50
    )
    out = run(body, threads=64, declarations=SHARED, observers=(hazards,), exited_arrive=True)
    assert (out[0, :32] == 50).all()
    assert not hazards.reports


def test_a_thread_count_is_not_met_by_exited_threads() -> None:
    found = error(LEAVE.format(first=32) + "bar.sync 1, 64;", threads=64, exited_arrive=True)
    assert found.kind == "deadlock"


def test_half_a_warp_elsewhere_stays_an_error() -> None:
    body = "setp.lt.u32 %p1, %r0, 16; @%p1 bra half; st.global.u32 [%rd0], 1; bar.sync 1; half: bar.sync 0;"
    assert error(body, exited_arrive=True).kind == "divergent-barrier"


def test_the_message_says_how_to_follow_gpus() -> None:
    assert "exited_arrive=True" in str(error(LEAVE.format(first=16) + "bar.sync 0;"))
    assert "exited_arrive" not in str(error("setp.lt.u32 %p1, %r0, 16; @%p1 bra half; bar.sync 1; half: bar.sync 0;"))
