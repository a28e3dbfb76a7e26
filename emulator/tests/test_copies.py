"""cp.async: bytes appear when the issuing thread's wait guarantees them, not before, whatever the masks."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.programs import refuses, run, table_of

from ptxemu import Access, Observer, Step
from ptxemu.machine.observer import Copy
from ptxemu.values import Array, BoolArray

THREADS = 64
TILE = ".shared .align 16 .b8 tile[1024];"
SOURCE = f".global .align 16 .u32 source[512] = {{{','.join(map(str, range(512)))}}};"
OLD = 0xAAAAAAAA  # what shared memory holds before
# %r2: the thread's 16 bytes of the tile; %rd3: those of the source, four words for each thread.
PLACES = """mov.u32 %r1, tile; mad.lo.s32 %r2, %r0, 16, %r1; mov.u64 %rd3, source; mul.wide.u32 %rd4, %r0, 16;
add.s64 %rd3, %rd3, %rd4; mov.u32 %r3, OLD; st.shared.v4.u32 [%r2], {%r3, %r3, %r3, %r3};
""".replace("OLD", str(OLD))
COPY, COMMIT, ALL = "cp.async.cg.shared.global [%r2], [%rd3{}], 16;", "cp.async.commit_group;", "cp.async.wait_all;"
READ = "ld.shared.u32 %r5, [%r2]; st.global.u32 [%rd0], %r5;"


def found(body: str, **options: Any) -> Array:
    """What the threads of a block store after a body that begins with `PLACES`."""
    return np.asarray(run(PLACES + body, THREADS, declarations=TILE, module=SOURCE, **options)[0])


class Model:
    """Every thread's copies and groups, one thread at a time."""

    def __init__(self) -> None:
        self.value = np.full(THREADS, OLD)
        self.commits = np.zeros(THREADS, np.int64)
        self.flights: list[tuple[int, int, int]] = []  # thread, group, word

    def play(self, event: str, active: Array, argument: int) -> None:
        if event == "copy":
            self.flights += [(int(t), int(self.commits[t]), 4 * int(t) + argument) for t in np.flatnonzero(active)]
        if event in {"commit", "wait_all"}:
            self.commits[active] += 1
        if event.startswith("wait"):
            kept, newest = [], argument if event == "wait" else 0
            for thread, group, word in self.flights:
                if active[thread] and group < self.commits[thread] - newest:
                    self.value[thread] = word
                else:
                    kept.append((thread, group, word))
            self.flights = kept


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), divergence=st.sampled_from([0.0, 0.3, 0.9]))
def test_any_sequence_under_any_masks_is_that_of_the_model(seed: int, divergence: float) -> None:
    rng, model = np.random.default_rng(seed), Model()
    body, wanted, turns = ["mov.u32 %r9, %laneid; shr.u32 %r10, %r0, 5; setp.eq.u32 %p2, %r10, 0;"], [], 16
    for turn in range(turns):
        event = str(rng.choice(["copy", "commit", "wait", "wait_all"], p=[0.4, 0.4, 0.15, 0.05]))
        argument, guard, active = int(rng.integers(0, 3)) if event == "wait" else turn, "", np.ones(THREADS, np.bool_)
        if rng.random() < divergence:  # some lanes, of both warps or of one
            mask, one = int(rng.integers(0, 2**32)), bool(rng.random() < 0.5)
            body.append(f"shr.u32 %r10, {mask}, %r9; and.b32 %r10, %r10, 1; setp.ne.u32 %p1, %r10, 0;")
            body.append("and.pred %p1, %p1, %p2;" if one else "")
            active = np.tile(mask >> np.arange(32) & 1 == 1, 2) & (np.arange(THREADS) < (32 if one else 64))
            guard = "@%p1 "
        text = {"copy": COPY.format(f"+{16 * turn}"), "commit": COMMIT, "wait": f"cp.async.wait_group {argument};"}
        body.append(f"{guard}{text.get(event, ALL)} ld.shared.u32 %r5, [%r2]; st.global.u32 [%rd0+{256 * turn}], %r5;")
        model.play(event, active, 4 * turn if event == "copy" else argument)
        wanted.append(model.value.copy())
    out = run(PLACES + "\n".join(body), THREADS, turns, declarations=TILE, module=SOURCE, first=1)
    assert (out == np.array(wanted)).all()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{COPY.format('')}{COMMIT} cp.async.wait_group 0;", 0),
        (f"{COPY.format('')} cp.async.wait_group 0;", OLD),  # without a commit only wait_all will do
        (f"{COPY.format('')} {ALL}", 0),
        (f"{ALL} {COPY.format('')} {COMMIT} cp.async.wait_group 1;", OLD),  # wait_all commits, too
        (f"{COPY.format('')}{COMMIT}{COMMIT} cp.async.wait_group 1;", 0),  # an empty group counts
        (f"{COPY.format('+16')}{COMMIT}{COPY.format('+32')}{COMMIT} cp.async.wait_group 1;", 4),
    ],
)
def test_waits(body: str, expected: int) -> None:
    for late in ("", "mov.u32 %r6, 9; st.global.u32 [%rd3], %r6; st.global.u32 [%rd3+16], %r6;"):  # bytes of the issue
        result = found(body.replace(COMMIT, COMMIT + late, 1) + READ)
        assert (result == (OLD if expected == OLD else expected + 4 * np.arange(THREADS))).all()


def test_lanes_that_exit_never_land() -> None:
    leave = "setp.ge.u32 %p1, %r0, 40; @%p1 exit;"
    body = f"{COPY.format('')}{COMMIT} {leave} cp.async.wait_group 0; ld.shared.u32 %r5, [1008];"
    assert (found(body + "st.global.u32 [%rd0], %r5;")[:32] == OLD).all()


class Heard(Observer):
    """Lanes of global accesses, copies that begin and how many lanes they land in."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.issued: list[Copy] = []
        self.landed: list[int] = []

    def access(self, step: Step, access: Access) -> None:
        if access.kind == "cp.async":
            self.read.append(int(np.broadcast_to(True if access.mask is None else access.mask, (1, 2, 32)).sum()))

    def copy_issued(self, step: Step, copy: Copy) -> None:
        self.issued.append(copy)

    def copy_landed(self, step: Step, copy: Copy, lanes: BoolArray | None) -> None:
        self.landed.append(int(np.broadcast_to(True if lanes is None else lanes, (1, 2, 32)).sum()))


def test_each_lane_has_a_size_of_its_own_and_reads_no_byte_more() -> None:
    """Lane 63 wants one byte of a word that has two; lane 0 wants none, from nowhere."""
    body = "rem.u32 %r6, %r0, 16; setp.eq.u32 %p1, %r0, 63; mov.u64 %rd5, source; selp.u32 %r6, 1, %r6, %p1;"
    body += "@%p1 add.u64 %rd3, %rd5, 2032; setp.eq.u32 %p2, %r0, 0; selp.b64 %rd3, 8, %rd3, %p2;"
    body += f"cp.async.cg.shared.global [%r2], [%rd3], 16, %r6; {ALL} {READ}"
    heard = Heard()
    got = found(body, observers=heard)
    sizes = np.arange(THREADS) % 16
    words = np.array([*range(0, 252, 4), 508])
    masked = [int(word) & ((1 << 8 * min(size, 4)) - 1) for word, size in zip(words, [*sizes[:63], 1], strict=True)]
    assert got.tolist() == masked
    assert (heard.read, len(heard.issued)) == ([60], 1)
    for none in ("0", "!%p1"):  # a size, and a predicate that says to ignore the source
        nothing, copy = Heard(), f"setp.eq.u32 %p1, %r0, 64; cp.async.cg.shared.global [%r2], [%rd3], 16, {none}; {ALL}"
        assert (found(copy + READ, observers=nothing) == 0).all()
        assert (nothing.read, len(nothing.issued), nothing.landed) == ([], 1, [THREADS])


LANE_9 = "setp.eq.u32 %p1, %r0, 9; mov.u32 %r6, 16;"


@pytest.mark.parametrize(("change", "kind"), table_of("copies", "bad_copy_lanes"))
def test_bad_addresses_fail_at_the_issue_and_name_the_lane(change: str, kind: str) -> None:
    copy = "cp.async.cg.shared.global [%r2], [%rd3], 16, %r6;"
    with refuses(kind) as caught:
        found(LANE_9 + change + copy)
    assert caught.value.lane == 9
    found(LANE_9 + change + "@!%p1 " + copy)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((f"cp.async.{kind}.shared.global [%r2], [%rd3], {size};", "copy size") for kind, size in
          (("cg", 8), ("cg", 4), ("ca", 2), ("ca", 32))),
        ("cp.async.ca.shared.global [%r2], [%rd3], 4, 5;", "source size above 4"),
        ("cp.async.wait_group -1;", "group count"),
        ("cp.async.wait_group %r0;", "group count"),
    ],
)  # fmt: skip
def test_sizes_and_counts_that_do_not_exist(text: str, says: str) -> None:
    with refuses("unsupported", says):
        found(text)


@pytest.mark.parametrize("missing", ["", COMMIT, "cp.async.wait_group 0;"])
def test_a_program_without_its_wait_or_commit_is_caught(missing: str) -> None:
    body = f"{COPY.format('')}{COMMIT} cp.async.wait_group 0; bar.sync 0; xor.b32 %r3, %r0, 33; "
    body += "mad.lo.s32 %r4, %r3, 16, %r1; ld.shared.u32 %r5, [%r4+4]; st.global.u32 [%rd0], %r5;"
    unwritten = PLACES[: PLACES.index("mov.u32 %r3")]
    if not missing:
        out = run(unwritten + body, THREADS, declarations=TILE, module=SOURCE)
        assert (out[0] == (np.arange(64) ^ 33) * 4 + 1).all()
        return
    with refuses("uninitialised", "not written before"):
        run(unwritten + body.replace(missing, ""), THREADS, declarations=TILE, module=SOURCE)
