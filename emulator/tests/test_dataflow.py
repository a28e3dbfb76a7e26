"""The graph of a run's values: a node for each, whatever its register is called and however often that is written."""

from __future__ import annotations

import numpy as np
from tests.programs import run

from ptxemu import Dataflow, Event


def followed(text: str, threads: int = 32) -> tuple[Dataflow, list[Event]]:
    graph = Dataflow()
    run(text, threads=threads, observers=(graph,))
    return graph, graph.events


def named(events: list[Event], word: str) -> list[Event]:
    return [event for event in events if event.word == word]


def test_a_copy_from_register_to_register_is_the_same_value() -> None:
    _, events = followed("mul.lo.u32 %r1, %r0, 3; mov.u32 %r2, %r1; add.u32 %r3, %r2, 1; st.global.u32 [%rd0], %r3;")
    product, total = named(events, "mul")[-1], named(events, "add")[-1]
    assert total.sources == product.results
    assert not [event for event in events if event.instruction.opcode == "mov.u32" and event.sources]


def test_a_register_that_is_overwritten_in_place_held_another_value() -> None:
    _, events = followed("add.u32 %r1, %r0, 1; add.u32 %r1, %r1, %r1; mov.u32 %r2, %r1; st.global.u32 [%rd0], %r2;")
    first, second = named(events, "add")[-2:]
    assert second.sources == (*first.results, *first.results)
    assert (first.results[0].array.ravel() == np.arange(32) + 1).all()
    assert (second.results[0].array.ravel() == 2 * np.arange(32) + 2).all()


def test_each_round_of_a_loop_makes_values_of_its_own() -> None:
    loop = "mov.u32 %r1, 0; again: add.u32 %r1, %r1, 5; setp.lt.u32 %p1, %r1, 15; @%p1 bra again;"
    graph, events = followed(f"{loop} st.global.u32 [%rd0], %r1;")
    rounds = [event for event in named(events, "add") if str(event.instruction.operands[0]) == "%r1"]
    assert [int(event.results[0].array.flat[0]) for event in rounds] == [5, 10, 15]
    assert rounds[2].sources == rounds[1].results
    graph.forget(rounds[2])
    assert graph.events[0] is rounds[2]
    assert rounds[1].sources == ()
    assert rounds[2].sources == rounds[1].results


def test_a_value_that_some_lanes_got_says_so_and_has_the_old_one_behind_it() -> None:
    _, events = followed(
        "mov.u32 %r1, 7; setp.lt.u32 %p1, %r0, 4; @%p1 add.u32 %r1, %r0, 0; st.global.u32 [%rd0], %r1;"
    )
    partly = next(event for event in events if event.instruction.guard)
    assert not partly.whole
    assert len(partly.sources) == 3  # %r0, the guard, what %r1 held
    assert partly.results[0].array.ravel().tolist() == [0, 1, 2, 3] + [7] * 28


def test_a_copy_that_some_lanes_make_is_another_value() -> None:
    copying = "mov.u32 %r1, 7; add.u32 %r2, %r0, 1; setp.ge.u32 %p1, %r0, 4; @%p1 bra over; mov.u32 %r1, %r2; over:"
    _, events = followed(f"{copying} add.u32 %r3, %r1, 0; st.global.u32 [%rd0], %r3;")
    copy, total = named(events, "mov")[-1], named(events, "add")[-1]
    assert not copy.whole
    assert total.sources == copy.results
    assert total.results[0].array.ravel().tolist() == [1, 2, 3, 4] + [7] * 28


def test_what_nobody_wrote_is_a_value_too() -> None:
    _, events = followed("add.u32 %r9, %r9, 1; st.global.u32 [%rd0], %r9;")
    total = named(events, "add")[-1]
    assert total.sources[0].event is None
    assert int(total.sources[0].array.flat[0]) == 0xFFFFFFFF
    assert int(total.results[0].array.flat[0]) == 0


def test_a_shuffle_from_an_absent_lane_is_followed() -> None:
    shuffle = "setp.lt.u32 %p1, %r0, 16; @%p1 shfl.sync.down.b32 %r1, %r0, 8, 31, 0xffff;"
    _, events = followed(f"{shuffle} setp.lt.u32 %p1, %r0, 8; @%p1 st.global.u32 [%rd0], %r1;")
    (exchange,) = named(events, "shfl")
    assert exchange.results[0].array.ravel()[:8].tolist() == list(range(8, 16))


def test_events_are_told_and_numbered_in_each_slice() -> None:
    told: list[Event] = []
    graph = type("Told", (Dataflow,), {"happened": lambda _, event: told.append(event)})()
    packed = "add.u32 %r9, %r9, 0x40003C01; setp.lt.u32 %p1, %r0, 4; @%p1 mov.u32 %r3, %r9; st.global.u32 [%rd0], %r3;"
    run(packed, 32, 2, memory_budget=1, observers=(graph,))
    half = len(told) // 2
    assert [event.number for event in told] == 2 * list(range(half))
    assert graph.events == told[half:]
    adds, copies = named(told, "add"), [event for event in named(told, "mov") if event.instruction.guard]
    assert [(event.number, event.sources[0].event) for event in adds[1::2]] == [(adds[1].number, None)] * 2
    assert adds[1].results[0].halves("f16x2").reshape(-1, 2)[0].tolist() == [1.0, 2.0]
    assert adds[1].results[0].as_type("s32").dtype == np.int32
    assert len(copies) == 2
    graph.forget(told[0])
    assert not graph.events
