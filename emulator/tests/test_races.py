"""Races of ordinary accesses and cp.async: dictated events, each missing order beside its twin; programs."""

from __future__ import annotations

from collections.abc import Callable
import copy
from dataclasses import dataclass, field
import re
from typing import Any

import numpy as np
import pytest
from tests.events import LANE, Stream, other, own, u64
from tests.programs import kernel, launch, races_of, run, table_of, text_of

from ptxemu import Hazards, Instruction, render_hazards
from ptxemu.observe.hazards import KINDS
from ptxemu.observe.races import SharedRaces
from ptxemu.syntax.tree import SourceLine
from ptxemu.values import Array, BoolArray

Event = Callable[[Stream], object]
Race = tuple[str, int, int]  # kind, first line, second line


def row(stream: Stream) -> Array:
    """Each thread's own 16 bytes."""
    return stream.tid * np.uint64(16)


def next_row(stream: Stream) -> Array:
    """Those of the same lane in the other warp."""
    return (stream.tid + 32) % 64 * np.uint64(16)


def neighbour(stream: Stream) -> Array:
    """The word of the lane beside."""
    return own(stream) ^ np.uint64(4)


def first(stream: Stream) -> Array:
    """Warp 0's words, for every warp."""
    return own(stream) % np.uint64(128)


def warp(*numbers: int) -> Callable[[Stream], BoolArray]:
    return lambda stream: stream.only(*numbers)


def thread(*numbers: int) -> Callable[[Stream], BoolArray]:
    return lambda stream: np.isin(stream.tid, numbers)


def of(stream: Stream, value: Any) -> Any:
    return value(stream) if callable(value) else value


def at(kind: str, where: Any, line: int, width: int = 4, by: Any = None, space: str = "shared") -> Event:
    """An access of these lanes at addresses that are numbers or a function of the stream."""
    return lambda stream: stream.access(kind, u64(of(stream, where)), line, width, of(stream, by), space)


def meet(lanes: Any = True, number: int = 0) -> Event:
    return lambda stream: stream.barrier(lanes=of(stream, lanes), number=number)


def sync(lanes: Any = None) -> Event:
    return lambda stream: stream.warp_sync(lanes=of(stream, lanes))


def arrive(number: int, lanes: Any) -> Event:
    return lambda stream: stream.arrive(number, of(stream, lanes))


def watched(*events: Event, **shape: Any) -> Hazards:
    hazards = Hazards()
    stream = Stream(hazards, **shape)
    for event in events:
        event(stream)
    return hazards


def found(hazards: Hazards) -> set[Race]:
    return {(report.kind, report.first.line, report.second.line) for report in hazards.reports}


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        *(("st", "ld", "RAW"), ("ld", "st", "WAR"), ("st", "st", "WAW"), ("atom", "ld", "RAW"), ("ld", "atom", "WAR")),
        *(("st", "atom", "WAW"), ("atom", "st", "WAW"), ("st", "ldmatrix", "RAW"), ("ldmatrix", "st", "WAR")),
        *(("ld", "ld", None), ("atom", "atom", None), ("ld", "ldmatrix", None)),
    ],
)
@pytest.mark.parametrize("width", [4, 16])
def test_two_warps_need_a_barrier(before: str, after: str, kind: str | None, width: int) -> None:
    sizes = [16 if operation == "ldmatrix" else width for operation in (before, after)]

    def places(shift: int, size: int) -> Callable[[Stream], Array]:
        return lambda stream: (stream.tid + shift) % 64 * np.uint64(width) // np.uint64(size) * np.uint64(size)

    one, two = at(before, places(0, sizes[0]), 1, sizes[0]), at(after, places(32, sizes[1]), 2, sizes[1])
    assert found(watched(one, two)) == ({(kind, 1, 2)} if kind else set())
    assert found(watched(one, meet(), two)) == set()


WORDS = ("st", "ld", "st", "atom", "ld", "st")
RAW, LATE = ("RAW", 1, 2), {("WAR", 2, 3)}
OF_0, OF_1 = (at("st", own, 1, by=warp(number)) for number in (0, 1))
ST, GET = at("st", own, 1), at("ld", neighbour, 2)
FAR = LANE < 16  # lanes that read from eight lanes away
COUNT = at("atom", 0, 1)
ROWS = [
    at("st", row, 1, 16),
    at("ldmatrix", lambda s: (s.tid ^ np.uint64(1)) * np.uint64(16), 2, 16),
    at("st", row, 3, 16),
]
BYTES = [at("st", row, 1, 16), sync(), at("st", lambda s: s.tid, 2, 1)]


@pytest.mark.parametrize(
    ("events", "shape", "races"),
    [
        # a thread does not race with itself
        ([at(kind, own, line) for line, kind in enumerate(WORDS)], {"threads": 50}, set()),
        # a count by atomics, read by a thread whose own atomic came last
        ([COUNT, at("ld", 0, 2, by=thread(63))], {}, {RAW}),
        ([COUNT, meet(), at("ld", 0, 2, by=thread(63))], {}, set()),
        # lanes of a warp need bar.warp.sync, which orders the lanes that it names, and no other warp
        ([ST, GET], {}, {RAW}),
        ([ST, sync(), GET], {}, set()),
        ([ST, sync(LANE < 16), at("ld", lambda s: own(s) ^ np.uint64(32), 2, by=FAR)], {}, set()),
        ([ST, sync(LANE < 8), at("ld", lambda s: own(s) ^ np.uint64(32), 2, by=FAR)], {}, {RAW}),
        ([ST, sync(), at("ld", other, 2)], {}, {RAW}),
        ([ST, sync(LANE >= 0), at("ld", neighbour, 2, by=LANE >= 0), meet(LANE >= 0)], {"threads": 50}, set()),
        # it passes on what a lane learned at a barrier (barrier.sync without .aligned)
        ([OF_1, sync(LANE >= 0), meet(lambda s: s.only(1) | (s.tid == 0)), sync(LANE >= 0),
          at("ld", lambda s: own(s) + np.uint64(128), 2, by=warp(0))], {}, set()),
        # a write takes the place of the reads before it; a reader that comes later that of another one
        ([at("ld", 0, 1, by=warp(1)), at("atom", 4, 1, by=warp(1)), meet(warp(0, 1)),
          at("st", own, 2, by=thread(0, 1)), at("st", first, 3, by=thread(64, 65))], {"warps": 3}, {("WAW", 2, 3)}),
        ([at("ld", 0, 1, by=thread(3)), at("ld", 0, 2, by=thread(4)), at("st", 0, 3, by=thread(4))], {}, LATE),
        ([at("ld", 0, 1, by=thread(3)), sync(), at("ld", 0, 2, by=thread(4)), at("st", 0, 3, by=thread(4))], {}, set()),
        # ldmatrix orders no memory; a row is read by the lane that names it
        (ROWS, {}, {("RAW", 1, 2), ("WAR", 2, 3)}),
        ([ROWS[0], sync(), *ROWS[1:]], {}, {("WAR", 2, 3)}),
        ([*ROWS[:2], sync(), ROWS[2]], {}, {("RAW", 1, 2)}),
        ([ROWS[0], at("ldmatrix", lambda s: row(s)[..., :16], 2, 16)], {}, set()),
        ([ROWS[0], at("ldmatrix", lambda s: row(s)[..., :16] + np.uint64(16), 2, 16, warp(1))], {}, {RAW}),
        ([at("st", row, 1, 16, thread(5)), at("ldmatrix", lambda s: next_row(s)[..., :16], 2, 16, warp(1))],
         {"threads": 33}, {RAW}),
        *(([at(one, row, 1, 16), at(two, next_row, 2, 16)], {}, {(kind, 1, 2)}) for one, two, kind in
          (("ld", "stmatrix", "WAR"), ("stmatrix", "ld", "RAW"), ("stmatrix", "st", "WAW"))),
        ([at("stmatrix", lambda s: row(s)[..., :16], 1, 16), at("ld", row, 2, 16, LANE < 16)], {}, set()),
        # named barriers order their warps, by way of a third one, too
        ([OF_0, meet(warp(0, 1), 1), at("ld", first, 2, by=warp(1))], {"warps": 3}, set()),
        ([OF_0, meet(warp(0, 2), 1), at("ld", first, 2, by=warp(1))], {"warps": 3}, {RAW}),
        ([at("st", 0, 1, by=thread(0)), meet(warp(0, 1), 1), meet(warp(1, 2), 2), at("ld", 0, 2, by=warp(2))],
         {"warps": 3}, set()),
        # bar.arrive orders what came before it, and teaches the arriver nothing
        ([OF_0, arrive(3, warp(0)), meet(warp(1), 3), at("ld", first, 2, by=warp(1))], {}, set()),
        ([arrive(3, warp(0)), OF_0, meet(warp(1), 3), at("ld", first, 2, by=warp(1))], {}, {RAW}),
        ([OF_1, arrive(3, warp(0)), meet(warp(1), 3), at("ld", other, 2, by=warp(0))], {}, {RAW}),
        # it orders all who arrived, and none behind those who met
        ([OF_0, arrive(3, warp(0)), arrive(3, warp(1)), meet(warp(2), 3), at("ld", first, 2, by=warp(2))],
         {"warps": 3}, set()),
        ([OF_0, arrive(3, warp(0)), meet(warp(1), 3), meet(warp(2), 3), at("ld", first, 2, by=warp(2))],
         {"warps": 3}, {RAW}),
        # two lanes of one instruction write one byte
        ([at("st", 0, 7, by=thread(5, 9))], {}, {("same-instruction write", 7, 7)}),
        ([at("st", own, 7, by=thread(5, 9))], {}, set()),
        # bytes are told apart within a word
        (BYTES, {"warps": 1}, set()),
        ([*BYTES, at("ld", lambda s: s.tid // np.uint64(2) * np.uint64(2), 3, 2)], {"warps": 1}, {("RAW", 2, 3)}),
        ([*BYTES, at("ld", lambda s: s.tid * np.uint64(2) + np.uint64(64), 4, 2)], {"warps": 1}, set()),
    ],
)  # fmt: skip
def test_shared_memory(events: list[Event], shape: dict[str, int], races: set[Race]) -> None:
    assert found(watched(*events, **shape)) == races


# --- cp.async ---------------------------------------------------------------------------------------------------------


def issue(name: str, where: Any, line: int, by: Any = None) -> Event:
    """A copy of 16 bytes for each of these threads, to be waited for by its name."""
    copies: Callable[[Stream], Any] = lambda stream: stream.__dict__.setdefault("copies", {})  # noqa: E731 - one use
    return lambda stream: copies(stream).update({name: stream.copy(of(stream, where), line, mask=by)})


def wait(name: str = "c", lanes: Any = None) -> Event:
    return lambda stream: stream.wait(stream.__dict__["copies"][name], 98, of(stream, lanes))


def finish(stream: Stream) -> None:
    stream.observer.finish(stream.machine)


C = issue("c", row, 1)


@pytest.mark.parametrize(
    ("events", "races"),
    [
        *(([C, wait(), meet(), at(kind, next_row, 3, 16)], set()) for kind in ("ld", "ldmatrix")),
        *(([C, wait(), at(kind, next_row, 3, 16)], {("RAW", 1, 3)}) for kind in ("ld", "ldmatrix")),
        *(([C, meet(), at(kind, next_row, 3, 16)], {("in-flight read", 1, 3)}) for kind in ("ld", "ldmatrix")),
        # the issuing thread has to wait, too
        ([C, at("ld", row, 3, 16), at("st", row, 4)], {("in-flight read", 1, 3), ("in-flight write", 1, 4)}),
        ([C, wait(), at("ld", row, 3, 16), at("st", row, 4)], set()),
        # only the lanes that waited have landed
        ([C, wait(lanes=warp(0)), meet(), at("ld", row, 3, 16, warp(0))], set()),
        ([C, wait(lanes=warp(0)), meet(), at("ld", row, 3, 16, warp(1))], {("in-flight read", 1, 3)}),
        ([issue("c", row, 1, LANE < 8), wait(lanes=LANE < 16), at("ld", next_row, 3, 16, LANE >= 8)], set()),
        # issuing a copy over what others use
        *(([at(kind, row, 1, width), issue("c", next_row, 2)], {(race, 1, 2)}) for kind, width, race in
          (("ld", 16, "WAR"), ("ldmatrix", 16, "WAR"), ("st", 16, "WAW"), ("atom", 4, "WAW"))),
        *(([at(kind, row, 1, 16), meet(), issue("c", next_row, 2)], set()) for kind in ("ld", "ldmatrix", "st")),
        # two copies to one place; a wait ends its own copy only
        ([C, issue("d", row, 3)], {("in-flight write", 1, 3)}),
        ([C, wait(), issue("d", row, 3)], set()),
        ([C, issue("d", row, 2), wait(), at("ld", row, 4, 16)], {("in-flight write", 1, 2), ("in-flight read", 2, 4)}),
        # a copy of the same instruction by another thread; a wait behind a barrier; one place for two threads
        ([C, issue("d", next_row, 1), wait(), at("ld", row, 4, 16)],
         {("in-flight write", 1, 1), ("in-flight read", 1, 4)}),
        ([C, meet(), wait(), at("ld", next_row, 3, 16)], {("RAW", 1, 3)}),
        ([issue("c", lambda s: row(s) % np.uint64(512), 1)], {("WAW", 1, 1)}),
        ([C, finish], set()),  # nobody waits for it or touches it
    ],
)  # fmt: skip
def test_copies(events: list[Event], races: set[Race]) -> None:
    assert found(watched(*events)) == races


# --- blocks, reports, programs ----------------------------------------------------------------------------------------


def test_blocks_that_do_the_same_are_one_until_they_part() -> None:
    def shifted(base: Callable[[Stream], Array]) -> Callable[[Stream], Array]:
        return lambda s: base(s) + s.ctaid % np.uint64(2) * np.uint64(1024)

    apart = [at("st", shifted(own), 1), at("ld", shifted(own), 2)]
    assert not watched(*apart, blocks=6).reports  # each thread reads what it wrote
    report = watched(*apart, at("ld", lambda s: other(s) + np.uint64(1024), 3), blocks=6).reports[0]
    assert (report.kind, report.block, report.count) == ("RAW", (1, 0, 0), 3 * 64)
    some = watched(ST, meet(lambda s: s.ctaid != 2), at("ld", other, 2), blocks=4)
    assert [(report.block, report.count) for report in some.reports] == [((2, 0, 0), 64)]
    garbage = lambda s: np.where(LANE < 4, own(s), np.uint64(1 << 63) + s.ctaid)  # noqa: E731 - one use
    idle = watched(
        *(at(kind, garbage, 1, by=most > LANE) for kind, most in (("st", 4), ("ld", 4), ("ld", 0))), blocks=2
    )
    assert not idle.reports


def test_a_report_names_everything_and_reports_are_merged_and_bounded() -> None:
    hazards = watched(at("st", own, 3), at("ld", other, 8), blocks=2, first=7)
    report = hazards.reports[0]
    assert (report.address, report.first_thread, report.second_thread, report.count) == (128, 32, 0, 128)
    assert (report.block, report.first_block) == ((7, 0, 0), (7, 0, 0))
    assert hazards.render() == (
        "k.ptx:8: shared RAW (read after write by another thread) at 0x80, block (7, 0, 0): "
        "thread 0 in `ld;` (line 8 from kernel.cu:108), not ordered after "
        "thread 32 in `st;` (line 3 from kernel.cu:103); 128 times"
    )
    few = Hazards(limit=2)
    stream = Stream(few)
    for event in (ST, *(at("ld", other, line) for line in (2, 3, 4, 2))):
        event(stream)
    assert (found(few), few.reports[0].count, few.dropped) == ({RAW, ("RAW", 1, 3)}, 128, 1)
    assert few.render().endswith("1 more races beyond the first 2")
    assert render_hazards(few).startswith("HAZARDS: 3\n")
    source = None
    for depth in range(5):
        source = SourceLine(f"{depth}.cuh", depth, SourceLine("/usr/local/cuda/include/x.h", 1, source))
    inlined = Hazards()
    stream = Stream(inlined)
    ST(stream)
    stream.step("ld", 8).instruction = Instruction("ld.shared.u32", line=8, source=source)
    stream.access("ld", other(stream), 8)
    assert "`ld.shared.u32;` (line 8 from 4.cuh:4 < 3.cuh:3 < 2.cuh:2)" in inlined.render()


TILE = ".shared .align 16 .b8 tile[4096];"
PUT = "mov.u32 %r1, tile; shl.b32 %r2, %r0, 2; add.u32 %r2, %r1, %r2; st.shared.u32 [%r2], %r0;"
TAKE = "xor.b32 %r3, %r0, {}; shl.b32 %r3, %r3, 2; add.u32 %r3, %r1, %r3; ld.shared.u32 %r4, [%r3];"
TAKE += "st.global.u32 [%rd0], %r4;"


@pytest.mark.parametrize(("between", "distance", "races"), table_of("races", "synchronised"))
def test_programs(between: str, distance: int, races: list[str]) -> None:
    body = "\n".join([PUT, between, TAKE.format(distance)])
    assert (run(body, 64, 3, declarations=TILE) == np.arange(64) ^ distance).all()  # right numbers in any case
    assert races_of(body, 64, 3, declarations=TILE) == races


@pytest.mark.parametrize(("guard", "kinds"), table_of("races", "one_element"))
def test_lanes_and_warps_that_write_one_element_are_told_apart(guard: str, kinds: list[str]) -> None:
    hazards = Hazards()
    run(f"{guard} @%p1 st.shared.u32 [tile], %r0;", 64, declarations=TILE, observers=hazards)
    assert [report.kind for report in hazards.reports] == kinds
    for report in hazards.reports:
        same_warp = report.first_thread // 32 == report.second_thread // 32
        assert same_warp == (report.kind == "same-instruction write")


# --- global memory, between blocks ------------------------------------------------------------------------------------

FAR_AWAY = np.uint64(1 << 40)


@pytest.mark.parametrize("before", ["ld", "cp.async", "st", "atom"])
@pytest.mark.parametrize("after", ["ld", "cp.async", "st", "atom"])
def test_blocks_are_concurrent(before: str, after: str) -> None:
    kind = "RAW" if after in {"ld", "cp.async"} else "WAR" if before in {"ld", "cp.async"} else "WAW"
    harmless = before == after == "atom" or {before, after} <= {"ld", "cp.async"}
    for distance in (0, 1):
        tile = lambda s, d: FAR_AWAY + row(s) + (s.ctaid + np.uint64(d)) % 3 * np.uint64(1024)  # noqa: E731 - one use
        one = at(before, lambda s, tile=tile: tile(s, 0), 1, 16, space="global")
        two = at(after, lambda s, tile=tile, d=distance: tile(s, d), 2, 16, space="global")
        hazards = watched(one, meet(), two, blocks=3)
        assert found(hazards) == (set() if harmless or not distance else {(kind, 1, 2)})
        assert all(report.first_block != report.block for report in hazards.reports)


def test_blocks_of_other_slices_are_concurrent_too_but_not_other_launches() -> None:
    for again in (False, True):
        hazards = Hazards()
        stream = Stream(hazards)
        stream.access("st", own(stream), 1, space="global")
        hazards.finish(stream.machine)
        later = Stream(hazards, first=1, symbols=stream.symbols) if again else Stream(hazards, first=1)
        later.access("ld", own(stream), 2, space="global")
        blocks = [(report.first_block, report.block) for report in hazards.reports]
        assert blocks == ([((0, 0, 0), (1, 0, 0))] if again else [])
    launch(kernel(text_of("races")), 64, 2, observers=(hazards := Hazards()), memory_budget=1)
    found = {(each.kind, each.first_block, each.block) for each in hazards.reports}
    assert found == {("WAW", (0, 0, 0), (1, 0, 0)), ("in-flight write", (1, 0, 0), (1, 0, 0))}


def test_a_race_in_global_memory_names_the_element_and_reports_of_the_same_cuda_lines_are_one_line() -> None:
    hazards = Hazards()
    run("ld.param.u64 %rd1, [out]; st.global.u32 [%rd1+4], 1;", 1, 2, observers=hazards)
    assert re.search(r"WAW .* at 0x[0-9a-f]+, element 1 of `array 0: uint32 \(2, 1\)`, block", hazards.render())
    toolkit = "/usr/lib/cu13/bin/..//include/helpers.h"
    body = "setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p2, %r0, 32;"
    for number, form in ((5, "@%p1 st.shared.u32 [{}], %r0;"), (7, "@%p2 ld.shared.u32 %r1, [{}];")):
        body += f"\n.loc 1 {number} 3\n" + "\n".join(form.format(4 * place) for place in range(16))
    run(body, 64, declarations=".shared .b32 tile[16];", module=f'.file 1 "{toolkit}"\n', observers=(many := Hazards()))
    head, line = render_hazards(many).splitlines()
    assert head == "HAZARDS: 16"
    assert line.endswith("(line 20 from helpers.h:5); once; and 15 more of these CUDA lines")


def test_words_pages_and_readers_of_several_blocks() -> None:
    everyone = at("st", FAR_AWAY, 5, by=thread(1023), space="global")
    (race,) = watched(everyone, blocks=2, warps=32).reports
    assert (race.kind, race.first_thread, race.second_thread) == ("WAW", 1023, 1023)
    assert not watched(*(at("st", FAR_AWAY, 5, by=thread(t), space="global") for t in (0, 1023)), warps=32).reports
    ends = at("st", lambda s: FAR_AWAY + s.ctaid * np.uint64((1 << 16) - 1), 5, 1, thread(0), "global")  # of a page
    assert not watched(ends, blocks=2).reports
    quiet = Hazards(global_memory=False)
    everyone(Stream(quiet, blocks=3, warps=32))
    assert not quiet.reports
    # block 0 read last, and is the writer: block 1's read still races
    reads = [at("ld", FAR_AWAY, 1, by=lambda s, b=b: s.ctaid == b, space="global") for b in (0, 1, 0)]
    late = watched(*reads, at("st", FAR_AWAY, 2, by=lambda s: (s.ctaid == 0) & (s.tid == 0), space="global"), blocks=2)
    assert [(report.kind, report.first_block) for report in late.reports] == [("WAR", (1, 0, 0))]
    # of two words that one store writes over, one was read by another block first, the other one by another block last
    words = [(0, 1), (4, 0), (4, 1)]  # place, block
    apart = [
        at("ld", FAR_AWAY + np.uint64(place), line, by=lambda s, b=b: (s.ctaid == b) & (s.tid == 0), space="global")
        for line, (place, b) in enumerate(words, start=1)
    ]
    both = at("st", FAR_AWAY, 4, 8, by=lambda s: (s.ctaid == 0) & (s.tid == 0), space="global")
    assert found(watched(*apart, both, blocks=2)) == {("WAR", 1, 4), ("WAR", 3, 4)}
    far = lambda s: u64(1 << 50) + s.ctaid * np.uint64(64) + s.tid  # noqa: E731 - bytes: blocks touch neighbouring ones
    pages = lambda s: u64(1 << 20) + s.tid[..., ::-1] * np.uint64(1 << 16) + s.ctaid * np.uint64(2)  # noqa: E731 - one use
    events = [
        at("st", far, 1, 1, space="global"),
        at("st", pages, 2, 2, space="global"),
        at("ld", far, 3, 1, space="global"),
    ]
    assert not watched(*events, blocks=2).reports
    (race,) = watched(*events, at("ld", u64((1 << 50) + 60), 4, 4, space="global"), blocks=2).reports
    assert (race.kind, race.address, race.block) == ("RAW", (1 << 50) + 60, (1, 0, 0))
    assert (race.first_thread, race.second_thread, race.count) == (60, 0, 64)


@pytest.mark.parametrize(("before", "after", "races"), table_of("races", "strong"))
def test_strong_accesses_race_with_weak_ones_only(before: str, after: str, races: list[str]) -> None:
    body = f"""mov.u64 %rd3, word; setp.eq.u32 %p2, %r60, 1; setp.ne.u32 %p3, %r0, 0;
    @%p3 bra done; @%p2 bra two; {before} bra done; two: {after} done:"""
    assert races_of(body, 32, 2, module=".global .align 4 .u32 word;") == races


@pytest.mark.parametrize("row", table_of("races", "race_reports"), ids=lambda row: row["why"])
def test_what_reports_say(row: dict[str, Any]) -> None:
    """Of all reports the kind, the opcodes, the first block and thread, the second ones, the count, the place."""
    options = dict(row["options"])
    hazards = Hazards(global_memory=options.pop("global_memory", True))
    launch(kernel("\n".join(row["body"])), *row["launch"], observers=hazards, **options)
    told = []
    for one in hazards.reports:
        words = (one.first.opcode.partition(".")[0], one.second.opcode.partition(".")[0])
        places = (one.first_block[0], one.first_thread, one.block[0], one.second_thread)
        told.append([one.kind, *words, *places, one.count, one.place or one.address])
    assert told == row["races"]


# --- happens-before against a model that keeps every access and every thread's knowledge ------------------------------

Bytes = dict[int, range]  # by thread
EARLIER = {"st": "write", "put": "write", "atom": "atom", "ld": "read", "fetch": "read"}
ELSEWHERE = {  # the model does not have them
    *("mbarrier", "mbarrier fence", "start", "exit", "descriptor", "elect", "ignored", "same-instruction write"),
}
LATER = {"st": "WAW", "put": "WAW", "atom": "WAW", "ld": "RAW", "fetch": "RAW"}


def sets() -> list[set[int]]:
    return [set() for _ in range(64)]


@dataclass
class Model:
    """Happens-before by definition: each thread knows a set of accesses, and ~i where a proxy fence follows access i.

    Attributes:
        seen, before: by thread, what relaxed waits have found, and what was known at the last memory fence.
        told, done: by mbarrier, what all who arrived knew, and that when its phase was last complete.
        live: by byte, the last write and what came since; `flying`: operations as (kind, threads, chunks).
    """

    known: list[set[int]] = field(default_factory=sets)
    seen: list[set[int]] = field(default_factory=sets)
    before: list[set[int]] = field(default_factory=sets)
    kinds: list[str] = field(default_factory=list)
    signals: dict[int, set[int]] = field(default_factory=dict)
    told: dict[int, set[int]] = field(default_factory=lambda: {0: set(), 1: set()})
    done: dict[int, set[int]] = field(default_factory=lambda: {0: set(), 1: set()})
    fetched: dict[int, set[int]] = field(default_factory=dict)  # by thread, reads of its operations that have ended
    live: list[set[int]] = field(default_factory=lambda: [set() for _ in range(1024)])
    flying: dict[int, tuple[str, list[int], Array]] = field(default_factory=dict)

    def meet(self, threads: list[int], extra: set[int]) -> None:
        together = extra.union(*(self.known[thread] for thread in threads))
        for thread in threads:
            self.known[thread] = set(together)

    def races(self, kind: str, places: Bytes, threads: list[int] | None = None) -> set[str]:
        """How an access races; `threads`: all those who issue an operation together."""
        found, reads = set(), LATER[kind] == "RAW"
        for thread, byte in {(thread, byte) for thread, here in places.items() for byte in here}:
            for flying, _, chunks in self.flying.values():
                if byte // 16 * 16 in chunks and not (reads and flying == "fetch"):
                    found.add("async overwrite" if flying == "fetch" else f"in-flight {'read' if reads else 'write'}")
            for index in self.live[byte]:
                earlier = EARLIER[self.kinds[index]]
                who = threads if threads and earlier != "read" else [thread]
                if (reads and earlier == "read") or (kind == "atom" == earlier):
                    continue
                if any(index not in self.known[one] for one in who):
                    found.add("WAR" if earlier == "read" else LATER[kind])
                elif threads and self.kinds[index] in "st atom" and any(~index not in self.known[one] for one in who):
                    found.add("proxy")
        return found

    def record(self, kind: str, places: Bytes) -> set[int]:
        """The numbers of the accesses: each thread knows its own, the operations' are known to nobody."""
        for thread, here in places.items():
            for byte in here:
                self.live[byte] = (set() if EARLIER[kind] == "write" else self.live[byte]) | {len(self.kinds)}
            if kind not in {"put", "fetch"}:
                self.known[thread].add(len(self.kinds))
            self.kinds.append(kind)
        return set(range(len(self.kinds) - len(places), len(self.kinds)))


def synchronise(rng: np.random.Generator, races: SharedRaces, model: Model, lanes: BoolArray) -> None:
    """One random event that orders something, for both."""
    event, number, threads = int(rng.integers(0, 12)), int(rng.integers(0, 2)), np.flatnonzero(lanes).tolist()
    clocks, key, relaxed = races.clocks, ("mbarrier", number), bool(rng.integers(0, 2))
    if event == 0:
        clocks.join(lanes, number)
        model.meet(threads, model.signals.pop(number, set()))
    elif event == 1:
        clocks.signal(lanes, number)
        model.signals.setdefault(number, set()).update(*(model.known[thread] for thread in threads))
    elif event < 4:
        clocks.release(lanes, key, relaxed=relaxed)
        model.told[number].update(*((model.before if relaxed else model.known)[thread] for thread in threads))
    elif event < 6:
        clocks.complete(key)
        model.done[number] = set(model.told[number])
    elif event < 8:
        clocks.acquire(lanes, key, relaxed=relaxed)
        for thread in threads:
            (model.seen if relaxed else model.known)[thread].update(model.done[number])
    elif event == 8:
        clocks.order(lanes)
        for thread in threads:
            model.known[thread] |= model.seen[thread]
            model.before[thread] = set(model.known[thread])
    elif event == 9:
        clocks.fence(lanes)
        for thread in threads:
            model.known[thread] |= {~index for index in model.known[thread] if index >= 0}
    else:
        clocks.join_warps(lanes if number else None)
        for warp in range(2):
            model.meet([t for t in (threads if number else range(64)) if t // 32 == warp], set())


def chunks_of(address: Array) -> range:
    return range(int(address[0]), int(address[-1]) + 16)


def end(rng: np.random.Generator, races: SharedRaces, model: Model, *, partial: bool) -> None:
    """An operation in flight ends: a write is told to an mbarrier, a read is known to those who waited."""
    name = list(model.flying)[rng.integers(0, len(model.flying))]
    kind, threads, address = model.flying.pop(name)
    ended, number = model.record(kind, {threads[0]: chunks_of(address)}), int(rng.integers(0, 2))
    if kind == "put":
        races.asynchronous.landed(threads[0], address, name, ("mbarrier", number))
        model.told[number] |= ended
        return
    waited = ([int(rng.integers(0, 64))] if partial else threads)[: rng.integers(0, 2) * 32]
    races.asynchronous.fetched((name, 0), ("fetch", threads[0]), np.array(waited, np.int64))
    model.fetched.setdefault(threads[0], set()).update(ended)
    for thread in waited:
        model.known[thread] |= model.fetched[threads[0]]


def begin(rng: np.random.Generator, races: SharedRaces, model: Model, *, partial: bool) -> tuple[set[str], set[str]]:
    """An operation begins to write or read some chunks: what detector and model say."""
    kind, first, name = str(rng.choice(["put", "fetch"])), int(rng.integers(0, 64)), len(model.kinds)
    address = np.arange(6)[rng.integers(0, 6) :][: rng.integers(1, 3)] * 16
    together = [first] if partial or kind == "put" else [first // 32 * 32 + lane for lane in range(32)]
    put, fetch = races.asynchronous.put, races.asynchronous.fetch
    found = put(first, address, name) if kind == "put" else fetch((name, 0), np.array(together), address, name)
    wanted = model.races(kind, {together[0]: chunks_of(address)}, together)
    if not wanted:
        model.kinds.append("name")
        model.flying[name] = (kind, together, address)
    both = {one.kind for one in found}, wanted  # atomics of a warp have the last one's time: no fence, or no order
    return both[0] - {"proxy"} or both[0], both[1] - {"proxy"} or both[1]


def some_lanes(rng: np.random.Generator, *, partial: bool) -> BoolArray:
    """Of both warps, or whole warps."""
    some = rng.random((2, 32)) < rng.choice([0.1, 0.6, 1.0])
    return some if partial else np.repeat(rng.random((2, 1)) < 0.6, 32, axis=1)


@pytest.mark.parametrize("partial", [False, True])
def test_every_thread_knows_what_it_knows_by_the_model(partial: bool) -> None:
    wrong = 0
    for seed in range(60):
        rng, model, races = np.random.default_rng(seed), Model(), SharedRaces(np.ones((2, 32), np.bool_))
        clocks = races.clocks
        did: list[tuple[int, int]] = []  # who, and when
        for _ in range(60):
            if rng.random() < 0.7:
                synchronise(rng, races, model, some_lanes(rng, partial=partial))
            else:
                clocks.tick()
                who = int(rng.integers(-8, 64))  # below 0 the agent of an mbarrier
                model.record("put" if who < 0 else "st", {who: range(0)})
                if who < 0:
                    model.told[who % 2].add(len(did))
                    clocks.act(("mbarrier", who % 2))
                did.append((who if who >= 0 else clocks.agent(("mbarrier", who % 2)), clocks.now))
            others, times = np.array(did or [(0, 0)]).T
            threads = np.broadcast_to(np.arange(64)[:, None], (64, len(others)))
            found = clocks.ordered(threads, np.broadcast_to(others, threads.shape), times)[:, : len(did)]
            wrong += sum({*np.flatnonzero(found[t])} != {i for i in model.known[t] if i >= 0} for t in range(64))
            group = np.flatnonzero(some_lanes(rng, partial=partial)) if seed % 2 else np.array([seed])
            known = set.intersection(*(model.known[t] for t in group)) if did and group.size else set()
            for fenced in (False, True) if did and group.size else ():
                both = [clocks.all_ordered(group, others, times, fenced=each) for each in {False, fenced}]
                wanted = {i for i in known if i >= 0 and (not fenced or ~i in known or did[i][0] < 0)}
                wrong += {*np.flatnonzero(np.all(both, axis=0))} != wanted
    assert wrong == 0


@pytest.mark.parametrize(("warps", "kinds"), [(128, {"RAW"}), (129, set())])
def test_threads_are_told_apart_up_to_a_number(warps: int, kinds: set[str]) -> None:
    """A part of a warp meets; other lanes know nothing. In clusters of more threads warps are taken as a whole."""
    away = at("ld", lambda s: own(s) ^ np.uint64(64), 2, by=warp(3))
    hazards = watched(at("st", own, 1), sync(LANE < 8), away, warps=warps)
    assert {report.kind for report in hazards.reports} == kinds


def compared(seed: int, *, partial: bool) -> list[tuple[set[str], set[str]]]:
    """What detector and model say of each access of a random program from which the racing ones are left out."""
    rng, model, verdicts = np.random.default_rng(seed), Model(), []
    races = SharedRaces(np.ones((2, 32), dtype=np.bool_))
    for _ in range(60):
        event, lanes = rng.random(), some_lanes(rng, partial=partial)
        if event < 0.4:  # some lanes, or some warps
            if lanes.any():
                synchronise(rng, races, model, lanes)
            continue
        if event < 0.5 and model.flying:
            end(rng, races, model, partial=partial)
            continue
        attempt = copy.deepcopy(races)
        if event < 0.6:
            verdicts.append(begin(rng, attempt, model, partial=partial))
            races = races if verdicts[-1][0] | verdicts[-1][1] else attempt
            continue
        kind, width = str(rng.choice(["ld", "ld", "st", "atom"])), int(rng.choice([1, 2, 4, 8, 16]))
        lanes = rng.random((2, 32)) < rng.choice([0.03, 0.03, 0.1, 1.0])
        # distinct places for stores: lanes of one instruction that write one byte are a matter of their own
        slots = rng.permutation(64) if kind == "st" else rng.integers(0, 96 // width, 64)
        address = (slots * width).reshape(2, 32).astype(np.uint64)
        starts = {thread: int(address.flat[thread]) for thread in np.flatnonzero(lanes).tolist()}
        places = {thread: range(start, start + width) for thread, start in starts.items()}
        found = attempt.access(kind, address, width, lanes, 0)
        verdicts.append(({one.kind for one in found}, model.races(kind, places)))
        if not verdicts[-1][0] | verdicts[-1][1]:
            model.record(kind, places)
            races = attempt
    assert races.clocks.per_warp is not partial
    return verdicts


def test_whole_warps_are_judged_exactly_and_parts_of_warps_never_hide_a_race() -> None:
    verdicts = [verdict for seed in range(60) for verdict in compared(seed, partial=False)]
    assert [(found, wanted) for found, wanted in verdicts if found != wanted] == []
    assert set.union(*(wanted for _, wanted in verdicts)) == {*KINDS} - ELSEWHERE
    verdicts = [verdict for seed in range(30) for verdict in compared(seed, partial=True)]
    assert [(found, wanted) for found, wanted in verdicts if wanted - found] == []
    more = sum(found != wanted for found, wanted in verdicts)
    assert more < 0.02 * len(verdicts)  # changing subsets of a warp's lanes: see `races`


@pytest.mark.parametrize(("store", "load", "expected"), [
    ("st.release.cta", "ld.acquire.cta", []),
    ("fence.acq_rel.cta;\n@%p2 st.relaxed.cta", "ld.relaxed.cta", []),
    ("st.release.cta", "ld.relaxed.cta", []),  # the reader's fence follows
    ("st.relaxed.cta", "ld.acquire.cta", ["RAW"]),
    ("st.volatile", "ld.volatile", ["RAW", "RAW"]),
])  # fmt: skip
def test_a_flag_in_shared_memory_orders_what_lies_around_it(store: str, load: str, expected: list[str]) -> None:
    """Thread 0 stores a word and a flag; thread 32 of the other warp spins on the flag and reads the word."""
    fence = "fence.acq_rel.cta;" if load == "ld.relaxed.cta" else ""
    body = f"""
    setp.eq.u32 %p2, %r0, 0; setp.eq.u32 %p1, %r0, 32; mov.u32 %r1, 1; mov.u32 %r2, 0;
    @%p2 st.shared.u32 [flags], 0;
    bar.sync 0;
    @%p2 st.shared.u32 [flags+64], 7;
    @%p2 {store}.shared.u32 [flags], 1;
    @!%p1 bra over;
    spin: {load}.shared.u32 %r2, [flags]; setp.eq.u32 %p2, %r2, 0; @%p2 bra spin;
    {fence}
    ld.shared.u32 %r2, [flags+64];
    over: st.global.u32 [%rd0], %r2;
    """
    assert races_of(body, declarations=".shared .align 4 .b8 flags[128];") == expected
