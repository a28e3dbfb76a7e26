"""Registers between instructions: freed and written again, narrow and wide, aliased, and operands that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import run

from ptxemu.errors import EmulationError
from ptxemu.machine.control import Block
from ptxemu.machine.core import Machine
from ptxemu.machine.observer import Observer
from ptxemu.values import BoolArray


def test_a_freed_register_is_written_again_by_some_lanes() -> None:
    out = run(
        """
        mov.u32 %r1, %r0;
        cvt.u64.u32 %rd3, %r0;
        add.u32 %r2, %r1, 1;
        cvt.u32.u64 %r3, %rd3;
        add.u32 %r2, %r2, %r3;
        st.global.u32 [%rd0], %r2;
        setp.ge.u32 %p1, %r0, 7;
        @%p1 bra done;
        mov.u32 %r1, 5;
        mov.u64 %rd3, 6;
        cvt.u32.u64 %r3, %rd3;
        add.u32 %r1, %r1, %r3;
        st.global.u32 [%rd0], %r1;
        done:
        """
    )
    lanes = np.arange(32)
    assert (out[0] == np.where(lanes < 7, 11, 2 * lanes + 1)).all()


class Sizes(Observer):
    """The number of bytes in registers when a basic block begins."""

    def __init__(self) -> None:
        self.machine: Machine | None = None
        self.bytes: list[int] = []

    def start(self, machine: Machine) -> None:
        self.machine = machine

    def block(self, block: Block, mask: BoolArray | None) -> None:
        assert self.machine is not None
        self.bytes.append(sum(value.nbytes for value in self.machine.registers))


@pytest.mark.parametrize(("threads", "leave"), [(64, 99), (40, 99), (64, 20)])
def test_registers_are_freed_when_all_lanes_left_are_there(threads: int, leave: int) -> None:
    sizes = Sizes()
    use = "".join(f"mul.lo.u32 %r{i}, %r0, {i}; add.u32 %r40, %r40, %r{i};" for i in range(1, 30))
    run(
        f"mov.u32 %r40, 0; setp.gt.u32 %p1, %r0, {leave}; @%p1 exit; {use} bra end; end: st.global.u32 [%rd0], %r40;",
        threads=threads,
        observers=(sizes,),
    )
    assert sizes.bytes[-1] < 8 * 4 * 64


def test_a_register_that_waiting_lanes_need_is_kept() -> None:
    # Lanes from 8 on wait at `join` while the others read %r1 for the last time on their way.
    out = run(
        """
        mul.lo.u32 %r1, %r0, 3;
        setp.ge.u32 %p1, %r0, 8;
        @%p1 bra join;
        add.u32 %r2, %r1, 1;
        mov.u32 %r1, %r2;
        join:
        st.global.u32 [%rd0], %r1;
        """
    )
    lanes = np.arange(32)
    assert (out[0] == 3 * lanes + (lanes < 8)).all()


def test_a_copy_keeps_its_value_when_the_source_changes() -> None:
    out = run(
        """
        mul.lo.u32 %r1, %r0, 3;
        mov.u32 %r2, %r1;
        mov.b32 %f1, %r1;
        setp.lt.u32 %p1, %r0, 9;
        @%p1 add.u32 %r1, %r1, 1000;
        red.global.add.u32 [%rd0], %r1;
        add.u32 %r1, %r1, 7;
        mov.b32 %r3, %f1;
        add.u32 %r2, %r2, %r3;
        st.global.u32 [%rd0], %r2;
        """
    )
    assert (out[0] == 6 * np.arange(32)).all()


def test_a_loaded_value_does_not_change_with_its_memory() -> None:
    out = run(
        """
        st.global.u32 [%rd0], %r0;
        ld.global.u32 %r1, [%rd0];
        st.global.u32 [%rd0], 77;
        mov.u32 %r4, tile;
        st.shared.u32 [%r4], 5;
        bar.sync 0;
        ld.shared.u32 %r2, [%r4];
        bar.sync 0;
        st.shared.u32 [%r4], 6;
        st.local.u32 [frame], %r0;
        ld.local.u32 %r3, [frame];
        st.local.u32 [frame], 9;
        add.u32 %r1, %r1, %r2;
        add.u32 %r1, %r1, %r3;
        st.global.u32 [%rd0], %r1;
        """,
        declarations=".shared .align 4 .b8 tile[16]; .local .align 4 .b8 frame[8];",
    )
    assert (out[0] == 2 * np.arange(32) + 5).all()


def test_a_guard_that_holds_nowhere_reads_no_garbage_address() -> None:
    out = run(
        """
        setp.lt.u32 %p1, %r0, 0;
        mov.u64 %rd5, 12345;
        mov.u32 %r5, 99999;
        mov.u32 %r6, 4;
        @%p1 ld.global.u32 %r6, [%rd5];
        @%p1 st.shared.u32 [%r5], %r6;
        @%p1 atom.global.add.u32 %r6, [%rd5], 1;
        @%p1 ld.u32 %r6, [%rd5];
        @%p1 cp.async.ca.shared.global [%r5], [%rd5], 4;
        st.global.u32 [%rd0], %r6;
        """,
        threads=40,
    )
    assert (out == 4).all()


def test_a_half_in_a_wider_register_keeps_its_bits() -> None:
    out = run("cvt.rn.f16.f32 %r1, 0f3FC00000; st.global.u32 [%rd0], %r1;")
    assert (out == 0x3E00).all()


def test_a_32_bit_address_wraps() -> None:
    # base 2**32 - 2048 + 4 * lane, offset 2048: an H200 reads the word of the lane
    out = run(
        """
        mov.u32 %r1, tile;
        mad.lo.u32 %r2, %r0, 4, %r1;
        st.shared.u32 [%r2], %r0;
        sub.u32 %r2, %r2, 2048;
        ld.shared.u32 %r3, [%r2+2048];
        st.global.u32 [%rd0], %r3;
        """,
        declarations=".shared .align 16 .b8 tile[4096];",
    )
    assert (out[0] == np.arange(32)).all()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("@%r1 add.u32 %r1, %r1, 1;", "the guard %r1 is no predicate"),
        ("@%r1 bra end; end:", "the guard %r1 is no predicate"),
        ("add.u64 %r1, %rd1, %rd2;", "%r1 is narrower than the result"),
        ("ld.param.u64 %r1, [out];", "%r1 is narrower than the result"),
        ("setp.lt.u32 %p1, %r0, 3; @%p1 add.u64 %r1, %rd1, %rd2;", "%r1 is narrower than the result"),
        ("ld.global.u32 %r1;", "operands of ld.global.u32"),
        ("ld.global.u32 %r1, [%rd0], %r2;", "operands of ld.global.u32"),
        ("bar.sync 0, 32, 5;", "operands of bar.sync"),
        ("ret %r1;", "operands of ret"),
        ("ld.global.v2.u8 {%r1, %r2, %r3}, [%rd0];", "registers of the destination"),
        ("st.global.v2.u8 [%rd0], {%r1};", "registers of the source"),
    ],
)
def test_operands_that_do_not_fit_are_named(body: str, what: str) -> None:
    with pytest.raises(EmulationError, match=what) as caught:
        run(body)
    assert caught.value.kind == "syntax"
    assert caught.value.line == 17
