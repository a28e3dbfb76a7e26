"""Which verdicts hold for every schedule, compared with all schedules of small programs.

Each program runs in every order in which its warps can take turns at their basic blocks, or in `MOST` of them. If its
verdict is said to hold for every schedule, all of them must give the same numbers and no hazard. The other programs are
there to show that such a test finds something: their orders differ.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import INIT, kernel, store, wait
from tests.test_verdicts import DATA

import ptxemu
from ptxemu.__main__ import main
from ptxemu.run import engine

MOST = 400  # orders of a program


class Script:
    """Stands for the random numbers of a schedule: the choices of a list, then the first; notes how many there were."""

    def __init__(self, choices: list[int]) -> None:
        self.choices = choices
        self.options: list[int] = []

    def integers(self, count: int) -> int:
        at = len(self.options)
        self.options.append(count)
        return self.choices[at] if at < len(self.choices) else 0

    def random(self) -> float:
        return float(self.integers(2) == 0)  # nothing asynchronous finishes early, then it does


def orders(most: int = MOST) -> Iterator[Script]:
    """All scripts of a program, or so many drawn ones: each runs before the next is asked for."""
    stack, numbers = [list[int]()], np.random.default_rng(0)
    while stack and most:
        script = Script(stack.pop(numbers.integers(len(stack))))
        yield script
        most -= 1
        for at in range(len(script.choices), len(script.options)):
            chosen = script.choices + [0] * (at - len(script.choices))
            stack += [[*chosen, other] for other in range(1, script.options[at])]


def outcomes(text: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> tuple[set[Any], int]:
    """What the orders of a program show: errors, hazards, numbers; and how many orders were tried."""
    found, count = set[Any](), 0
    loaded = ptxemu.load(text, path="k.ptx").kernel()
    for script in orders():
        count += 1

        def scripted(_: object, machine: Any, flow: Any, script: Script = script) -> engine.Schedule:
            made = engine.OneByOne(machine, flow, 0)
            made._random = script  # type: ignore[assignment]
            return made

        monkeypatch.setattr(engine, "schedule_of", scripted)
        found.add(verdict(loaded, threads)[:3])
    monkeypatch.undo()
    return found, count


def verdict(loaded: ptxemu.Kernel, threads: int) -> tuple[str, tuple[str, ...], bytes, ptxemu.Hazards]:
    out, hazards, error = np.full(threads, 0xDEAD, np.uint32), ptxemu.Hazards(), ""
    try:
        loaded.launch(1, threads, [out], observers=[hazards], max_instructions=5000)
    except ptxemu.EmulationError as found:
        error = found.kind
    return error, tuple(sorted(one.kind for one in hazards.reports)), b"" if error else out.tobytes(), hazards


PUT, ARRIVE = "st.shared.u32 [%place], %t;\n", "@%lead mbarrier.arrive.shared::cta.b64 _, [%bar];\n"
LEAD = ".reg .pred %lead; and.b32 %r5, %t, 31; setp.eq.u32 %lead, %r5, 0; mov.u32 %n, 0; mov.u32 %r3, 0;\n"
OTHER = "mov.u32 %r4, words; xor.b32 %r2, %t, 32; mad.lo.u32 %r2, %r2, 4, %r4; "  # the word of another warp's thread
ZERO = "@%first st.shared.u32 [words], 0; bar.sync 0;\n"
GET, SYNC = "ld.shared.u32 %n, [%place+-128];\n", "bar.warp.sync -1;\n"
TURN = "bra.uni turn;\nturn:\n"  # another warp may go on here
EMPTY = "@%first mbarrier.init.shared::cta.b64 [%bar+8], 1;\n"


def parted(zero: str, one: str) -> str:
    """Warp 0 and the others do different things; then %n is stored."""
    text = f"setp.ge.u32 %p0, %t, 32;\n@%p0 bra one;\n{zero}bra.uni end;\none:\n{one}end:\n{store('%n')}"
    return kernel(LEAD + text)


def with_mbarrier(zero: str, one: str, count: int = 1) -> str:
    return parted(zero, one).replace(LEAD, EMPTY + INIT.replace("COUNT", str(count)) + LEAD)


def waits(*parities: int, barrier: str = "%bar", name: str = "w") -> list[str]:
    return [wait(parity, f"{name}{number}", barrier) for number, parity in enumerate(parities)]


FULL, EMPTIED = waits(0, 1), waits(0, barrier="%bar+8", name="e")
RELEASE = "@%lead mbarrier.arrive.shared::cta.b64 _, [%bar+8];\n"
READ = "ld.shared.u32 %r3, [%place+-128]; add.u32 %n, %n, %r3;\n"
POLL = "mbarrier.test_wait.parity.shared::cta.b64 %done, [%bar], 0; selp.u32 %n, 1, 0, %done;\n"
TICKET = "@%lead atom.shared.add.u32 %n, [words], 1;\n"
FLAG = "@%lead st.volatile.shared.u32 [words], 1;\n"
# Name: text, threads.
ALIKE = {
    "barrier": (kernel(LEAD + PUT + "bar.sync 0;\n" + OTHER + "ld.shared.u32 %n, [%r2];\n" + store("%n")), 64),
    "handed on": (parted(PUT + "bar.arrive 1, 64;\n", "bar.sync 1, 64;\n" + GET), 64),
    "mbarrier": (with_mbarrier(PUT + SYNC + ARRIVE, FULL[0] + GET), 64),
    "ring": (
        with_mbarrier(
            PUT + SYNC + ARRIVE + EMPTIED[0] + PUT + SYNC + ARRIVE,
            FULL[0] + READ + SYNC + RELEASE + FULL[1] + READ,
        ),
        64,
    ),
    "a barrier of half the block, twice": (
        parted("bar.sync 1, 32; bar.sync 1, 32;\n", "bar.sync 2, 32; bar.sync 2, 32;\n"), 64,
    ),
}  # fmt: skip
DIFFERENT = {
    "a phase that completes before somebody looks": (with_mbarrier(ARRIVE + TURN + ARRIVE, FULL[0]), 64),
    "a ring without an empty barrier": (
        with_mbarrier(PUT + SYNC + ARRIVE + TURN + ARRIVE, FULL[0] + READ + FULL[1] + READ), 64,
    ),
    "whoever comes to a barrier": (
        kernel(LEAD + PUT + "bar.sync 1, 64;\n" + OTHER + "ld.shared.u32 %n, [%r2];\n" + store("%n")), 128,
    ),
    "a third warp comes to a barrier of two": (
        kernel(LEAD + "shr.u32 %r2, %t, 5; setp.eq.u32 %p0, %r2, 1; setp.eq.u32 %p1, %r2, 2;\n"
               "@%p0 bra one;\n@%p1 bra two;\n"
               "bar.sync 1, 64;\n" + PUT + "bar.sync 1, 64;\nbra end;\none: bar.sync 1, 64;\nbra end;\n"
               "two: bar.sync 1, 64;\nld.shared.u32 %n, [%place+-256];\nend:\n" + store("%n")), 96,
    ),
    "a barrier of one and of two": (parted("bar.sync 1, 32;\nbar.sync 1, 64;\n", "bar.sync 1, 64;\n"), 64),
    "tickets": (kernel(LEAD + ZERO + TICKET + store("%n")), 64),
    "a flag": (
        parted(FLAG, "ld.volatile.shared.u32 %n, [words];\n").replace(LEAD, LEAD + ZERO), 64,
    ),
    "global memory in a block": (
        parted("st.global.u32 [%out], %t;\n", "ld.global.u32 %n, [%out];\n"), 64,
    ),
}  # fmt: skip
# What every order of warps answers alike, and a GPU perhaps not.
SUSPECT = {
    "a poll": (with_mbarrier(ARRIVE, POLL), 64),
    "who is active": (kernel(LEAD + "activemask.b32 %n;\n" + store("%n")), 64),
    "the time": (kernel(LEAD + "mov.u32 %n, %clock; and.b32 %n, %n, 0;\n" + store("%n")), 64),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_verdict_for_every_schedule_is_that_of_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, threads = ALIKE[name]
    error, reports, numbers, hazards = verdict(ptxemu.load(text, path="k.ptx").kernel(), threads)
    assert (error, reports, hazards.may_differ) == ("", (), ())
    found, count = outcomes(text, threads, monkeypatch)
    assert found == {("", (), numbers)}
    assert count > 1


@pytest.mark.parametrize("name", DIFFERENT)
def test_orders_that_differ_are_not_all_judged_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, threads = DIFFERENT[name]
    found, _ = outcomes(text, threads, monkeypatch)
    assert len(found) > 1
    error, reports, _, hazards = verdict(ptxemu.load(text, path="k.ptx").kernel(), threads)
    assert error or reports or hazards.may_differ


def test_each_rule_about_phases_is_asked() -> None:
    second = TURN.replace("turn", "second")
    late = ARRIVE + TURN + ARRIVE + second + PUT + SYNC
    expect = "@%lead mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 0;\n"
    for text in (late + ARRIVE, late + expect + ARRIVE):
        *_, hazards = verdict(ptxemu.load(with_mbarrier(text, FULL[0] + GET), path="k.ptx").kernel(), 64)
        assert any("that a wait finds" in why for why in hazards.may_differ)
        assert any("for which an arrival counts" in why for why in hazards.may_differ)


def test_a_polling_loop_that_writes_is_no_wait() -> None:
    poll = "mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;\n@!%done bra loop;\n"
    loop = f"loop:\nst.volatile.shared.u32 [words+4], %t;\n{poll}"
    *_, hazards = verdict(ptxemu.load(with_mbarrier(ARRIVE, loop), path="k.ptx").kernel(), 64)
    assert any("poll" in why for why in hazards.may_differ)


@pytest.mark.parametrize("name", SUSPECT)
def test_what_a_gpu_may_answer_differently(name: str) -> None:
    text, threads = SUSPECT[name]
    *_, hazards = verdict(ptxemu.load(text, path="k.ptx").kernel(), threads)
    (why,) = hazards.may_differ
    assert "in `" in why


WORDS = ["k.ptx", "--block", "64", "--arg", "out=uint32:64:zeros", "--hazards"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(text: str, *words: str) -> int:
    Path("k.ptx").write_text(text)
    return main([*WORDS, *words])


@pytest.mark.usefixtures("here")
def test_one_order_is_enough_where_none_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(ALIKE["ring"][0], "--schedules", "9", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["schedules"], facts["any_schedule"], facts["may_differ"]) == (["together"], True, [])


@pytest.mark.usefixtures("here")
def test_several_orders_begin_with_the_same_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    add = f"ld.global.u32 %r3, [%at]; {TICKET}add.u32 %n, %n, %r3; st.global.u32 [%at], %n;"
    text = kernel(LEAD + ZERO + store("%t").replace("st.global.u32 [%at], %t;", add))
    assert command(text, "--schedules", "5", "--save", "out=out.npy") == 0
    assert sorted(np.load("out.npy")[::32]) == [0, 1]
    said = capsys.readouterr().out
    assert "no hazards in 5 schedules; others may differ in " in said
    assert "out holds other numbers with --schedule reverse" in said


@pytest.mark.usefixtures("here")
def test_who_is_elected_is_a_question_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["k.ptx", "--block", "256", "--arg", "float32:256:zeros", "--arg", "float32:256:arange", "--hazards"]
    for name, found in (("0", ""), ("1", "warning: elect (elect.sync must choose the lowest lane")):
        Path("k.ptx").write_text(DATA["cases"]["elect_assumes_lane0"]["variants"][name]["ptx"])
        for order in ("together", "reverse", "4"):
            assert main([*words, "--schedule", order]) == 0
        assert "elect" not in capsys.readouterr().out
        assert main([*words, "--schedules", "2"]) == 0
        said = capsys.readouterr().out
        assert ("warning: elect" in said) == bool(found)
        assert found in said
    assert main([*words, "--schedules", "2", "--strict"]) == 1
    capsys.readouterr()
    assert main([*words, "--schedules", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["schedules"], facts["any_schedule"]) == (["together", "elect-last"], True)


@pytest.mark.usefixtures("here")
def test_another_lane_is_elected_from_the_same_memory(capsys: pytest.CaptureFixture[str]) -> None:
    elect = ".reg .pred %e; elect.sync _|%e, -1; ld.global.u32 %n, [%at]; add.u32 %n, %n, 1; st.global.u32 [%at], %n;\n"
    text = kernel(LEAD + store("%t").replace("st.global.u32 [%at], %t;", "") + elect)
    assert command(text, "--schedules", "2") == 0
    assert "elect" not in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_an_error_of_another_order_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    late = DIFFERENT["a phase that completes before somebody looks"][0]
    names = ["together", "reverse", "0", "1", "2", "3"]
    alone = [command(late, "--schedule", name) for name in names]
    assert sorted(set(alone)) == [0, 1]
    capsys.readouterr()
    assert command(late, "--schedules", "6") == 1
    said = capsys.readouterr().err
    first = names[alone.index(1)]
    assert (f"; seen with --schedule {first}" in said) == (first != "together")


@pytest.mark.parametrize("words", [
    ["--schedules", "0"], ["--schedules", "x"], ["--schedules", "3", "--schedule", "1"], ["--schedules", "-1"],
])  # fmt: skip
@pytest.mark.usefixtures("here")
def test_bad_numbers_of_orders(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(ALIKE["barrier"][0], *words) == 2
    assert capsys.readouterr().err.count("\n") == 1
