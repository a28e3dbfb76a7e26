"""What the race detector says of bulk copies: nothing of right programs, each missing order or fence of others."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases import bulk, copies, tensor_copies
from tests.cases.harness import Case, Kernel, entry_name, launch_case, ptx_of

import ptxemu
from ptxemu.errors import EmulationError
from ptxemu.values import Array

HEAD = """.version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
.shared .align 128 .b8 box[1024]; .shared .align 8 .b64 full[2]; .shared .align 8 .b64 empty[2];
.reg .b32 at, to, fb, eb, turn, n, x, y, phase; .reg .b64 src, dst, own; .reg .pred one, ok, p, producer;
ld.param.u64 src, [in]; ld.param.u64 dst, [out];
mov.u32 at, box; mov.u32 fb, full; mov.u32 eb, empty; mov.u32 turn, %tid.x;
setp.eq.u32 one, turn, 0; mad.lo.u32 to, turn, 4, at; mul.wide.u32 own, turn, 4; mov.u32 x, 0;
"""
INIT = """@one mbarrier.init.shared::cta.b64 [fb], 1;
@one mbarrier.init.shared::cta.b64 [eb], 32;
@one fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [fb], 128;"
# Warp 1 brings four tiles of 128 bytes into one stage; warp 0 adds them up.
RING = f"""setp.ge.u32 producer, turn, 32; mov.u32 n, 0; mov.u32 phase, 0;
@producer bra bring;
take: mbarrier.try_wait.parity.shared::cta.b64 ok, [fb], phase;
@!ok bra take;
ld.shared.u32 y, [to]; add.u32 x, x, y;
mbarrier.arrive.shared::cta.b64 _, [eb];
xor.b32 phase, phase, 1; add.u32 n, n, 1; setp.lt.u32 p, n, 4;
@p bra take;
add.s64 dst, dst, own; st.global.u32 [dst], x;
bra done;
bring: setp.ne.u32 p, turn, 32;
@p bra done;
next: setp.eq.u32 p, n, 0;
@p bra first;
xor.b32 x, phase, 1;
free: mbarrier.try_wait.parity.shared::cta.b64 ok, [eb], x;
@!ok bra free;
first: {EXPECT}
{LOAD} [at], [src], 128, [fb];
add.s64 src, src, 128; xor.b32 phase, phase, 1; add.u32 n, n, 1; setp.lt.u32 p, n, 4;
@p bra next;
done: ret;
}}
"""


def hazards(text: str, threads: int = 64, blocks: int = 1) -> tuple[str, Array]:
    """The kinds of the reports of one cluster, and the output."""
    given, out = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    found = ptxemu.Hazards()
    ptxemu.load(text).kernel().launch((blocks,), (threads,), (given, out), observers=found, cluster=blocks)
    return " ".join(sorted({report.kind for report in found.reports})), out


def test_a_ring_of_one_stage_is_right() -> None:
    kinds, out = hazards(HEAD + INIT + RING)
    assert kinds == ""
    assert out[:32].tolist() == [4 * lane + 32 * 6 for lane in range(32)]


@pytest.mark.parametrize(
    ("fence", "kinds"),
    [
        ("", "mbarrier fence"),
        ("@!one fence.mbarrier_init.release.cluster;\n", "mbarrier fence"),
        ("@one fence.proxy.async;\n", ""),
        ("bar.sync 0;\nfence.proxy.async;\n", ""),  # the producer's own, behind the barrier
    ],
    ids=["none", "that of others", "of the whole proxy", "behind the barrier"],
)
def test_a_copy_tells_an_mbarrier_whose_init_is_fenced(fence: str, kinds: str) -> None:
    init = INIT.replace("@one fence.mbarrier_init.release.cluster;\n", fence)
    assert hazards(HEAD + init + RING)[0] == kinds


TAKE, GIVE = "ld.shared.u32 y, [to]; add.u32 x, x, y;\n", "mbarrier.arrive.shared::cta.b64 _, [eb];\n"


@pytest.mark.parametrize("schedule", ["together", "reverse", 1])
def test_a_phase_promises_nothing_of_arrivals_beyond_its_count(schedule: str | int) -> None:
    """A count of 31 for a warp: its last lane arrives in the next phase; it may read when the stage is filled."""
    found = ptxemu.Hazards()
    given, out = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    kernel = ptxemu.load(HEAD + INIT.replace("[eb], 32", "[eb], 31") + RING).kernel()
    kernel.launch(1, 64, (given, out), observers=found, schedule=schedule)
    assert {(race.kind, race.second_thread, race.first_thread) for race in found.reports} == {("WAR", 32, 31)}


def test_a_stage_that_is_released_before_it_is_read() -> None:
    text = HEAD + INIT + RING
    assert TAKE + GIVE in text
    assert "WAR" in hazards(text.replace(TAKE + GIVE, GIVE + TAKE))[0]


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("@p bra first;\n", "bra first;\n", "mbarrier"),
        ("[fb], phase;\n@!ok bra take;", "[fb], 1;", "uninitialised"),
        (EXPECT, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [fb], 144;", "deadlock"),
    ],
    ids=["the producer does not wait", "the reader does not wait", "more bytes are expected than come"],
)
def test_a_ring_that_breaks(old: str, new: str, kind: str) -> None:
    text = HEAD + INIT + RING
    assert old in text
    with pytest.raises(EmulationError) as caught:
        hazards(text.replace(old, new, 1))
    assert caught.value.kind == kind


STORED = f"""st.shared.u32 [to], turn;
fence.proxy.async.shared::cta;
bar.sync 0;
@one {STORE} [dst], [at], 128;
@one cp.async.bulk.commit_group;
@one cp.async.bulk.wait_group.read 0;
bar.sync 0;
st.shared.u32 [to], 7;
@one cp.async.bulk.wait_group 0;
ret;
}}
"""


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("", "", ""),
        ("fence.proxy.async.shared::cta;\n", "", "proxy"),
        ("fence.proxy.async.shared::cta;\nbar.sync 0;", "bar.sync 0;\nfence.proxy.async.shared::cta;", ""),
        ("fence.proxy.async.shared::cta;\nbar.sync 0;", "bar.sync 0;\n@!one fence.proxy.async;", "proxy"),
        ("fence.proxy.async.shared::cta;", "@one fence.proxy.async;", "proxy"),
        ("fence.proxy.async.shared::cta;", "fence.proxy.async.global;", "proxy"),
        ("async.shared::cta;\nbar.sync 0;", "async.shared::cta;", "RAW"),
        ("@one cp.async.bulk.wait_group.read 0;\n", "", "async overwrite"),
        ("wait_group.read 0;\nbar.sync 0;", "wait_group.read 0;", "WAR"),
        ("wait_group.read 0;\nbar.sync 0;", "wait_group.read 1;\nbar.sync 0;", "async overwrite"),
    ],
    ids=["right", "no fence", "fence of the issuer", "fence of others behind the barrier", "fence of one thread",
         "fence of global memory",
         "no barrier", "no wait", "no barrier behind the wait", "a wait that leaves it"],
)  # fmt: skip
def test_a_store_from_shared_memory(old: str, new: str, kinds: str) -> None:
    text = HEAD + STORED
    assert old in text
    assert hazards(text.replace(old, new, 1), 32)[0] == kinds


@pytest.mark.parametrize(
    ("second", "kinds"),
    [
        (f"@one {STORE} [dst], [at], 64;", "in-flight write"),
        (f"add.s64 dst, dst, 112;\n@one {STORE} [dst], [at], 64;", "in-flight write"),
        (f"add.s64 dst, dst, 128;\n@one {STORE} [dst], [at], 64;", ""),
        (f"@one cp.async.bulk.commit_group;\n@one cp.async.bulk.wait_group 0;\n@one {STORE} [dst], [at], 64;", ""),
    ],
    ids=["same place", "a part", "behind it", "after a wait"],
)
def test_two_stores_in_flight(second: str, kinds: str) -> None:
    text = HEAD + STORED.replace("@one cp.async.bulk.commit_group;", f"{second}\n@one cp.async.bulk.commit_group;", 1)
    assert hazards(text, 32)[0] == kinds


# The first block of a cluster, alone.
SUMS = """mov.u32 n, %ctaid.x; setp.ne.u32 producer, n, 0;
@producer ret;
st.shared.u32 [to], turn; st.shared.u32 [to+512], 0;
fence.proxy.async;
bar.sync 0;
setp.lt.u32 p, turn, 2;
@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [fb], 256;
add.u32 x, at, 512;
@p OPCODE [x], [at], 128, [fb];
take: mbarrier.try_wait.parity.shared::cta.b64 ok, [fb], 0;
@!ok bra take;
ld.shared.u32 y, [to+512]; add.s64 dst, dst, own; st.global.u32 [dst], y;
ret;
}
"""


@pytest.mark.parametrize(
    ("opcode", "kinds", "times"),
    [
        ("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32", "", 2),
        ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", "in-flight write", 1),
    ],
)
def test_reductions_may_meet_and_copies_not(opcode: str, kinds: str, times: int) -> None:
    found, out = hazards(HEAD + INIT + SUMS.replace("OPCODE", opcode), 32, blocks=2)
    assert found == kinds
    assert out[:32].tolist() == [times * lane for lane in range(32)]


@pytest.mark.parametrize(("place", "kinds"), [("@!ok bra take;\n", ""), ("take:", "async overwrite")])
def test_the_source_of_a_copy_within_shared_memory(place: str, kinds: str) -> None:
    """Behind the wait it may be written over, but not before."""
    copy = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    text = SUMS.replace("@p OPCODE", f"@one {copy}").replace("[fb], 256", "[fb], 128")
    over = "st.shared.u32 [to], 9;\n"
    text = text.replace(place, over + place if kinds else place + over)
    assert hazards(HEAD + INIT + text, 32, blocks=2)[0] == kinds


def test_copies_within_shared_memory_need_clusters() -> None:
    copy = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    with pytest.raises(EmulationError, match="a bulk copy between shared memories in a grid without clusters"):
        hazards(HEAD + INIT + SUMS.replace("OPCODE", copy), 32)


def test_stores_of_two_blocks_meet() -> None:
    out, found = np.zeros(256, np.uint32), ptxemu.Hazards()
    ptxemu.load(HEAD + STORED).kernel().launch((2,), (32,), (out, out), observers=found)
    assert "WAW" in {report.kind for report in found.reports}
    assert {report.space for report in found.reports} == {"global"}


class Watched:
    """A kernel that is launched under the race detector."""

    def __init__(self, kernel: ptxemu.Kernel) -> None:
        self.kernel = kernel
        self.found = ptxemu.Hazards()

    def launch(self, grid: tuple[int, ...], block: tuple[int, ...], args: list[Array]) -> object:
        """Runs it."""
        return self.kernel.launch(grid, block, args, observers=self.found)


@pytest.mark.parametrize("module", [bulk, tensor_copies, copies], ids=lambda module: module.__name__.split(".")[-1])
def test_no_case_is_flagged(module: object) -> None:
    cases: list[Case] = module.CASES  # type: ignore[attr-defined]  # each of them has some
    program = ptxemu.load(ptx_of(cases))
    for index, case in enumerate(cases):
        watched = Watched(program.kernel(entry_name(index)))
        kernel: Kernel = watched  # type: ignore[assignment]  # narrower arguments
        launch_case(case, kernel)
        assert watched.found.render() == "", case.note


def test_a_copy_outlives_its_block() -> None:
    with pytest.raises(
        EmulationError, match=r"still reads from the shared memory of block \(0, 0, 0\), which has exited"
    ):
        hazards(
            HEAD
            + STORED.replace("@one cp.async.bulk.wait_group.read 0;", "", 1).replace("wait_group 0", "wait_group 1"),
            32,
        )
