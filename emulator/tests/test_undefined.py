"""What a shuffle reads from an absent lane: harmless while nothing depends on it, an error where something does.

`UNDEFINED` leaves an undefined value in %r2 of lanes 4 to 7, and their own numbers in lanes 0 to 3 plus 4.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import HEADER, OUT, program, refuses, run, table_of, text_of

from ptxemu import EmulationError, load
from ptxemu.machine.compiled import Operation
from ptxemu.run.undefined import Undefined
from ptxemu.values import Array, BoolArray

UNDEFINED = text_of("undefined", "absent_lanes")
STORE = "st.global.u32 [%rd0], %r3;"
DONE = "\nDONE:\n"
SHARED = ".shared .align 16 .b8 tile[256];"
LOCAL = ".local .align 8 .b8 stack[16];"


def values(body: str, *, declarations: str = "", threads: int = 8) -> list[int]:
    """What the lanes store."""
    found: list[int] = run(UNDEFINED + body + DONE, threads, declarations=declarations)[0].tolist()
    return found


def refused(body: str, says: str, *, declarations: str = "") -> EmulationError:
    """The error; its message names the shuffle."""
    with refuses("undefined", says) as caught:
        values(body, declarations=declarations)
    assert "what `shfl.sync.down.b32 %r2, %r1, 4, 31, 255;` (line " in str(caught.value)
    return caught.value


def test_a_sum_over_eight_lanes_is_what_the_hardware_gives() -> None:
    body = "\n".join(
        f"shfl.sync.down.b32 %r2, %r3, {distance}, 31, 0xff; add.u32 %r3, %r3, %r2;" for distance in (4, 2, 1)
    )
    first = "setp.eq.u32 %p4, %r0, 0; @%p4 "
    assert values(f"mov.u32 %r3, %r0; {body} {first}{STORE}", threads=64)[:2] == [28, 0xDEAD]
    with refuses("undefined", "an undefined value is stored, thread 1 "):
        values(f"mov.u32 %r3, %r0; {body} {STORE}")


@pytest.mark.parametrize(("body", "expected"), table_of("undefined", "harmless"))
def test_a_value_that_nobody_needs_is_harmless(body: str, expected: list[int]) -> None:
    assert values(body) == expected


@pytest.mark.parametrize(("body", "says", "thread"), table_of("undefined", "undefined"))
def test_a_value_that_matters_is_refused(body: str, says: str, thread: int) -> None:
    error = refused(body, f"an undefined value {says}, thread {thread} ", declarations=SHARED + LOCAL)
    assert (error.lane, error.block) == (thread, (0, 0, 0))


def test_local_memory_keeps_the_marks_of_its_bytes() -> None:
    put = "mov.u64 %rd3, stack; st.local.u32 [%rd3], %r0; st.local.u32 [%rd3+4], %r2; mov.u32 %r2, 0;"
    assert values(f"{put} ld.local.u32 %r3, [%rd3]; {STORE}", declarations=LOCAL) == list(range(8))
    for get in ("ld.local.u32 %r3, [%rd3+4];", "ld.local.u8 %r3, [%rd3+7];", "ld.local.v2.u32 {%r4, %r3}, [%rd3];"):
        assert refused(f"{put} bar.warp.sync 0xff; {get} {STORE}", "is stored", declarations=LOCAL).lane == 4
    again = "st.local.u32 [%rd3+4], %r0; ld.local.u32 %r3, [%rd3+4];"
    assert values(f"{put} {again} {STORE}", declarations=LOCAL) == list(range(8))


def test_a_matrix_product_spreads_the_mark_over_its_warp() -> None:
    zeros = "mov.u32 %r2, 0; mov.u32 %r3, 0; mov.f32 %f5, 0f00000000;"
    shuffle = "setp.eq.u32 %p1, %r0, 31; @%p1 bra JOIN; shfl.sync.down.b32 %r2, %r0, 16, 31, 0x7fffffff; JOIN:"
    a, b, c, d = "{%r2, %r3}", "{%r3}", "{%f5, %f5, %f5, %f5}", "{%f1, %f2, %f3, %f4}"
    product = f"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {d}, {a}, {b}, {c};"
    with refuses("undefined", "an undefined value is stored, thread 0 "):
        run(f"{zeros} {shuffle} {product} st.global.f32 [%rd0], %f1;")  # lane 15 alone read the absent lane 31


def test_marks_are_followed_only_while_somebody_holds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of the same shuffle in a loop, each leaving nothing behind: the loop goes fast in between."""
    opcodes: list[str] = []
    real = Undefined.follow

    def follow(self: Undefined, operation: Operation, *masks: BoolArray | None) -> None:
        opcodes.append(operation.instruction.opcode)
        real(self, operation, *masks)

    monkeypatch.setattr(Undefined, "follow", follow)
    run(f"shfl.sync.down.b32 %r3, %r0, 4, 31, -1; shfl.sync.up.b32 %r3, %r3, 1, 0, -1; {STORE}")
    assert opcodes == []
    loop = "mov.u32 %r5, 0; mov.u32 %r3, 0; LOOP: shfl.sync.down.b32 %r2, %r0, 4, 31, 0xff; selp.u32 %r2, %r2, 1, %p2;"
    loop += "add.u32 %r3, %r3, %r2; add.u32 %r5, %r5, 1; setp.lt.u32 %p6, %r5, 3; @%p6 bra LOOP;"
    assert values(loop + STORE) == [12, 15, 18, 21, 3, 3, 3, 3]
    assert opcodes.count("selp.u32") == 3
    assert opcodes.count("shfl.sync.down.b32") == 1  # in the first round, while the mark of `UNDEFINED` is still there
    assert "st.global.u32" not in opcodes


def test_other_blocks_and_warps_are_told_apart() -> None:
    body = text_of("undefined", "undefined_blocks").format(**globals())
    with refuses("undefined", r"thread 36 \(warp 1, lane 4\), block \(2, 0, 0\)"):
        run(body, 64, 4)


def test_the_strict_launch_stops_at_the_shuffle() -> None:
    out: Array = np.zeros(8, np.uint32)
    kernel = program(OUT + UNDEFINED + DONE)
    kernel.launch((1,), (8,), (out,))
    with refuses("divergent-warp", "shfl reads a lane that does not take part") as caught:
        kernel.launch((1,), (8,), (out,), undefined="error")
    assert caught.value.lane == 4
    with refuses("arguments", "undefined: expected 'track' or 'error', found 'maybe'"):
        kernel.launch((1,), (8,), (out,), undefined="maybe")  # type: ignore[arg-type]  # what is refused


def test_a_function_takes_and_returns_an_undefined_value() -> None:
    text = HEADER + text_of("undefined", "undefined_function")
    out = np.zeros(8, np.uint32)
    load(text.replace("STORED", "%r3"), path="k.ptx").kernel().launch((1,), (8,), (out,))
    assert out.tolist() == [8, 10, 12, 14, 0, 0, 0, 0]
    with refuses("undefined", "an undefined value is stored, thread 4 "):
        load(text.replace("STORED", "%r2"), path="k.ptx").kernel().launch((1,), (8,), (out,))
