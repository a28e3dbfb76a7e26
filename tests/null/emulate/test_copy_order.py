"""In which direction copies walk, in a program that walks as it is told."""

from __future__ import annotations

import pytest

from flashladder.emulate.kernel import CopyOrder
import ptxemu

# Each of the first {threads} threads copies 16 bytes, {steps} + 1 times, {stride} bytes further each time.
WALK = """
.version 8.0
.target sm_80
.address_size 64
.global .align 16 .b8 buffer[2048];
.visible .entry walk()
{{
.reg .pred %p<3>;
.reg .b32 %r<7>;
.reg .b64 %rd<8>;
mov.u32 %r0, %tid.x;
mov.u64 %rd5, buffer;
cvta.global.u64 %rd5, %rd5;
add.s64 %rd5, %rd5, {first};
mul.wide.u32 %rd7, %r0, 16;
cvt.u32.u64 %r5, %rd7;
mov.u32 %r6, 0;
setp.ge.u32 %p2, %r0, {threads};
@%p2 bra DONE;
AGAIN:
cp.async.cg.shared.global [%r5], [%rd5], 16;
add.s64 %rd5, %rd5, {stride};
add.u32 %r6, %r6, 1;
setp.le.u32 %p1, %r6, {steps};
@%p1 bra AGAIN;
DONE:
cp.async.wait_all;
ret;
}}
"""


@pytest.mark.parametrize(
    ("first", "stride", "steps", "threads", "upward", "downward"),
    [
        (0, 64, 3, 64, 6, 0),  # two warps, three steps each
        (512, -64, 3, 64, 0, 6),
        (512, -64, 3, 32, 0, 3),  # the second warp copies nothing
        (512, -64, 3, 8, 0, 3),  # a quarter of a warp is a warp
        (0, 0, 3, 64, 0, 0),  # the same address again is no step
        (0, 64, 0, 64, 0, 0),  # one run has none before it
    ],
)
def test_runs_of_a_copy_above_and_below_the_one_before(
    first: int, stride: int, steps: int, threads: int, upward: int, downward: int
) -> None:
    order = CopyOrder()
    kernel = ptxemu.load(WALK.format(first=first, stride=stride, steps=steps, threads=threads)).kernel()
    for launches in (1, 2):  # launches add up, and the first of the second has none before it
        kernel.launch((3,), (64,), (), shared_bytes=1024, observers=(order,))
        found = {"copies_upward": 3 * launches * upward, "copies_downward": 3 * launches * downward}
        assert order.as_dict() == found
