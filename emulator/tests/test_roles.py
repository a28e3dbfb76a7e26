"""setmaxnreg with its rules, elect.sync, and what a deadlock tells."""

from __future__ import annotations

import numpy as np
import pytest
from tests.hopper_kernels import ARRIVE, INIT, kernel, launch, store, wait

from ptxemu import EmulationError

BOUND = ".maxntid 384, 1, 1"
ROLES = """setp.lt.u32 %p0, %t, 128;
@%p0 bra producer;
setmaxnreg.inc.sync.aligned.u32 240;
bra end;
producer:
setmaxnreg.dec.sync.aligned.u32 24;
end:
"""


def test_registers_move_from_one_warpgroup_to_the_others() -> None:
    out, _ = launch(kernel(ROLES + store("%t"), directives=BOUND), 384, 2)
    assert (out == np.arange(384)).all()


@pytest.mark.parametrize("schedule", ["reverse", 3])
def test_in_any_order(schedule: str | int) -> None:
    launch(kernel(ROLES, directives=BOUND), 384, schedule=schedule)


def test_without_a_bound_there_is_no_pool() -> None:
    launch(kernel(ROLES.replace("24;", "232;")), 384)


@pytest.mark.parametrize(
    ("old", "new", "kind", "match"),
    [
        ("240", "244", "registers", "a constant multiple of 8 from 24 to 256, found 244"),
        ("240", "264", "registers", "a constant multiple of 8 from 24 to 256, found 264"),
        ("240", "160", "registers", "setmaxnreg.inc to fewer registers than a warp has.*expected from 168"),
        ("u32 24;", "u32 176;", "registers", "setmaxnreg.dec to more registers than a warp has.*expected at most 168"),
        ("u32 24;", "u32 40;", "deadlock", "warps wait for registers that nobody gives back"),
        ("producer:\n", "producer:\n@%first bra end;\n", "registers", "executed by part of a warp"),
        ("%t, 128", "%t, 96", "registers", "another setmaxnreg than the warpgroup's other warps"),
        ("producer:\n", "producer:\nsetp.lt.u32 %p1, %t, 32;\n@%p1 bra end;\n", "deadlock", "registers of block"),
    ],
)
def test_misuse_of_setmaxnreg(old: str, new: str, kind: str, match: str) -> None:
    assert old in ROLES
    with pytest.raises(EmulationError, match=match) as caught:
        launch(kernel(ROLES.replace(old, new), directives=BOUND), 384)
    assert caught.value.kind == kind


def test_a_warp_that_leaves_its_warpgroup_alone() -> None:
    body = "setp.lt.u32 %p0, %t, 32;\n@%p0 ret;\nsetmaxnreg.dec.sync.aligned.u32 24;"
    with pytest.raises(EmulationError, match="warp 0 does not execute the setmaxnreg of its warpgroup") as caught:
        launch(kernel(body, directives=BOUND), 384)
    assert caught.value.kind == "registers"


def test_two_setmaxnreg_of_one_warpgroup() -> None:
    body = """setp.lt.u32 %p0, %t, 64;
@%p0 bra other;
setmaxnreg.dec.sync.aligned.u32 24;
bra end;
other: setmaxnreg.dec.sync.aligned.u32 24;
end:"""
    with pytest.raises(EmulationError, match="another setmaxnreg than the warpgroup's other warps"):
        launch(kernel(body, directives=BOUND), 128)


def test_one_lane_is_elected() -> None:
    body = f"""mov.u32 %word, 0;
setp.lt.u32 %p1, %t, 8;
@%p1 bra over;
elect.sync %n|%p0, 0xffffff00;
@%p0 mov.u32 %word, 1;
over: {store("%word")}"""
    out, _ = launch(kernel(body), 32)
    assert out.sum() == 1
    with pytest.raises(EmulationError, match="does not name the executing lane"):
        launch(kernel(body.replace("@%p1 bra over;", "")), 32)


def test_in_reverse_order_the_highest_lane_is_elected() -> None:
    body = f"""mov.u32 %word, 0;
setp.gt.u32 %p1, %t, 29;
@%p1 bra over;
elect.sync %n|%p0, 0x3fffffff;
@%p0 add.u32 %word, %n, 1;
over: {store("%word")}"""
    found = [np.flatnonzero(launch(kernel(body), 32, schedule=order)[0]).tolist() for order in ("together", "reverse")]
    assert found == [[0], [29]]


def test_a_deadlock_names_everybody_who_waits() -> None:
    body = f"""{INIT}setp.lt.u32 %p0, %t, 32;
setp.lt.u32 %p1, %t, 64;
setp.lt.u32 %p2, %t, 96;
@%p0 bra first;
@%p1 bra second;
@%p2 bra third;
{ARRIVE}ret;
first: {wait(0, "one")}ret;
second: {wait(1, "two")}
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 2;
{wait(0, "three")}ret;
third: bar.sync 3, 64;"""
    with pytest.raises(EmulationError) as caught:
        launch(kernel(body, 40), 128, 2)
    text = str(caught.value)
    assert caught.value.kind == "deadlock"
    assert text.startswith("k.ptx:")
    for part in (
        "warp 0 of block (0, 0, 0) at `mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;`",
        "warp 1 of block (0, 0, 0)",
        "mbarrier 0x0, parity 0; it is in phase 0, 8 of 40 arrivals and 64 bytes outstanding",
        "arrived so far: warp 3 (line",
        "32 threads of block (0, 0, 0) at `bar.sync 3, 64;`",
        "barrier 3, 32 of 64 threads have arrived",
        "threads that have exited: 32",
        "other blocks that stand still: 1",
    ):
        assert part in text


def test_a_ring_that_is_released_once_too_few() -> None:
    body = f"""{INIT}@%first mbarrier.init.shared::cta.b64 [%bar+8], 1;
bar.sync 0;
setp.ge.u32 %p0, %t, 32;
@%p0 bra consumer;
@%first {ARRIVE}{wait(0, "empty", "%bar+8")}
@%first {ARRIVE}{wait(1, "empty2", "%bar+8")}ret;
consumer:
{wait(0, "full")}
setp.eq.u32 %p1, %t, 32;
@%p1 mbarrier.arrive.shared::cta.b64 _, [%bar+8];
{wait(1, "full2")}"""
    with pytest.raises(EmulationError, match="mbarrier 0x8, parity 1; it is in phase 1, 1 of 1 arrivals") as caught:
        launch(kernel(body))
    assert "in the phase before: warp 1 (line" in str(caught.value)


def test_a_deadlock_of_a_cluster_names_the_block_that_is_missing() -> None:
    body = """mov.u32 %r2, %cluster_ctarank;
setp.eq.u32 %p0, %r2, 0;
@%p0 bra meet;
bar.sync 1, 96;
meet: barrier.cluster.arrive; barrier.cluster.wait;"""
    with pytest.raises(EmulationError, match="threads that have not arrived: 64 of block") as caught:
        launch(kernel(body), 64, 2, cluster=2)
    assert "bar.sync 1, 96" in str(caught.value)


def test_a_lane_that_waits_for_ever_is_a_deadlock_of_its_warp() -> None:
    body = f"{INIT}@!%first bra meet;\n{wait()}\nmeet: bar.warp.sync -1;\n{store('5')}"
    with pytest.raises(EmulationError, match="never completes") as caught:
        launch(kernel(body, 32), 32)
    assert caught.value.kind == "deadlock"
