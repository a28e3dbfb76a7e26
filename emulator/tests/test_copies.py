"""cp.async: bytes appear when the issuing thread's wait guarantees them, not before, whatever the masks."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.stepping import Bench, at, number

from ptxemu.errors import EmulationError
from ptxemu.machine.async_copies import AsyncCopies
from ptxemu.machine.core import Step
from ptxemu.machine.memory import GlobalMemory
from ptxemu.machine.observer import Copy, Observer
from ptxemu.machine.shared import SharedMemory
from ptxemu.syntax.tree import Immediate, Negated, Operand, Register
from ptxemu.values import Array, BoolArray
from tests import programs

CG = "cp.async.cg.shared.global"
CA = "cp.async.ca.shared.global"
COMMIT, WAIT, WAIT_ALL = "cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all"
OLD = 0xAAAAAAAA  # what shared memory holds before


class Log(Observer):
    """Issues and landings."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Copy, BoolArray | None]] = []

    def copy_issued(self, step: Step, copy: Copy) -> None:
        self.events.append((step.instruction.opcode, copy, copy.mask))

    def copy_landed(self, step: Step, copy: Copy, lanes: BoolArray | None) -> None:
        self.events.append((step.instruction.opcode, copy, lanes))


class Desk(Bench):
    """A bench with a source of 4-byte words 0, 1, 2, ... and, for every lane, a 16-byte slot of shared memory."""

    def __init__(self, blocks: int = 2, warps: int = 2, words: int = 4096, written: bool = True) -> None:
        super().__init__(blocks, warps)
        self.log = Log()
        self.machine.observers = (self.ears, self.log)
        self.machine.memory = GlobalMemory()
        self.machine.shared = SharedMemory(blocks, warps * 32 * 16)
        self.machine.copies = AsyncCopies(self.machine.shared, self.machine.observers)
        self.base = self.machine.memory.allocate(np.arange(words, dtype=np.uint32), "source")
        self.slot = np.arange(warps * 32, dtype=np.uint64).reshape(1, warps, 32) * np.uint64(16)
        self.thread = np.arange(blocks * warps * 32, dtype=np.uint64).reshape(self.shape)
        if written:
            step = self.step("st.shared.v4.b32")
            self.machine.shared.store(step, self.slot, 16, np.full((1, 1, 1, 4), OLD, np.uint32))

    def copy(self, word: Any = 0, *more: Any, width: int = 16, opcode: str = CG, mask: Any = None) -> None:
        """Copies from this word plus four times the thread's number to the lane's slot."""
        self.set("to", self.slot)
        self.set("from", (self.thread * np.uint64(4) + np.uint64(word)) * np.uint64(4) + np.uint64(self.base))
        self.run(opcode, at(Register("to")), at(Register("from")), number(width), *more, mask=mask)

    def found(self) -> Array:
        """The first word of each lane's slot, minus four times the thread's number where it is not OLD."""
        loaded = self.machine.shared.load(self.step("ld.shared.v4.b32"), self.slot, 16)[..., 0].astype(np.int64)
        return np.where(loaded == OLD, -1, loaded - 4 * self.thread.astype(np.int64))

    def wait(self, newest: int, mask: Any = None) -> None:
        self.run(WAIT, number(newest), mask=mask)


def test_bytes_land_at_the_wait_and_are_those_of_the_issue() -> None:
    desk = Desk()
    desk.copy(100)
    desk.run(COMMIT)
    everything = (np.arange(4096, dtype=np.uint64) * np.uint64(4) + np.uint64(desk.base)).reshape(-1, 1, 32)
    for part in everything:
        desk.machine.memory.store(desk.step("st.global.b32"), part[None], 4, np.full((1, 1, 1), 5, np.uint32))
    assert (desk.found() == -1).all(), "not before the wait"
    desk.wait(0)
    assert (desk.found() == 100).all(), "not the bytes of the wait's time"
    assert desk.machine.copies.in_flight == ()


def test_wait_group_leaves_the_newest_groups_in_flight() -> None:
    desk = Desk()
    for word in (100, 200, 300):
        desk.copy(word)
        desk.run(COMMIT)
    seen = []
    for newest in (3, 2, 1, 0):
        desk.wait(newest)
        seen.append(int(desk.found()[0, 0, 0]))
    assert seen == [-1, 100, 200, 300]


def test_a_copy_without_a_commit_waits_for_wait_all() -> None:
    desk = Desk()
    desk.copy(100)
    desk.wait(0)
    assert (desk.found() == -1).all()
    desk.run(WAIT_ALL)
    assert (desk.found() == 100).all()


def test_wait_all_commits() -> None:
    """The ISA: wait_all is commit_group, then wait_group 0."""
    desk = Desk()
    desk.run(WAIT_ALL)
    desk.copy(100)
    desk.run(COMMIT)
    desk.wait(1)
    assert (desk.found() == -1).all()
    assert desk.log.events[0][1].group.tolist() == [[[1]]]


def test_empty_groups_count() -> None:
    desk = Desk()
    desk.copy(100)
    desk.run(COMMIT)
    desk.run(COMMIT)
    desk.wait(1)
    assert (desk.found() == 100).all()


def test_bytes_never_written_stay_unwritten_until_they_land() -> None:
    desk = Desk(written=False)
    desk.copy(100)
    desk.run(COMMIT)
    with pytest.raises(EmulationError, match="not written before"):
        desk.found()
    desk.wait(0)
    assert (desk.found() == 100).all()


def test_each_thread_waits_for_its_own_copies() -> None:
    desk = Desk()
    first_warp = np.array([True, False]).reshape(1, 2, 1)
    desk.copy(100)
    desk.run(COMMIT)
    desk.wait(0, first_warp)
    assert (desk.found()[:, 0] == 100).all()
    assert (desk.found()[:, 1] == -1).all()
    desk.wait(0)
    assert (desk.found() == 100).all()
    landings = [lanes for opcode, _, lanes in desk.log.events if opcode == WAIT]
    assert [int(np.broadcast_to(lanes, desk.shape).sum()) for lanes in landings if lanes is not None] == [64, 64]


def test_lanes_that_exit_never_land_and_are_forgotten() -> None:
    desk = Desk()
    desk.copy(100)
    desk.run(COMMIT)
    alive = np.arange(32).reshape(1, 1, 32) < 3
    desk.machine.live = np.broadcast_to(alive, desk.shape)
    desk.wait(0, alive)
    assert ((desk.found() == 100) == alive).all()
    assert desk.machine.copies.in_flight == ()
    desk.run(COMMIT, mask=alive)
    desk.copy(200, mask=alive)
    assert desk.log.events[-1][1].group.shape == (1, 1, 1), "one number again: all live threads agree"


class Model:
    """Every thread's copies and groups, one thread at a time."""

    def __init__(self, threads: int) -> None:
        self.value = np.full(threads, -1)
        self.commits = np.zeros(threads, np.int64)
        self.flights: list[tuple[int, int, int]] = []  # thread, group, word

    def land(self, active: Array, newest: int) -> None:
        kept = []
        for thread, group, word in self.flights:
            if active[thread] and group < self.commits[thread] - newest:
                self.value[thread] = word
            else:
                kept.append((thread, group, word))
        self.flights = kept

    def play(self, event: str, active: Array, argument: int) -> None:
        if event == "copy":
            self.flights += [(int(t), int(self.commits[t]), argument) for t in np.flatnonzero(active)]
        if event in {"commit", "wait_all"}:
            self.commits[active] += 1
        if event.startswith("wait"):
            self.land(active, argument if event == "wait" else 0)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), divergence=st.sampled_from([0.0, 0.3, 0.9]))
def test_any_sequence_under_any_masks_is_that_of_the_model(seed: int, divergence: float) -> None:
    rng = np.random.default_rng(seed)
    desk, model = Desk(), Model(128)
    for turn in range(24):
        event = str(
            rng.choice(["copy", "copy", "commit", "commit", "wait", "wait_all"], p=[0.2, 0.2, 0.2, 0.2, 0.15, 0.05])
        )
        shape = [(2, 2, 32), (1, 2, 1), (1, 1, 32), (2, 1, 1)][rng.integers(4)]
        mask = rng.random(shape) < 0.7 if rng.random() < divergence else None
        argument = int(rng.integers(0, 3)) if event == "wait" else turn * 4
        if event == "copy":
            desk.copy(argument, mask=mask)
        elif event == "wait":
            desk.wait(argument, mask)
        else:
            desk.run({"commit": COMMIT, "wait_all": WAIT_ALL}[event], mask=mask)
        active = np.broadcast_to(True if mask is None else mask, desk.shape).ravel()
        model.play(event, active, argument)
        assert (desk.found().ravel() == model.value).all(), f"after {turn} {event}"


@pytest.mark.parametrize(("opcode", "width"), [(CA, 4), (CA, 8), (CA, 16), (CG, 16), (CG + ".L2::128B", 16)])
@pytest.mark.parametrize("size", [None, 0, 1, 4, 6, 16])
def test_a_source_size_fills_with_zeros(opcode: str, width: int, size: int | None) -> None:
    if size is not None and size > width:
        return
    desk = Desk(1, 1)
    desk.copy(52, *(() if size is None else (number(size),)), width=width, opcode=opcode)
    desk.run(WAIT_ALL)
    loaded = desk.machine.shared.load(desk.step("ld.shared.v4.b32"), desk.slot, 16)
    source = np.arange(4096, dtype=np.uint32)
    for lane in range(32):
        first = 52 + 4 * lane
        expected = np.full(4, OLD, np.uint32).view(np.uint8)
        expected[:width] = 0
        read = width if size is None else size
        expected[:read] = source[first : first + 4].view(np.uint8)[:read]
        assert (loaded[0, 0, lane].view(np.uint8) == expected).all()


@pytest.mark.parametrize("masked", [False, True])
def test_each_lane_has_its_own_source_size_and_reads_no_byte_more(masked: bool) -> None:
    desk = Desk(1, 1, words=64)
    sizes = (np.arange(32) % 17).astype(np.uint32).reshape(1, 1, 32)
    base = desk.machine.memory.allocate(np.arange(1, 17, dtype=np.uint8), "short")
    active = np.arange(32).reshape(1, 1, 32) != 16
    ends = np.uint64(base) + np.zeros((1, 1, 32), np.uint64)
    last = desk.machine.memory.allocate(np.arange(1, 4, dtype=np.uint8), "three bytes")
    ends[0, 0, [3, 20]] = last  # these lanes want 3 bytes, and there are no more
    ends[0, 0, 17] = 7  # this one wants none: its address does not matter
    sizes[0, 0, 16] = 99 if masked else 16
    desk.set("to", desk.slot)
    desk.set("from", ends)
    desk.set("size", sizes)
    operands = (at(Register("to")), at(Register("from")), number(16), Register("size"))
    desk.run(CG, *operands, mask=active if masked else None)
    access = desk.ears.accesses[-1]
    assert (access.space, access.kind, access.width) == ("global", "cp.async", 16)
    assert access.mask is not None
    assert (access.mask == ((sizes > 0) & (active if masked else True))).all()
    desk.run(WAIT_ALL)
    loaded = desk.machine.shared.load(desk.step("ld.shared.v4.b32"), desk.slot, 16).view(np.uint8)[0, 0]
    for lane in range(32):
        expected = np.where(np.arange(16) < sizes[0, 0, lane], np.arange(1, 17), 0)
        if masked and lane == 16:
            expected = np.full(16, 0xAA)
        assert (loaded[lane] == expected).all()


def test_a_predicate_that_ignores_the_source() -> None:
    desk = Desk(1, 1)
    ignored = np.arange(32).reshape(1, 1, 32) % 2 == 0
    desk.set("p", ignored)
    desk.copy(100, Register("p"))
    desk.run(WAIT_ALL)
    assert (desk.found() == np.where(ignored, -4 * np.arange(32), 100)).all()
    desk.copy(200, Negated(Register("p")))
    desk.run(WAIT_ALL)
    assert (desk.found() == np.where(ignored, 200, -4 * np.arange(32))).all()


def test_nothing_read_is_nothing_heard() -> None:
    desk = Desk(1, 1)
    desk.copy(100, number(0))
    assert desk.ears.accesses == []
    assert [opcode for opcode, *_ in desk.log.events] == [CG]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"to": 512}, "out-of-bounds"),
        ({"to": 8}, "misaligned"),
        ({"from": 16384}, "out-of-bounds"),
        ({"from": 4}, "misaligned"),
        ({"size": 17}, "unsupported"),
        ({"from": 4, "size": 5}, "misaligned"),
        ({"from": 16384 - 16, "size": 16}, None),
    ],
)
def test_bad_addresses_fail_at_the_issue(change: dict[str, int], kind: str | None) -> None:
    desk = Desk(1, 1)
    zero = np.zeros((1, 1, 32), np.uint64)
    lane = np.arange(32).reshape(1, 1, 32) == 9
    desk.set("to", np.where(lane, np.uint64(change.get("to", 0)), zero))
    desk.set("from", np.where(lane, np.uint64(change.get("from", 0)), zero) + np.uint64(desk.base))
    desk.set("size", np.where(lane, np.uint32(change.get("size", 16)), np.uint32(16)))
    operands: list[Operand] = [at(Register("to")), at(Register("from")), number(16)]
    operands += [Register("size")] * ("size" in change)
    if kind is None:
        desk.run(CG, *operands)
        return
    with pytest.raises(EmulationError) as caught:
        desk.run(CG, *operands)
    assert (caught.value.kind, caught.value.lane) == (kind, 9)
    desk.run(CG, *operands, mask=~lane)


@pytest.mark.parametrize(("opcode", "size"), [(CG, 8), (CG, 4), (CA, 2), (CA, 32)])
def test_copy_sizes_that_do_not_exist(opcode: str, size: int) -> None:
    with pytest.raises(EmulationError, match="copy size") as caught:
        Desk().copy(0, width=size, opcode=opcode)
    assert caught.value.kind == "unsupported"


def test_a_group_count_is_a_constant() -> None:
    desk = Desk()
    for count in (Immediate(-1), desk.set("n", np.zeros((1, 1, 1), np.uint32))):
        with pytest.raises(EmulationError, match="group count"):
            desk.run(WAIT, count)


PIPELINE = """
mov.u32 %r1, tile; mad.lo.s32 %r2, %r0, 16, %r1; mov.u64 %rd3, source;
mul.wide.u32 %rd4, %r0, 16; add.s64 %rd3, %rd3, %rd4;
cp.async.cg.shared.global [%r2], [%rd3], 16;
cp.async.commit_group;
cp.async.wait_group 0;
bar.sync 0;
xor.b32 %r3, %r0, 33; mad.lo.s32 %r4, %r3, 16, %r1;
ld.shared.u32 %r5, [%r4+4]; st.global.u32 [%rd0], %r5;
"""


@pytest.mark.parametrize("missing", [None, "cp.async.commit_group;", "cp.async.wait_group 0;"])
def test_a_program_without_its_wait_or_commit_is_caught(missing: str | None) -> None:
    numbers = ",".join(str(i) for i in range(256))
    options: dict[str, Any] = {
        "threads": 64,
        "declarations": ".shared .align 16 .b8 tile[1024];",
        "module": f".global .align 16 .u32 source[256] = {{{numbers}}};",
    }
    if missing is None:
        assert (programs.run(PIPELINE, **options)[0] == (np.arange(64) ^ 33) * 4 + 1).all()
        return
    with pytest.raises(EmulationError, match="not written before") as caught:
        programs.run(PIPELINE.replace(missing, ""), **options)
    assert caught.value.kind == "uninitialised"
