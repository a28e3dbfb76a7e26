"""Races of bulk copies: nothing is said of right programs; each missing order, wait or fence of others is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cases import bulk, copies, tensor_copies
from tests.cases.harness import Case, Kernel, entry_name, launch_case, ptx_of
from tests.programs import refuses, table_of, text_of

import ptxemu
from ptxemu.values import Array

HEAD = text_of("bulk_races", "bulk_head")
INIT = text_of("bulk_races", "bulk_init")
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [fb], 128;"
# Warp 1 brings four tiles of 128 bytes into one stage; warp 0 adds them up.
RING = text_of("bulk_races", "bulk_ring")
STORED = text_of("bulk_races", "bulk_stored")
# The first block of a cluster, alone.
SUMS = text_of("bulk_races", "bulk_sums")
CHANGES = table_of("bulk_races", "bulk_changes")  # of these texts, and what is found then


def launched(text: str, threads: int = 64, blocks: int = 1, **options: Any) -> tuple[ptxemu.Hazards, Array]:
    """The races of one cluster, and the output."""
    given, out, found = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32), ptxemu.Hazards()
    ptxemu.load(text).kernel().launch(blocks, threads, (given, out), observers=found, cluster=blocks, **options)
    return found, out


def kinds(text: str, threads: int = 64, blocks: int = 1) -> str:
    return " ".join(sorted({report.kind for report in launched(HEAD + text, threads, blocks)[0].reports}))


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


# --- a ring of stages -------------------------------------------------------------------------------------------------


def test_a_ring_of_one_stage_is_right() -> None:
    found, out = launched(HEAD + INIT + RING)
    assert not found.reports
    assert out[:32].tolist() == [4 * lane + 32 * 6 for lane in range(32)]


@pytest.mark.parametrize(("old", "new", "found"), CHANGES["ring"])
def test_fences_and_releases_of_a_ring(old: str, new: str, found: str) -> None:
    assert kinds(changed(INIT + RING, old, new)) == found


@pytest.mark.parametrize("schedule", ["together", "reverse", 1])
def test_a_phase_promises_nothing_of_arrivals_beyond_its_count(schedule: str | int) -> None:
    """A count of 31 for a warp: its last lane arrives in the next phase; it may read when the stage is filled."""
    found, _ = launched(HEAD + changed(INIT, "[eb], 32", "[eb], 31") + RING, schedule=schedule)
    assert {(race.kind, race.second_thread, race.first_thread) for race in found.reports} == {("WAR", 32, 31)}


@pytest.mark.parametrize(("old", "new", "kind"), CHANGES["broken ring"])
def test_a_ring_that_breaks(old: str, new: str, kind: str) -> None:
    with refuses(kind):
        launched(HEAD + changed(INIT + RING, old, new))


# --- stores from shared memory ----------------------------------------------------------------------------------------

READ = "@one cp.async.bulk.wait_group.read 0;"
COMMIT = "@one cp.async.bulk.commit_group;"


@pytest.mark.parametrize(("old", "new", "found"), CHANGES["store"])
def test_a_store_from_shared_memory(old: str, new: str, found: str) -> None:
    assert kinds(changed(STORED, old, new), 32) == found


def test_stores_of_two_blocks_meet() -> None:
    out, found = np.zeros(256, np.uint32), ptxemu.Hazards()
    ptxemu.load(HEAD + STORED).kernel().launch(2, 32, (out, out), observers=found)
    assert ("global", "WAW") in {(report.space, report.kind) for report in found.reports}


def test_a_copy_outlives_its_block() -> None:
    text = changed(STORED, READ, "").replace("wait_group 0", "wait_group 1")
    with refuses("exited", r"still reads from the shared memory of block \(0, 0, 0\), which has exited"):
        launched(HEAD + text, 32)
    with refuses("exited", r"still writes to the shared memory of block \(0, 0, 0\)"):
        launched(HEAD + INIT + BRING + "ret;\n}\n", 32)


# --- copies that meet threads, and each other -------------------------------------------------------------------------

FILLED = "st.shared.u32 [to], turn;\nfence.proxy.async;\nbar.sync 0;\n"
OUT = f"@one {STORE} [dst], [at], 128;\n{COMMIT}\n"
END = "@one cp.async.bulk.wait_group 0;\nret;\n}\n"
BRING = f"@one {EXPECT}\n@one {LOAD} [at], [src], 128, [fb];\n"
AWAIT = "take: mbarrier.try_wait.parity.shared::cta.b64 ok, [fb], 0;\n@!ok bra take;\n"
WITHIN = "bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
ADD = f"cp.reduce.async.{WITHIN}.add.u32"
COPIES = table_of("bulk_races", "copies_in_one_place")


@pytest.mark.parametrize(("text", "blocks", "found"), COPIES["rows"])
def test_copies_in_one_place(text: str, blocks: int, found: str) -> None:
    """What threads or a copy did before, sources of two copies, blocks, a thread's own fence, reductions, waits."""
    assert kinds(text.format(**globals(), **COPIES["texts"]), 32, blocks) == found


@pytest.mark.parametrize(("text", "first", "second", "count"), COPIES["threads"])
def test_copies_that_meet_name_their_threads(text: str, first: int, second: int, count: int) -> None:
    found, _ = launched(HEAD + text.format(**globals(), **COPIES["texts"]), 32)
    assert {(each.first_thread, each.second_thread, each.count) for each in found.reports} == {(first, second, count)}


def test_what_copies_within_shared_memory_leave() -> None:
    for opcode, times in ((ADD, 2), (f"cp.async.{WITHIN}", 1)):
        out = launched(HEAD + INIT + SUMS.replace("OPCODE", opcode), 32, 2)[1]
        assert out[:32].tolist() == [times * lane for lane in range(32)]
    with refuses("arguments", "a bulk copy between shared memories in a grid without clusters"):
        launched(HEAD + INIT + SUMS.replace("OPCODE", f"cp.async.{WITHIN}"), 32)


def test_a_wait_for_reads_leaves_the_writes_to_come() -> None:
    """The thread reads its target behind both waits."""
    looks = (
        f"{READ}\n@one ld.global.u32 x, [dst+4];\n@one cp.async.bulk.wait_group 0;\n@one ld.global.u32 y, [dst+4];\n"
    )
    shown = "@one st.global.u32 [dst+256], x;\n@one st.global.u32 [dst+260], y;\n"
    assert launched(HEAD + FILLED + OUT + looks + shown + END, 32)[1][64:66].tolist() == [0, 1]


def test_threads_of_one_instruction_copy_different_sizes() -> None:
    """The first one 16 bytes, the second one 128, which are shown."""
    each = "setp.lt.u32 p, turn, 2; mad.lo.u32 n, turn, 112, 16; mad.lo.u32 at, turn, 128, at;\n"
    bring = f"@one {EXPECT.replace('128', '144')}\n@p {LOAD} [at], [src], n, [fb];\n"
    show = "ld.shared.u32 y, [to+128]; add.s64 dst, dst, own; st.global.u32 [dst], y;\n"
    found, out = launched(HEAD + INIT + each + bring + AWAIT + show + END, 32)
    assert (len(found.reports), out[:32].tolist()) == (0, list(range(32)))


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
