"""mbarriers: threads that wait are suspended, phases complete by arrivals and bytes, misuse is an error."""

from __future__ import annotations

import numpy as np
import pytest
from tests.hopper_kernels import ARRIVE, INIT, kernel, launch, store, wait

from ptxemu import EmulationError, Hazards

SECOND = "setp.ge.u32 %p0, %t, 32;\n"
PRODUCER = f"""{INIT}{SECOND}@!%p0 bra consumer;
st.shared.u32 [%place+-128], %t;
{ARRIVE}ret;
consumer:
"""
EXPECT = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar]"
COMPLETE = EXPECT.replace("expect", "complete")
STALE = "mov.b64 %state, 0;\nmbarrier.test_wait.shared::cta.b64 %done, [%bar], %state;"
CONSUMER = f"ld.shared.u32 %word, [%place];\n{store('%word')}"


def test_a_consumer_waits_for_the_warp_that_comes_later_in_the_text() -> None:
    out, result = launch(kernel(PRODUCER + wait() + CONSUMER, 32), blocks=3)
    assert (out[:, :32] == np.arange(32, 64)).all()
    assert result.instructions < 60  # suspended, not spinning


@pytest.mark.parametrize("schedule", ["reverse", 0, 1, 2])
def test_other_schedules_give_the_same(schedule: str | int) -> None:
    out, _ = launch(kernel(PRODUCER + wait() + CONSUMER, 32), blocks=2, schedule=schedule)
    assert (out[:, :32] == np.arange(32, 64)).all()


def test_a_schedule_shows_a_race() -> None:
    body = f"""{SECOND}
mov.u32 %place, words;
@!%p0 st.shared.u32 [%place], 1;
@%p0 st.shared.u32 [%place], 2;
bar.sync 0;
ld.shared.u32 %word, [%place];
{store("%word")}"""
    results = [int(launch(kernel(body), schedule=schedule)[0][0, 0]) for schedule in ("together", "reverse", 0, 1, 2)]
    assert results[:2] == [2, 1]  # the last warp's store comes first
    assert set(results[2:]) == {1, 2}


def test_a_schedule_that_does_not_exist() -> None:
    with pytest.raises(EmulationError, match="'together', 'reverse' or a seed") as caught:
        launch(kernel(""), schedule="sideways")
    assert caught.value.kind == "arguments"


def test_a_lane_that_waits_holds_back_the_rest_of_its_warp() -> None:
    body = f"""{INIT}{SECOND}@%p0 bra other;
@!%first bra meet;
{wait()}
meet: bar.warp.sync -1;
{store("5")}
ret;
other: {ARRIVE}"""
    out, _ = launch(kernel(body, 32))
    assert (out[0, :32] == 5).all()


def test_lanes_of_one_warp_may_wait_for_each_other() -> None:
    body = f"{INIT}@%first bra waiter;\n{ARRIVE}bra end;\nwaiter:\n{wait()}end:\n{store('%t')}"
    out, _ = launch(kernel(body, 31), threads=32)
    assert (out[0] == np.arange(32)).all()


def test_a_look_that_finds_the_phase_incomplete() -> None:
    body = f"""{INIT}
mbarrier.test_wait.parity.shared::cta.b64 %done, [%bar], 0;
selp.u32 %word, 1, 0, %done;
bar.sync 0;
@%first {ARRIVE}bar.sync 0;
mbarrier.test_wait.parity.shared::cta.b64 %done, [%bar], 0;
selp.u32 %n, 2, 0, %done;
add.u32 %word, %word, %n;
{store("%word")}"""
    out, _ = launch(kernel(body))
    assert (out == 2).all()


def test_bytes_may_land_before_they_are_announced() -> None:
    body = f"""{INIT}@!%first bra waiter;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 48;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 48;
waiter:
{wait()}{store("1")}"""
    out, _ = launch(kernel(body))
    assert (out == 1).all()


def test_a_last_arrival_that_drops_out_is_missed_in_the_next_phase() -> None:
    body = f"""{INIT}@!%first bra waiter;
{ARRIVE}{ARRIVE.replace("arrive", "arrive_drop")}mbarrier.arrive.shared::cta.b64 %state, [%bar];
mbarrier.pending_count.b64 %word, %state;
waiter:
{wait(1)}{store("%word")}"""
    out, _ = launch(kernel(body, 2))
    assert out[0, 0] == 1


def test_arrivals_of_one_instruction_may_complete_several_phases() -> None:
    arrive = ARRIVE.replace("_", "%state") + "mbarrier.pending_count.b64 %word, %state;\n"
    out, _ = launch(kernel(f"{INIT}{arrive}{store('%word')}", 16))
    assert sorted(out[0].tolist()) == sorted(4 * [*range(1, 17)])


def test_a_waiter_that_comes_a_phase_too_late_waits_on() -> None:
    body = f"{INIT}@!%first bra waiter;\n{ARRIVE}{ARRIVE}waiter:\n{wait(0)}"
    with pytest.raises(EmulationError, match="it is in phase 2") as caught:
        launch(kernel(body), threads=32)
    assert caught.value.kind == "deadlock"


@pytest.mark.parametrize(
    ("body", "count", "match"),
    [
        (ARRIVE, 1, "no mbarrier was initialised at 0x0"),
        (f"{INIT}@%first mbarrier.init.shared::cta.b64 [%bar], 1;", 4, "initialised already"),
        ("mbarrier.init.shared::cta.b64 [%bar], 4;", 1, "threads initialise one mbarrier"),
        (f"{INIT}", 0, "count of an mbarrier out of range"),
        (f"{INIT}@%first mbarrier.arrive.shared::cta.b64 _, [%bar], 0;", 4, "count of an mbarrier out of range"),
        (f"{INIT}@%first mbarrier.arrive.noComplete.shared::cta.b64 %state, [%bar], 1;", 1, "would complete the phase"),
        (
            f"{INIT}@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 8;\nbar.sync 0;\n@%first {ARRIVE}",
            1,
            "more arrivals than the phase takes.* found 1 more, and 8 bytes",
        ),
        (f"{INIT}@%first st.shared.u32 [%bar+4], %t;", 1, "store over the mbarrier at 0x0"),
        (f"{INIT}@%first mbarrier.inval.shared::cta.b64 [%bar];\n@%first {ARRIVE}", 1, "no mbarrier was initialised"),
        (f"{INIT}@%first {EXPECT}, 1048575;\nbar.sync 0;\n@%first {EXPECT}, 1;", 1, "tx-count of an mbarrier"),
        (f"{INIT}@%first {COMPLETE}, 1048575;\n@%first {COMPLETE}, 1;", 1, "tx-count of an mbarrier.*found -1048576"),
        (f"{INIT}mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 2;", 1, "parity of a phase.*found 2; the"),
        (f"{INIT}@%first mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 16;", 1, "bytes of a phase.*found 16"),
        (f"{INIT}@%first mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 16;", 1, "outstanding.*found -16"),
        (f"{INIT}{ARRIVE}{STALE}", 16, "neither the current one nor the one before"),
    ],
)  # fmt: skip
def test_misuse_is_an_error_that_names_it(body: str, count: int, match: str) -> None:
    with pytest.raises(EmulationError, match=match) as caught:
        launch(kernel(body, count))
    assert caught.value.kind == "mbarrier"


def test_misaligned_and_outside() -> None:
    for offset, kind in ((4, "misaligned"), (1 << 20, "out-of-bounds")):
        with pytest.raises(EmulationError) as caught:
            launch(kernel(f"mbarrier.init.shared::cta.b64 [%bar+{offset}], 1;"))
        assert caught.value.kind == kind


def test_after_inval_the_bytes_are_ordinary_memory() -> None:
    body = f"""{INIT}bar.sync 0;
@%first mbarrier.inval.shared::cta.b64 [%bar];
@%first st.shared.u32 [%bar], 9;
bar.sync 0;
ld.shared.u32 %word, [%bar];
{store("%word")}"""
    out, _ = launch(kernel(body))
    assert (out == 9).all()


def races(text: str, threads: int = 64) -> list[tuple[str, str, str]]:
    """Reports as (kind, first opcode, second opcode)."""
    hazards = Hazards()
    launch(text, threads, observers=[hazards])
    return [(each.kind, each.first.opcode, each.second.opcode) for each in hazards.reports]


def test_an_arrival_and_a_wait_order_what_was_stored() -> None:
    assert races(kernel(PRODUCER + wait() + CONSUMER, 32)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mbarrier.arrive.shared::cta.b64 _", "mbarrier.arrive.relaxed.cta.shared::cta.b64 _"),
        ("mbarrier.try_wait.parity.shared::cta.b64", "mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64"),
    ],
)
def test_relaxed_arrivals_and_waits_order_nothing(old: str, new: str) -> None:
    text = kernel(PRODUCER + wait() + CONSUMER, 32)
    assert old in text
    assert races(text.replace(old, new)) == [("RAW", "st.shared.u32", "ld.shared.u32")]


def test_memory_fences_make_relaxed_arrivals_and_waits_order() -> None:
    text = kernel(PRODUCER + wait() + CONSUMER, 32)
    text = text.replace("mbarrier.arrive.shared", "fence.acq_rel.cta;\nmbarrier.arrive.relaxed.cta.shared")
    text = text.replace("try_wait.parity.shared", "try_wait.parity.relaxed.cta.shared")
    fenced = text.replace("ld.shared.u32 %word", "fence.acq_rel.cta;\nld.shared.u32 %word")
    assert races(fenced) == []
    assert races(text) == [("RAW", "st.shared.u32", "ld.shared.u32")]
    late = fenced.replace("fence.acq_rel.cta;\nmbarrier.arrive", "mbarrier.arrive", 1)
    assert races(late) == [("RAW", "st.shared.u32", "ld.shared.u32")]


def test_an_arrival_before_the_store_does_not_order_it() -> None:
    swapped = PRODUCER.replace(
        f"st.shared.u32 [%place+-128], %t;\n{ARRIVE}", f"{ARRIVE}st.shared.u32 [%place+-128], %t;\n"
    )
    assert swapped != PRODUCER
    assert races(kernel(swapped + wait() + CONSUMER, 32)) == [("RAW", "st.shared.u32", "ld.shared.u32")]


def test_an_elected_arrival_needs_the_warp_to_have_met() -> None:
    body = f"""{INIT}{SECOND}@!%p0 bra consumer;
st.shared.u32 [%place+-128], %t;
bar.warp.sync -1;
setp.eq.u32 %p1, %t, 32;
@%p1 {ARRIVE}ret;
consumer:
{wait()}{CONSUMER}"""
    assert races(kernel(body)) == []
    without = kernel(body).replace("bar.warp.sync -1;", "")
    assert races(without) == [("RAW", "st.shared.u32", "ld.shared.u32")]


def test_a_use_that_nothing_orders_after_the_init() -> None:
    text = kernel(PRODUCER + wait() + CONSUMER, 32).replace("bar.sync 0;", "bar.warp.sync -1;")
    kinds = {report[0] for report in races(text)}
    assert "mbarrier" in kinds


def test_an_inval_that_nothing_orders_after_the_uses() -> None:
    body = f"{INIT}{SECOND}@%p0 {ARRIVE}@!%p0 bra end;\nret;\nend:\n{wait()}"
    end = "@%first mbarrier.inval.shared::cta.b64 [%bar];\n"
    assert races(kernel(body + "bar.warp.sync -1;\n" + end, 32)) == []
    assert ("mbarrier", "mbarrier.try_wait.parity.shared::cta.b64", "mbarrier.inval.shared::cta.b64") in races(
        kernel(body + end, 32)
    )
