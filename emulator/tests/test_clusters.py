"""Clusters: launches, ranks, remote memory, the cluster's barrier, and what goes wrong between blocks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import INIT, kernel, launch, races, refuses, store, table_of, text_of, wait

import ptxemu
from ptxemu import Hazards

MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
TX = "mbarrier::complete_tx::bytes"
PEER = text_of("clusters", "peer")
SWAP = f"{PEER}{MEET}st.shared::cluster.u32 [%r3], %r5;\n{MEET}ld.shared.u32 %word, [%place];\n{store('%word')}"


def report(body: str, count: int = 1, threads: int = 64) -> list[tuple[str, str, str]]:
    """The races of a launch in clusters of two as (kind, first opcode, second opcode)."""
    return races(kernel(body, count), threads, 4, cluster=2)


@pytest.mark.parametrize("schedule", ["together", "reverse", 0, 1])
def test_blocks_store_into_each_other(schedule: str | int) -> None:
    out, _ = launch(kernel(SWAP), 64, 4, cluster=2, schedule=schedule)
    assert (out == np.array([[1], [0], [3], [2]])).all()


def test_the_kernel_itself_may_require_clusters() -> None:
    text = kernel(SWAP, directives=".explicitcluster .reqnctapercluster 2, 1, 1")
    out, _ = launch(text, 64, 4)
    assert (out == np.array([[1], [0], [3], [2]])).all()
    with refuses("arguments", r"reqnctapercluster\): expected \(2, 1, 1\), found \(4, 1, 1\)"):
        launch(text, 64, 4, cluster=4)


def test_a_cluster_is_never_cut_by_the_memory_budget() -> None:
    out = np.zeros((8, 32), np.uint32)
    program = ptxemu.load(kernel(SWAP)).kernel()
    result = program.launch(8, 32, [out], cluster=4, memory_budget=1)
    assert result.slices == 2
    assert (out[:, 0] == [1, 0, 3, 2, 5, 4, 7, 6]).all()


@pytest.mark.parametrize(("first", "ran"), [(1, 2), (np.int64(3), 6), (9, 8), (None, 8)])
def test_the_first_clusters_may_run_alone(first: int | None, ran: int) -> None:
    """What they see of the grid is as if all ran; of others nothing is written."""
    out = np.full((8, 32), 99, np.uint32)
    result = ptxemu.load(kernel(SWAP)).kernel().launch(8, 32, [out], cluster=2, first=first)
    assert result.blocks == ran
    assert out[:, 0].tolist() == [1, 0, 3, 2, 5, 4, 7, 6][:ran] + [99] * (8 - ran)


def test_the_first_blocks_see_the_whole_grid() -> None:
    out = np.zeros((4, 3, 1), np.uint32)
    body = """mov.u32 %r0, %ctaid.x; mul.lo.u32 %r1, %r0, 4; cvt.u64.u32 %at, %r1; add.u64 %at, %out, %at;
mov.u32 %word, %nctaid.x;\nst.global.u32 [%at], %word;"""
    ptxemu.load(kernel(body)).kernel().launch((4, 3), 1, [out], first=2)
    assert out.ravel().tolist() == [4, 4] + [0] * 10


@pytest.mark.parametrize(("cluster", "blocks", "target", "match"), table_of("clusters", "no_such_cluster"))
def test_launches_that_no_chip_takes(cluster: int, blocks: int, target: str, match: str) -> None:
    with refuses("arguments", match):
        launch(kernel("").replace("sm_90a", target), 32, blocks, cluster=cluster)


@pytest.mark.parametrize(("body", "kind", "match"), table_of("clusters", "bad_clusters"))
def test_misuse_is_an_error_that_names_it(body: str, kind: str, match: str) -> None:
    with refuses(kind, match):
        launch(kernel(body.format(PEER=PEER, MEET=MEET, INIT=INIT)), 64, 2, cluster=2)


def test_exited_threads_count_as_arrived_and_work_may_lie_between_arrival_and_wait() -> None:
    out, _ = launch(kernel(f"setp.lt.u32 %p0, %t, 16;\n@%p0 ret;\n{MEET}{store('3')}"), 64, 2, cluster=2)
    assert (out[:, 16:] == 3).all()
    launch(kernel(f"setp.lt.u32 %p0, %t, 32;\n@%p0 bra one;\n{MEET}bra end;\none: {MEET}end:"), 40, 2, cluster=2)
    body = f"barrier.cluster.arrive;\nadd.u32 %word, %t, 1;\nbarrier.cluster.wait;\n{store('%word')}"
    assert (launch(kernel(body), 64, 2, cluster=2)[0] == np.arange(1, 65)).all()


RAW = ("RAW", "st.shared::cluster.u32", "ld.shared.u32")


@pytest.mark.parametrize(
    ("old", "new", "race"),
    [
        ("", "", None),
        (f"{PEER}{MEET}", f"st.shared.u32 [%place], %t;\n{PEER}", ("WAW", "st.shared.u32", "st.shared::cluster.u32")),
        (f"%r5;\n{MEET}", "%r5;\nbar.sync 0;\n", RAW),
        (
            f"st.shared::cluster.u32 [%r3], %r5;\n{MEET}ld.shared.u32 %word, [%place];",
            "@%first st.shared::cluster.v2.u32 [%r3], {%r5, %r5};\nbar.sync 0;\nld.shared.u32 %word, [words+4];",
            ("RAW", "st.shared::cluster.v2.u32", "ld.shared.u32"),
        ),
        ("%r5;\nbarrier.cluster.arrive", "%r5;\nbarrier.cluster.arrive.relaxed", RAW),
    ],
    ids=["right", "a peer that has not begun", "no barrier behind the store", "the second word", "a relaxed arrival"],
)
def test_a_clusters_barrier_orders_what_was_stored(old: str, new: str, race: tuple[str, str, str] | None) -> None:
    body = f"{SWAP}{MEET}"
    assert old in body
    found = report(body.replace(old, new, 1))
    assert race in found if race else not found


@pytest.mark.parametrize("relaxed", ["", ".relaxed"])
def test_a_peer_has_started_for_those_who_waited_for_it(relaxed: str) -> None:
    store_there = f"{PEER}st.shared::cluster.u32 [%r3], 1;\n{MEET}"
    assert report(store_there) == [("start", *2 * ["st.shared::cluster.u32"])]
    assert report(f"barrier.cluster.arrive{relaxed};\nbarrier.cluster.wait;\n{store_there}") == []


@pytest.mark.parametrize("threads", [64, 40])
def test_a_block_that_may_exit_before_its_peer_has_read(threads: int) -> None:
    body = f"{PEER}st.shared.u32 [%place], %t;\n{MEET}ld.shared::cluster.u32 %word, [%r3];\n{store('%word')}"
    assert report(f"{body}{MEET}", threads=threads) == []
    assert report(body, threads=threads) == [("exit", "ld.shared::cluster.u32", "ret")]


@pytest.mark.parametrize("waits", [True, False])
def test_any_thread_of_a_block_may_know_that_its_peer_has_read(waits: bool) -> None:
    """The second warp exits last and knows of nothing: a relaxed arrival of the first one is all that it waits for."""
    again = "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %done, [%bar], 0;\n@!%done bra again;\n"
    body = text_of("clusters", "second_warp_leaves").format(**globals(), AGAIN=again if waits else "")
    assert {each[0] for each in report(body, 64)} == (set() if waits else {"exit"})


def test_a_remote_arrival_orders_a_remote_store() -> None:
    body = text_of("clusters", "remote_arrival").format(**globals(), STORE=store("%word"))
    assert report(f"{body}{MEET}", 64) == []
    assert {each[0] for each in report(body, 64)} == set()  # each block waits for its peer's last access itself
    early = body.replace(MEET, "bar.sync 0;\n")
    assert {each[0] for each in report(f"{early}{MEET}", 64)} == {"mbarrier", "start"}


@pytest.mark.parametrize("fence", ["fence.mbarrier_init.release.cluster;", "fence.acq_rel.cluster;", ""])
def test_a_relaxed_barrier_publishes_mbarriers_that_were_fenced(fence: str) -> None:
    relaxed = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n"
    body = text_of("clusters", "relaxed_meeting").format(**globals(), fence=fence, relaxed=relaxed)
    assert {each[0] for each in report(body, 64)} == (set() if fence else {"mbarrier"})


def test_reports_name_the_blocks() -> None:
    begin = f"{PEER}st.shared.u32 [%place], %t;\nsetp.ge.u32 %p1, %r5, 2;\n{MEET}@%p1 "  # of the second cluster
    swap = SWAP.replace(f"{PEER}{MEET}", begin)
    body = f"{swap}{MEET}".replace(f"%r5;\n{MEET}", "%r5;\nbar.sync 0;\n", 1)
    hazards = Hazards()
    launch(kernel(body), 64, 4, observers=[hazards], cluster=2)
    race = hazards.reports[0]
    assert {race.block, race.first_block} == {(2, 0, 0), (3, 0, 0)}
    assert race.address == 1024 + 32  # of the block's own window
    assert "of block" in hazards.render()


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "exits"])
def test_an_asynchronous_store_into_a_block(waits: bool) -> None:  # that may have exited
    body = f"""{INIT}{PEER}@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 4;
{MEET}@%first st.async.shared::cluster.{TX}.u32 [%r3], %r5, [%r4];
"""
    if waits:
        out, _ = launch(kernel(f"{body}{wait()}ld.shared.u32 %word, [%place];\n{store('%word')}"), 1, 2, cluster=2)
        assert (out == np.array([[1], [0]])).all()
        return
    each = body.replace("%first st.async", "%p1 st.async").replace("%r2, %r2, 1", "%r2, %t, 0")  # thread t into block t
    each = each.replace(MEET, f"{MEET}setp.eq.u32 %p1, %r5, 0;\n", 1) + f"{MEET}@!%p1 ret;\n"
    with refuses("exited", r"the store still writes to .*block \(1, 0, 0\), which has exited"):
        launch(kernel(f"{each}{wait()}"), 2, 2, cluster=2)
