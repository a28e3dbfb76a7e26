"""Copies that meet in one place: with each other, with reads of threads, with atomics, with the end of a block."""

from __future__ import annotations

import pytest
from tests.test_async_races import EXPECT, HEAD, INIT, LOAD, STORE, SUMS, hazards

from ptxemu import EmulationError

COMMITTED = "@one cp.async.bulk.commit_group;\n"
FILLED = "st.shared.u32 [to], turn;\nfence.proxy.async;\nbar.sync 0;\n"
BOTH = f"""@one {STORE} [dst], [at], 128;
{COMMITTED}add.s64 dst, dst, 128;
@one {STORE} [dst], [at], 128;
{COMMITTED}"""
END = "@one cp.async.bulk.wait_group 0;\nret;\n}\n"


@pytest.mark.parametrize(("left", "kinds"), [(0, ""), (1, "async overwrite")])
def test_a_source_of_two_copies_is_kept_for_both(left: int, kinds: str) -> None:
    wait = f"@one cp.async.bulk.wait_group.read {left};\nbar.sync 0;\nst.shared.u32 [to], 7;\n"
    assert hazards(HEAD + FILLED + BOTH + wait + END, 32)[0] == kinds


# What threads, or a copy, do to the box before a copy writes into it.
ATOMIC, READ = "red.shared.add.u32 [to], 1;\n", "ld.shared.u32 y, [to];\n"
STORED = f"@one {STORE} [dst], [at], 128;\n{COMMITTED}"
BRING = f"@one {EXPECT}\n@one {LOAD} [at], [src], 128, [fb];\n"
TAKE = "take: mbarrier.try_wait.parity.shared::cta.b64 ok, [fb], 0;\n@!ok bra take;\n"


@pytest.mark.parametrize(
    ("before", "order", "kinds"),
    [
        (ATOMIC, "fence.proxy.async;\n", "WAW"),
        (ATOMIC, "fence.proxy.async;\nbar.sync 0;\n", ""),
        (READ, "", "WAR"),
        (READ, "bar.sync 0;\n", ""),
        (STORED, "", "async overwrite"),
        (STORED, "@one cp.async.bulk.wait_group.read 0;\n", ""),
    ],
    ids=[
        "atomics",
        "atomics and a barrier",
        "reads",
        "reads and a barrier",
        "a copy's read",
        "a copy's read, waited for",
    ],
)
def test_what_a_copy_writes_over(before: str, order: str, kinds: str) -> None:
    assert hazards(HEAD + INIT + FILLED + before + order + BRING + TAKE + END, 32)[0] == kinds


@pytest.mark.parametrize(("apart", "kinds"), [(0, "in-flight write"), (128, "")])
def test_two_threads_of_one_instruction_store_to_one_place(apart: int, kinds: str) -> None:
    each = f"setp.lt.u32 p, turn, 2; mad.wide.u32 dst, turn, {apart}, dst;\n@p {STORE} [dst], [at], 128;\n"
    end = END.replace("@one cp", "cp")
    assert hazards(HEAD + FILLED + each + COMMITTED.replace("@one ", "") + end, 32)[0] == kinds


def test_a_copy_into_a_block_that_has_exited() -> None:
    with pytest.raises(EmulationError, match=r"still writes to the shared memory of block \(0, 0, 0\)"):
        hazards(HEAD + INIT + BRING + "ret;\n}\n", 32)


def test_a_wait_for_reads_leaves_the_writes_to_come() -> None:
    """The thread reads its target behind both waits."""
    looks = "@one cp.async.bulk.wait_group.read 0;\n@one ld.global.u32 x, [dst+4];\n"
    looks += "@one cp.async.bulk.wait_group 0;\n@one ld.global.u32 y, [dst+4];\n"
    shown = "@one st.global.u32 [dst+256], x;\n@one st.global.u32 [dst+260], y;\n"
    assert hazards(HEAD + FILLED + STORED + looks + shown + END, 32)[1][64:66].tolist() == [0, 1]


@pytest.mark.parametrize(("place", "kinds"), [("src+124", "WAR"), ("src+128", "")])
def test_a_block_stores_into_what_a_copy_of_another_reads(place: str, kinds: str) -> None:
    apart = "mov.u32 n, %ctaid.x; setp.eq.u32 p, n, 1;\n@p bra other;\n"
    other = f"ret;\nother: @one st.global.u32 [{place}], x;\n{END}"
    assert hazards(HEAD + INIT + apart + BRING + TAKE + other, 32, blocks=2)[0] == kinds


@pytest.mark.parametrize(("fence", "kinds"), [("", "proxy"), ("@one fence.proxy.async.shared::cta;\n", "")])
def test_a_thread_fences_what_it_wrote_itself(fence: str, kinds: str) -> None:
    filled = "@one st.shared.v4.u32 [at], {x, x, x, x};\n"
    assert hazards(f"{HEAD}{filled}{fence}@one {STORE} [dst], [at], 16;\n{COMMITTED}{END}", 32)[0] == kinds


def test_threads_of_one_instruction_copy_different_sizes() -> None:
    """The first one 16 bytes, the second one 128, which are shown."""
    each = "setp.lt.u32 p, turn, 2; mad.lo.u32 n, turn, 112, 16; mad.lo.u32 at, turn, 128, at;\n"
    bring = f"@one {EXPECT.replace('128', '144')}\n@p {LOAD} [at], [src], n, [fb];\n"
    show = "ld.shared.u32 y, [to+128]; add.s64 dst, dst, own; st.global.u32 [dst], y;\n"
    kinds, out = hazards(HEAD + INIT + each + bring + TAKE + show + END, 32)
    assert (kinds, out[:32].tolist()) == ("", list(range(32)))


@pytest.mark.parametrize(("first", "kinds"), [("cp.async", "in-flight write"), ("cp.reduce.async", "")])
def test_a_reduction_meets_a_copy_in_flight(first: str, kinds: str) -> None:
    path, target = "bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", "[x], [at], 128, [fb];"
    add = f"cp.reduce.async.{path}.add.u32"
    opcode = add if "reduce" in first else f"cp.async.{path}"
    both = f"@one {opcode} {target}\nsetp.eq.u32 p, turn, 1;\n@p {add} {target}"
    assert hazards(HEAD + INIT + SUMS.replace(f"@p OPCODE {target}", both), 32, blocks=2)[0] == kinds
