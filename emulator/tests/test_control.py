"""Basic blocks, their order, and lanes that part and meet again."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import HEADER, program, run

from ptxemu.errors import EmulationError
from ptxemu.machine.control import Block, build_flow, execution_order
from ptxemu.machine.observer import Observer
from ptxemu.run.launch import load
from ptxemu.values import BoolArray


class Visits(Observer):
    """Records (first opcode, active lanes) of every basic block that runs."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int | str]] = []

    def block(self, block: Block, mask: BoolArray | None) -> None:
        if block.instructions:
            lanes = "all" if mask is None else int(np.broadcast_to(mask, (1, 1, 32)).sum())
            self.seen.append((str(block.instructions[0]), lanes))


def test_order_of_a_diamond_puts_the_meeting_point_last() -> None:
    assert execution_order([[1, 2], [3], [3], []]) == [0, 1, 2, 3]


def test_loop_stays_contiguous_before_its_exit() -> None:
    # 0 -> 1 (header) -> 2 -> 1, 1 -> 3 (exit); text order has the exit before the body
    order = execution_order([[1], [2, 3], [], [1]])
    assert order == [0, 1, 3, 2]


def test_nested_loops_stay_contiguous() -> None:
    #     0 -> 1 -> 2 -> 3 -> 2, 3 -> 4 -> 1, 4 -> 5
    assert execution_order([[1], [2], [3], [2, 4], [1, 5], []]) == [0, 1, 2, 3, 4, 5]


def test_unreachable_blocks_are_left_out() -> None:
    assert execution_order([[2], [2], []]) == [0, 2]


def test_loop_entered_in_the_middle_runs_to_its_end() -> None:
    order = execution_order([[2], [2], [1, 3], []])
    assert order == [0, 2, 1, 3]


def test_branch_to_nowhere_names_the_line() -> None:
    with pytest.raises(EmulationError) as caught:
        program("bra missing;")
    assert caught.value.kind == "syntax"
    assert "k.ptx:" in str(caught.value)


def test_both_sides_of_a_branch_run_and_meet() -> None:
    visits = Visits()
    out = run(
        """
        setp.lt.u32 %p1, %r0, 10;
        @%p1 bra small;
        mov.u32 %r1, 100;
        bra done;
        small:
        mov.u32 %r1, 7;
        done:
        add.u32 %r1, %r1, %r0;
        st.global.u32 [%rd0], %r1;
        """,
        observers=(visits,),
    )
    lanes = np.arange(32)
    assert (out[0] == np.where(lanes < 10, 7, 100) + lanes).all()
    ran = [entry for entry in visits.seen if "add.u32" in entry[0]]
    assert ran == [("add.u32 %r1, %r1, %r0;", "all")]  # met before the addition, not after


def test_trip_counts_differ_by_thread_and_block() -> None:
    out = run(
        """
        mov.u32 %r1, 0;
        mov.u32 %r2, 0;
        add.u32 %r3, %r0, %r60;
        loop:
        setp.ge.u32 %p1, %r2, %r3;
        @%p1 bra done;
        add.u32 %r2, %r2, 1;
        add.u32 %r1, %r1, %r2;
        bra loop;
        done:
        st.global.u32 [%rd0], %r1;
        """,
        threads=64,
        blocks=3,
    )
    n = np.arange(64)[None, :] + np.arange(3)[:, None]
    assert (out == n * (n + 1) // 2).all()


def test_a_loop_left_early_waits_for_the_others() -> None:
    visits = Visits()
    run(
        """
        mov.u32 %r2, 0;
        loop:
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p1, %r2, %r0;
        @%p1 bra loop;
        st.global.u32 [%rd0], %r2;
        """,
        observers=(visits,),
    )
    assert [lanes for text, lanes in visits.seen if text.startswith("st.")] == ["all"]


def test_early_return_leaves_the_rest_running() -> None:
    out = run(
        """
        setp.gt.u32 %p1, %r0, 20;
        @%p1 ret;
        st.global.u32 [%rd0], %r0;
        setp.gt.u32 %p2, %r0, 5;
        @%p2 exit;
        st.global.u32 [%rd0], 99;
        """
    )
    lanes = np.arange(32)
    assert (out[0] == np.where(lanes > 20, 0xDEAD, np.where(lanes > 5, lanes, 99))).all()


def test_predicated_instructions_write_their_lanes_only() -> None:
    out = run(
        """
        and.b32 %r1, %r0, 1;
        setp.eq.u32 %p1, %r1, 0;
        mov.u32 %r2, 5;
        @%p1 add.u32 %r2, %r2, 10;
        @!%p1 mul.lo.u32 %r2, %r2, %r0;
        st.global.u32 [%rd0], %r2;
        """
    )
    lanes = np.arange(32)
    assert (out[0] == np.where(lanes % 2 == 0, 15, 5 * lanes)).all()


def test_a_partial_warp_runs_only_its_threads() -> None:
    out = run("mov.u32 %r1, %ntid.x; st.global.u32 [%rd0], %r1;", threads=40, blocks=2)
    assert (out == 40).all()


def test_divergence_inside_a_loop_inside_divergence() -> None:
    out = run(
        """
        mov.u32 %r1, 0;
        mov.u32 %r2, 0;
        and.b32 %r5, %r0, 3;
        setp.eq.u32 %p1, %r5, 0;
        @%p1 bra done;
        loop:
        and.b32 %r3, %r2, 1;
        setp.eq.u32 %p2, %r3, 0;
        @%p2 bra even;
        add.u32 %r1, %r1, 100;
        bra next;
        even:
        add.u32 %r1, %r1, 1;
        next:
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p3, %r2, %r5;
        @%p3 bra loop;
        done:
        st.global.u32 [%rd0], %r1;
        """
    )
    expected = {0: 0, 1: 1, 2: 101, 3: 102}
    assert out[0].tolist() == [expected[lane % 4] for lane in range(32)]


def test_slices_of_the_grid_give_the_same_result() -> None:
    body = "add.u32 %r1, %r0, %r60; st.global.u32 [%rd0], %r1;"
    whole = run(body, threads=32, blocks=7)
    cut = run(body, threads=32, blocks=7, memory_budget=1)
    assert (whole == cut).all()


def test_registers_die_where_nothing_reads_them() -> None:
    kernel = program("mov.u32 %r1, 1; add.u32 %r2, %r1, %r1; st.global.u32 [%rd1], %r2;")
    flow = build_flow(kernel.function, "k.ptx")
    assert flow.blocks[0].dying[1] == ("%r1",)
    assert "%r2" in flow.blocks[0].dying[2]


def test_a_register_stays_while_a_guarded_write_may_keep_it() -> None:
    kernel = program("mov.u32 %r1, 1; @%p1 mov.u32 %r1, 2; st.global.u32 [%rd1], %r1;")
    assert kernel.flow.blocks[0].dying[0] == ()


def test_a_loop_with_two_ways_back_gets_a_latch_behind_its_blocks() -> None:
    # 0 -> 1 (header) -> 2 -> 1 (continue), 2 -> 3 -> 1, 1 -> 4
    assert execution_order([[1], [2, 4], [1, 3], [1], []]) == [0, 1, 2, 3, ~1, 4]


def test_an_inner_loop_that_continues_the_outer_one_has_its_latch_outside() -> None:
    # 1 outer header, 2 inner header -> 3 or 1 (continue the outer loop), 3 -> 2 (again) or 4 (leave both)
    assert execution_order([[1], [2], [1, 3], [2, 4], []]) == [0, 1, 2, 3, ~1, 4]


def test_lanes_that_continue_a_loop_early_meet_the_others_before_its_header() -> None:
    # `continue` goes straight to the header: an H200 passes this barrier, whose warps are whole in every round
    out = run(
        """
        mov.u32 %r1, 0;
        loop:
        bar.sync 0;
        setp.ge.u32 %p1, %r1, 4;
        @%p1 bra done;
        add.u32 %r1, %r1, 1;
        and.b32 %r2, %r0, 1;
        setp.eq.u32 %p2, %r2, 0;
        @%p2 bra loop;
        add.u32 %r3, %r1, 7;
        bra loop;
        done:
        st.global.u32 [%rd0], %r1;
        """,
        threads=64,
    )
    assert (out == 4).all()


def test_a_loop_entered_at_two_places_ends_for_every_lane() -> None:
    out = run(
        """
        mov.u32 %r1, 0;
        mov.u32 %r2, 0;
        and.b32 %r3, %r0, 1;
        setp.eq.u32 %p1, %r3, 0;
        @%p1 bra second;
        first:
        add.u32 %r1, %r1, 1;
        second:
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p2, %r2, %r0;
        @%p2 bra first;
        mad.lo.u32 %r4, %r2, 100, %r1;
        st.global.u32 [%rd0], %r4;
        """
    )
    lanes = np.arange(32)
    seconds = np.maximum(lanes, 1)
    assert (out[0] == 100 * seconds + seconds - 1 + lanes % 2).all()


def test_an_address_is_read_even_where_the_instruction_begins_with_it() -> None:
    out = run(
        """
        add.s64 %rd5, %rd0, 0;
        mov.u32 %r9, 3;
        prefetchu.L1 [%rd5];
        st.global.u32 [%rd5], %r9;
        """
    )
    assert (out == 3).all()


def test_a_kernel_without_instructions_runs() -> None:
    kernel = load(HEADER + ".visible .entry k()\n{\n}\n").kernel()
    assert kernel.launch((2,), (32,)).instructions == 0
