"""Races of wgmma with ordinary accesses to the shared memory that it reads: each beside a program that is in order."""

from __future__ import annotations

import pytest
from tests.wgmma_programs import COMMIT, FENCE, HEAD, RS, SS, STORE, WAIT, kernel, memory, run

from ptxemu import Hazards

ZERO = "mov.b32 %r20, 0;"
OVER_A = "st.shared.v4.b32 [%r5], {%r20, %r20, %r20, %r20};"
OVER_B = "st.shared.v4.b32 [%r5+2048], {%r20, %r20, %r20, %r20};"
CONSUMERS = "setp.ge.u32 %p2, %r0, 128; @%p2 bra other;"
LEAVE = "ret; other:"
ARRIVE = "bar.arrive 1, 160;"
MEET = "bar.sync 1, 160;"
LATE = "sub.u32 %r21, %r5, 2048;"  # the fifth warp writes where the first one's part of A and B lie


def races(*body: str, threads: int = 128, blocks: int = 1) -> list[tuple[str, str, str]]:
    """Kind, first and second opcode (their first words) of each report."""
    hazards = Hazards()
    run(*body, threads=threads, blocks=blocks, observers=(hazards,))
    return [
        (each.kind, each.first.opcode.partition(".")[0], each.second.opcode.partition(".")[0])
        for each in hazards.reports
    ]


def test_a_fenced_program_in_order_has_no_races() -> None:
    assert races(FENCE, SS, COMMIT, WAIT, "bar.sync 0;", ZERO, OVER_A, STORE, blocks=3) == []


def test_ordinary_writes_need_a_fence_of_the_async_proxy() -> None:
    assert races(ZERO, OVER_A, "bar.sync 0;", FENCE, SS, COMMIT, WAIT) == [("proxy", "st", "wgmma")]
    fence = "fence.proxy.async.shared::cta;"
    assert races(ZERO, OVER_A, fence, "bar.sync 0;", FENCE, SS, COMMIT, WAIT) == []
    assert races(ZERO, OVER_A, "bar.sync 0;", fence, FENCE, SS, COMMIT, WAIT) == []


def test_all_threads_of_the_warpgroup_have_to_know_of_a_write() -> None:
    """Without a barrier a thread knows of its own write alone."""
    kinds = races(ZERO, OVER_B, "fence.proxy.async.shared::cta;", FENCE, RS, COMMIT, WAIT)
    assert ("RAW", "st", "wgmma") in kinds


@pytest.mark.parametrize("product", [SS, RS])
def test_a_matrix_may_not_be_overwritten_before_the_wait(product: str) -> None:
    assert races(FENCE, product, COMMIT, ZERO, OVER_B, WAIT) == [("async overwrite", "wgmma", "st")]
    assert races(FENCE, product, COMMIT, WAIT, "bar.sync 0;", ZERO, OVER_B) == []


def test_a_matrix_in_registers_is_not_read_from_memory() -> None:
    assert races(FENCE, RS, COMMIT, ZERO, OVER_A, WAIT) == []


def test_a_stage_is_released_after_the_wait() -> None:
    """Warp 4 writes over the matrices when the consumers have arrived at barrier 1."""
    writer = (LEAVE, MEET, ZERO, LATE, "st.shared.v4.b32 [%r21], {%r20, %r20, %r20, %r20};")
    late = races(CONSUMERS, FENCE, SS, COMMIT, WAIT, ARRIVE, STORE, *writer, threads=160)
    assert late == []
    early = races(CONSUMERS, FENCE, SS, COMMIT, ARRIVE, WAIT, STORE, *writer, threads=160)
    assert early
    assert {kind for kind, _, _ in early} <= {"WAR", "async overwrite"}


@pytest.mark.parametrize(("meet", "found"), [("", [("WAR", "wgmma", "st")]), ("bar.sync 0;", [])], ids=["alone", "met"])
def test_a_warp_that_has_waited_knows_nothing_of_the_others(meet: str, found: list[tuple[str, str, str]]) -> None:
    """The first warp comes to the wait before the others, who are held up at a barrier until it has waited."""
    first = ("setp.lt.u32 %p2, %r0, 32; @!%p2 bar.sync 1, 128;", WAIT, "@%p2 bar.arrive 1, 128;")
    over = ("@!%p2 bra over;", OVER_B, "over:")
    assert races(FENCE, SS, COMMIT, *first, meet, ZERO, *over) == found


def test_blocks_that_read_at_different_places_are_told_apart() -> None:
    """The second block's A begins 512 bytes on, and ends where its last warps write."""
    moved = "mul.wide.u32 %rd12, %r1, 32; add.u64 %rd10, %rd10, %rd12;"
    over = "setp.lt.u32 %p3, %r0, 4; @%p3 st.shared.v4.b32 [%r5], {%r20, %r20, %r20, %r20};"
    found = Hazards()
    run(moved, FENCE, SS, COMMIT, ZERO, over, WAIT, blocks=2, observers=(found,))
    (report,) = found.reports
    assert report.kind == "async overwrite"
    assert report.block == (0, 0, 0)


def test_the_twin_of_the_head_without_its_fence_is_reported() -> None:
    hazards = Hazards()
    text = kernel(FENCE, SS, COMMIT, WAIT, STORE, head=HEAD.replace("fence.proxy.async.shared::cta;", ""))
    out = memory().astype("f4")
    text.launch((1,), (128,), (out, memory()), observers=(hazards,))
    assert [each.kind for each in hazards.reports] == ["proxy", "proxy"]
    assert "fence.proxy.async is missing" in hazards.render()


@pytest.mark.parametrize("per_block", ["", "mul.wide.u32 %rd12, %r1, 0; add.u64 %rd10, %rd10, %rd12;"])
def test_in_a_cluster_each_block_has_its_own_matrices(per_block: str) -> None:
    """The same descriptors in both blocks, once as one number for both and once as one for each."""
    for body, kinds in (
        ((FENCE, SS, COMMIT, WAIT, "bar.sync 0;", ZERO, OVER_A), set()),
        ((FENCE, SS, COMMIT, ZERO, OVER_A, WAIT), {"async overwrite"}),
    ):
        hazards = Hazards()
        out = memory(4).astype("f4")
        kernel(per_block, *body).launch((4,), (128,), (out, memory(4)), cluster=2, observers=(hazards,))
        assert {each.kind for each in hazards.reports} == kinds
        assert {each.count for each in hazards.reports} <= {4 * 128}


def test_the_peer_may_not_write_over_a_matrix_that_is_read() -> None:
    """The second block of a cluster stores into the first one's B while that multiplies, or after both have met."""
    remote = (
        "setp.ne.u32 %p3, %r1, 1; mov.u32 %r22, 0; mapa.shared::cluster.u32 %r23, %r5, %r22; mov.b32 %r20, 0;"
        "@!%p3 st.shared::cluster.b32 [%r23+2048], %r20;"
    )
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    for body, found in (
        ((meet, FENCE, SS, COMMIT, WAIT, meet, remote, meet), False),
        ((meet, FENCE, SS, COMMIT, WAIT, remote, meet), True),
    ):
        hazards = Hazards()
        out = memory(2).astype("f4")
        kernel(*body).launch((2,), (128,), (out, memory(2)), cluster=2, observers=(hazards,))
        assert bool(hazards.reports) == found, hazards.render()
        assert {each.second.opcode for each in hazards.reports} <= {"st.shared::cluster.b32"}
        assert {each.first_block for each in hazards.reports} <= {(0, 0, 0)}
