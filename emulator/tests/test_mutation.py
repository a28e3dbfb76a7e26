"""`ptxemu.mutants`: what is removed, what stands in its place, and that a removed barrier is noticed."""

from __future__ import annotations

import numpy as np
import pytest

import ptxemu

REVERSED = """.version 8.0
.target sm_80
.address_size 64
.visible .entry reversed(.param .u64 out)
{
    .reg .b32 %r<4>; .reg .b64 %rd<3>; .shared .align 4 .b8 tile[256];
    mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, tile; add.u32 %r3, %r2, %r1; st.shared.u32 [%r3], %r0;
    bar.sync 0;
    sub.u32 %r3, %r2, %r1; ld.shared.u32 %r3, [%r3+252];
    bar.sync 0;
    mul.wide.u32 %rd0, %r0, 4; ld.param.u64 %rd1, [out]; add.u64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r3; ret;
}
"""
# Thread 0 arrives at an mbarrier of one thread; all wait for it.
WAITING = """.version 8.0
.target sm_90
.address_size 64
.visible .entry waiting(.param .u64 out)
{
    .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %rd<4>; .shared .align 8 .b64 full; .shared .align 4 .b32 word;
    mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra begin;
    mbarrier.init.shared.b64 [full], 1;
begin:
    bar.sync 0;
    @%p0 bra again;
    st.shared.u32 [word], 7;
    mbarrier.arrive.shared.b64 %rd3, [full];
again:
    mbarrier.try_wait.parity.shared.b64 %p1, [full], 0;
    @!%p1 bra again;
    ld.shared.u32 %r3, [word];
    mul.wide.u32 %rd0, %r0, 4; ld.param.u64 %rd1, [out]; add.u64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r3; ret;
}
"""


def told(kernel: ptxemu.Kernel) -> str:
    """What a launch of 64 threads shows: an error's kind, that there is a race, or nothing."""
    hazards = ptxemu.Hazards()
    try:
        kernel.launch(1, 64, [np.zeros(64, np.int32)], observers=hazards)
    except ptxemu.EmulationError as error:
        return error.kind
    return "race" if hazards.reports else ""


def test_a_barrier_that_is_needed_is_noticed_and_the_other_is_not() -> None:
    kernel = ptxemu.load(REVERSED).kernel()
    found = list(ptxemu.mutants(kernel))
    assert [(one.instruction.opcode, one.nth, told(one.kernel)) for one in found] == [
        ("bar.sync", 1, "race"),
        ("bar.sync", 2, ""),
    ]
    assert told(kernel) == ""
    assert [str(one) for one in found[0].kernel.function.body] == [
        str(one) for place, one in enumerate(kernel.function.body) if place != found[0].place
    ]


def test_a_wait_that_is_removed_answers_yes_and_an_arrival_returns_a_state() -> None:
    kernel = ptxemu.load(WAITING).kernel()
    found = {one.instruction.opcode.split(".shared")[0]: one for one in ptxemu.mutants(kernel)}
    assert list(found) == ["mbarrier.init", "bar.sync", "mbarrier.arrive", "mbarrier.try_wait.parity"]
    assert told(kernel) == ""
    assert {name: told(one.kernel) for name, one in found.items()} == {
        "mbarrier.init": "mbarrier",
        "bar.sync": "race",
        "mbarrier.arrive": "deadlock",
        "mbarrier.try_wait.parity": "race",
    }
    in_its_place = [
        str(found[name].kernel.function.body[found[name].place])
        for name in ("mbarrier.arrive", "mbarrier.try_wait.parity")
    ]
    assert in_its_place == ["mov.b64 %rd3, 0;", "setp.eq.u32 %p1, 0, 0;"]


@pytest.mark.parametrize(
    ("opcode", "removed"),
    [
        ("cp.async.wait_all", True),
        ("cp.async.cg.shared.global", False),
        ("cp.async.bulk.wait_group.read", True),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", False),
        ("mbarrier.arrive_drop.shared.b64", True),
        ("mbarrier.pending_count.b64", False),
        ("fence.proxy.async", True),
        ("membar.gl", True),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", False),
        ("barrier.cluster.arrive", True),
        ("bar.warp.sync", True),
        ("brkpt", False),
    ],
)
def test_what_counts_as_synchronisation(opcode: str, removed: bool) -> None:
    from ptxemu.mutation import is_synchronisation

    assert is_synchronisation(ptxemu.Instruction(opcode, ())) == removed


def test_another_body_is_checked() -> None:
    kernel = ptxemu.load(WAITING).kernel()
    body = [one for one in kernel.function.body if str(one) != "again:"]
    with pytest.raises(ptxemu.EmulationError, match="again"):
        kernel.with_body(body)
    assert kernel.with_body(kernel.function.body).name == "waiting"
