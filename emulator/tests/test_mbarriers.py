"""mbarriers, setmaxnreg and elect: who waits, what completes a phase, misuse, deadlocks, order."""

from __future__ import annotations

from dataclasses import dataclass, field
import random
from typing import Any

import numpy as np
import pytest
from tests.programs import ARRIVE, INIT, kernel, launch, races, refuses, store, table_of, text_of, wait

import ptxemu

SECOND = "setp.ge.u32 %p0, %t, 32;\n"
PRODUCER = text_of("mbarriers", "producer").format(**globals())
EXPECT = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar]"
COMPLETE = EXPECT.replace("expect", "complete")
STALE = "mov.b64 %state, 0;\nmbarrier.test_wait.shared::cta.b64 %done, [%bar], %state;"
WAIT, WAIT_1, STORE = wait(), wait(1), store("%word")
CONSUMER = f"ld.shared.u32 %word, [%place];\n{store('%word')}"


@pytest.mark.parametrize("schedule", ["together", "reverse", 0, 1, 2])
def test_a_consumer_waits_for_the_warp_that_comes_later_in_the_text(schedule: str | int) -> None:
    out, result = launch(kernel(PRODUCER + wait() + CONSUMER, 32), blocks=3, schedule=schedule)
    assert (out[:, :32] == np.arange(32, 64)).all()
    assert result.instructions < 60 or schedule != "together"  # suspended, not spinning


def test_a_schedule_shows_a_race() -> None:
    body = text_of("mbarriers", "two_stores").format(**globals())
    results = [int(launch(kernel(body), schedule=schedule)[0][0, 0]) for schedule in ("together", "reverse", 0, 1, 2)]
    assert results[:2] == [2, 1]  # the last warp's store comes first
    assert set(results[2:]) == {1, 2}


@pytest.mark.parametrize(
    ("body", "count", "options", "expected"),
    [pytest.param(*row, id=what) for what, *row in table_of("mbarriers", "mbarriers")],
)
def test_programs(body: str, count: int, options: dict[str, Any], expected: list[Any]) -> None:
    assert (launch(kernel(body.format(**globals()), count), **options)[0] == expected).all()


@pytest.mark.parametrize(("body", "options", "kind", "match"), table_of("mbarriers", "bad_mbarriers"))
def test_misuse_is_an_error_that_names_it(body: str, options: dict[str, Any], kind: str, match: str) -> None:
    own = {"count": 1, "directives": ""}
    text = kernel(body.format(**globals()), **{name: options.get(name, value) for name, value in own.items()})
    with refuses(kind, match):
        launch(text, **{name: value for name, value in options.items() if name not in own})


RING = kernel(PRODUCER + wait() + CONSUMER, 32)
RACE = [("RAW", "st.shared.u32", "ld.shared.u32")]
RELAXED = ("mbarrier.arrive.shared", "mbarrier.arrive.relaxed.cta.shared")
LOOSE = ("try_wait.parity.shared", "try_wait.parity.relaxed.cta.shared")
FENCED = ("mbarrier.arrive.shared", "fence.acq_rel.cta;\nmbarrier.arrive.relaxed.cta.shared")
AFTER = ("ld.shared.u32 %word", "fence.acq_rel.cta;\nld.shared.u32 %word")
BEFORE = ("st.shared.u32", "fence.acq_rel.cta;\nst.shared.u32")
EARLY = (f"st.shared.u32 [%place+-128], %t;\n{ARRIVE}", f"{ARRIVE}st.shared.u32 [%place+-128], %t;\n")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ([], []),
        ([RELAXED], RACE),
        ([LOOSE], RACE),
        ([FENCED, LOOSE, AFTER], []),  # memory fences make relaxed arrivals and waits order
        ([FENCED, LOOSE], RACE),
        ([RELAXED, LOOSE, AFTER], RACE),
        ([RELAXED, BEFORE], RACE),  # the fence knows of nothing yet
        ([EARLY], RACE),
    ],
)
def test_what_an_arrival_and_a_wait_order(changes: list[tuple[str, str]], found: list[tuple[str, str, str]]) -> None:
    text = RING
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    assert races(text) == found


def test_an_elected_arrival_needs_the_warp_to_have_met() -> None:
    body = text_of("mbarriers", "elected_arrival").format(**globals())
    assert races(kernel(body)) == []
    without = kernel(body).replace("bar.warp.sync -1;", "")
    assert races(without) == RACE


def test_a_use_that_nothing_orders_after_the_init() -> None:
    assert "mbarrier" in {report[0] for report in races(RING.replace("bar.sync 0;", "bar.warp.sync -1;"))}


def test_an_inval_that_nothing_orders_after_the_uses() -> None:
    body = f"{INIT}{SECOND}@%p0 {ARRIVE}@!%p0 bra end;\nret;\nend:\n{wait()}"
    end = "@%first mbarrier.inval.shared::cta.b64 [%bar];\n"
    assert races(kernel(body + "bar.warp.sync -1;\n" + end, 32)) == []
    assert ("mbarrier", "mbarrier.try_wait.parity.shared::cta.b64", "mbarrier.inval.shared::cta.b64") in races(
        kernel(body + end, 32)
    )
    over = f"{INIT}{end}{SECOND}@%p0 st.shared.u32 [%bar], %t;"  # its bytes are ordinary memory only then
    assert ("WAW", "mbarrier.inval.shared::cta.b64", "st.shared.u32") in races(kernel(over))


# --- random operations ---

OPERATIONS = 30
SPACE = "shared::cta.b64"


@dataclass
class Model:
    """Expected and pending arrivals, bytes, phase; `states` are the tokens so far, as their pending counts."""

    expected: int
    pending: int = field(init=False)
    nbytes: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.expected

    def settle(self) -> None:
        if self.pending == 0 and self.nbytes == 0:
            self.phase, self.pending = self.phase + 1, self.expected or -1

    def arrive(self, count: int, nbytes: int = 0, dropped: int = 0) -> int:
        """The pending count before; `count` is at most that."""
        self.nbytes += nbytes
        before, self.pending, self.expected = self.pending, self.pending - count, self.expected - dropped
        self.settle()
        return before


def operation(model: Model, random_: random.Random) -> tuple[str, int | None]:
    """A legal operation as PTX, applied to the model; and the pending count that its state has, if it has one."""
    choices = ["expect", "complete"]
    if model.pending > 0:
        choices += ["arrive", "arrive", "expecting"]
        if model.expected > 0:
            choices.append("drop")
        if model.pending > 1:
            choices.append("quiet")
    kind = random_.choice(choices)
    if kind == "expect":
        nbytes = random_.randint(0, 64)
        model.nbytes += nbytes
        model.settle()
        return f"mbarrier.expect_tx.relaxed.cta.{SPACE} [%bar], {nbytes};", None
    if kind == "complete":
        nbytes = model.nbytes if model.nbytes > 0 and random_.random() < 0.7 else random_.randint(0, 64)
        model.nbytes -= nbytes
        model.settle()
        return f"mbarrier.complete_tx.relaxed.cta.{SPACE} [%bar], {nbytes};", None
    if kind == "expecting":
        nbytes = max(0, -model.nbytes) if random_.random() < 0.7 else random_.randint(0, 64)
        return f"mbarrier.arrive.expect_tx.{SPACE} %state, [%bar], {nbytes};", model.arrive(1, nbytes)
    if kind == "quiet":
        count = random_.randint(1, model.pending - 1)
        return f"mbarrier.arrive.noComplete.{SPACE} %state, [%bar], {count};", model.arrive(count)
    if kind == "drop":
        return f"mbarrier.arrive_drop.{SPACE} %state, [%bar];", model.arrive(1, dropped=1)
    count = random_.randint(1, model.pending)
    return f"mbarrier.arrive.{SPACE} %state, [%bar], {count};", model.arrive(count)


@pytest.mark.parametrize("seed", range(8))
def test_random_operations(seed: int) -> None:
    random_ = random.Random(seed)
    model = Model(random_.randint(1, 9))
    body = ["@!%first ret;", f"mbarrier.init.{SPACE} [%bar], {model.expected};", "mov.u64 %at, %out;"]
    wanted: list[int] = []
    for _ in range(OPERATIONS):
        text, pending = operation(model, random_)
        body.append(text)
        body.append("mov.u32 %word, 0;" if pending is None else "mbarrier.pending_count.b64 %word, %state;")
        for parity in (0, 1):
            body.append(f"mbarrier.test_wait.parity.{SPACE} %done, [%bar], {parity};\nselp.u32 %n, 1, 0, %done;")
            body.append("mad.lo.u32 %word, %word, 2, %n;")
        body.append("st.global.u32 [%at], %word;\nadd.u64 %at, %at, 4;")
        wanted.append((pending or 0) * 4 + (2 if model.phase & 1 else 1))
    body.append(f"mbarrier.inval.{SPACE} [%bar];")
    out = np.zeros(OPERATIONS, np.uint32)
    ptxemu.load(kernel("\n".join(body))).kernel().launch(1, 32, [out])
    assert out.tolist() == wanted


# --- setmaxnreg, elect, deadlocks ---

BOUND = ".maxntid 384, 1, 1"
ROLES = text_of("mbarriers", "roles")
GIVES = f"""{INIT}setp.lt.u32 %p0, %t, 128;\n@%p0 bra giver;\nsetmaxnreg.inc.sync.aligned.u32 240;\n{ARRIVE}ret;
giver: setmaxnreg.dec.sync.aligned.u32 24;\n{WAIT}"""  # who gives waits for those who take


@pytest.mark.parametrize("schedule", ["together", "reverse", 3])
def test_registers_move_from_one_warpgroup_to_the_others(schedule: str | int) -> None:
    out, _ = launch(kernel(ROLES + store("%t"), directives=BOUND), 384, 2, schedule=schedule)
    assert (out == np.arange(384)).all()
    launch(kernel("setmaxnreg.inc.sync.aligned.u32 240;", directives=".maxntid 256"), 256)  # no pool: few threads
    hazards = ptxemu.Hazards()
    launch(kernel(ROLES), 384, schedule=schedule, observers=hazards)
    assert {(one.kind, one.level) for one in hazards.reports} == {("ignored", "warning")}
    assert "__launch_bounds__" in hazards.render()
    launch(kernel(GIVES, 256, BOUND), 384, schedule=schedule)


@pytest.mark.parametrize(("old", "new", "kind", "match"), table_of("mbarriers", "bad_setmaxnreg"))
def test_misuse_of_setmaxnreg(old: str, new: str, kind: str, match: str) -> None:
    assert old in ROLES
    with refuses(kind, match):
        launch(kernel(ROLES.replace(old, new), directives=BOUND), 384)


def test_a_warp_that_leaves_its_warpgroup_alone() -> None:
    body = "setp.lt.u32 %p0, %t, 32;\n@%p0 ret;\nsetmaxnreg.dec.sync.aligned.u32 24;"
    with refuses("registers", "warp 0 does not execute the setmaxnreg of its warpgroup"):
        launch(kernel(body, directives=BOUND), 384)
    give = "setmaxnreg.dec.sync.aligned.u32 24;"
    body = f"setp.lt.u32 %p0, %t, 64;\n@%p0 bra other;\n{give}\nbra end;\nother: {give}\nend:"
    with refuses("registers", "another setmaxnreg than the warpgroup's other warps"):
        launch(kernel(body, directives=BOUND), 128)
    apart = body.replace("setp.lt.u32 %p0, %t, 64", "mov.u32 %r2, %ctaid.x;\nsetp.eq.u32 %p0, %r2, 0")
    launch(kernel(apart, directives=BOUND), 128, 2)  # blocks may differ


def test_one_lane_is_elected() -> None:
    body = text_of("mbarriers", "elected").format(**globals())
    assert np.flatnonzero(launch(kernel(body), 32)[0]).tolist() == [8]
    assert np.flatnonzero(launch(kernel(body), 32, schedule="elect-last")[0]).tolist() == [31]
    assert np.flatnonzero(launch(kernel(body), 32, schedule="reverse")[0]).tolist() == [8]
    with refuses("divergent-warp", "does not name the executing lane"):
        launch(kernel(body.replace("@%p1 bra over;", "")), 32)


def test_a_deadlock_names_everybody_who_waits() -> None:
    body = text_of("mbarriers", "everybody_waits").format(
        **globals(), ONE=wait(0, "one"), TWO=wait(1, "two"), THREE=wait(0, "three")
    )
    with refuses("deadlock") as caught:
        launch(kernel(body, 40), 128, 2)
    text = str(caught.value)
    assert text.startswith("k.ptx:")
    for part in (
        "warp 0 of block (0, 0, 0) at `mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;`",
        "warp 1 of block (0, 0, 0)",
        "mbarrier 0x400, parity 0; it is in phase 0, 8 of 40 arrivals and 64 bytes outstanding",
        "arrived so far: warp 3 (line",
        "32 threads of block (0, 0, 0) at `bar.sync 3, 64;`",
        "barrier 3, 32 of 64 threads have arrived",
        "threads that have exited: 32",
        "other blocks that stand still: 1",
    ):
        assert part in text


def test_a_deadlock_of_a_cluster_names_the_block_that_is_missing() -> None:
    body = text_of("mbarriers", "missing_block")
    with refuses("deadlock", r"threads that have not arrived: 32 of block \(1, 0, 0\);") as caught:
        launch(kernel(body), 64, 4, cluster=2)
    for part in ("bar.sync 1, 96", "exited: 64;", "other blocks that stand still: 2"):
        assert part in str(caught.value)
