"""The gate's command: each line as it is known, one failure hides no other, exit codes; locks within their limits."""

from __future__ import annotations

import json

import pytest

from flashladder.errors import Checked, CheckFailed, FlashladderError
from flashladder.gate import command as gate
from flashladder.gate.command import Check, Outcome
from flashladder.gpu.ncu import PEER, REGISTER_TOLERANCE, read_peer
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.lock.schema import LockFile, read_lock
from flashladder.names import PUBLISHED_GPU, REGISTERS
from flashladder.results.derive import Found
from tests.typed import command

LOCK = read_lock("sm_90")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """The checks that the gate makes, instead of its own; a test fills it."""
    planted: list[Check] = []
    monkeypatch.setattr(gate.Gate, "checks", lambda _: planted)
    monkeypatch.setattr(gate.Gate, "verified", None)
    return planted


def planted(outcome: Outcome) -> Check:
    """A check that finds `outcome`."""
    return Check(outcome.name, lambda: outcome)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("'yerr' must not contain\nnegative values"), "ValueError: 'yerr' must not contain negative values"),
        (KeyError("x"), "KeyError: 'x'"),
        (FlashladderError("not a JSON result", where="bench.json.gz"), "bench.json.gz: not a JSON result"),
        (CheckFailed("no"), "no"),
    ],
)
def test_what_one_check_raises_hides_no_other(
    checks: list[Check], capsys: pytest.CaptureFixture[str], error: Exception, line: str
) -> None:
    def broken() -> Outcome:
        raise error

    checks += [planted(Outcome("one", "ok", (), "3 cells")), Check("two", broken)]
    checks += [planted(Outcome("three", "failed", ("cell 7",)))]
    assert command("gate") == 1
    lines = [text.split() for text in capsys.readouterr().out.splitlines()]
    assert lines == [text.split() for text in ("ok one (3 cells)", "failed two", line, "failed three", "cell 7")]


def test_each_line_is_told_as_soon_as_it_is_known(checks: list[Check], capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []

    def second() -> Outcome:
        told.append(capsys.readouterr().out)  # what was printed, and flushed, before this check ends
        return Outcome("two", "ok")

    checks += [planted(Outcome("one", "failed", ("cell 1",))), Check("two", second)]
    assert command("gate") == 1
    assert [line.split() for line in told[0].splitlines()] == [["failed", "one"], ["cell", "1"]]
    assert capsys.readouterr().out.split() == ["ok", "two"]
    command("gate", "--json")
    assert told[1] == ""
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["one", "two"]
    checks[0] = planted(Outcome("one", "skipped"))
    assert command("gate") == 0


def test_a_check_is_told_with_its_problems_or_its_size_or_as_skipped() -> None:
    def of(problems: list[str], n: int) -> Outcome:
        return gate.attempt(Check("name", lambda: Found(problems, n), "files"))

    assert of([], 1200) == Outcome("name", "ok", (), "1,200 files")
    assert of(["a: differs"], 2) == Outcome("name", "failed", ("a: differs",), "2 files")
    assert of([], 0).status == "skipped"


def test_a_command_that_is_a_check_keeps_what_led_to_its_failure() -> None:
    failed = Checked("", ("fine", "bad"), problems=("bad",), failure=CheckFailed("1 differs"))
    assert gate.attempt(Check("name", lambda: failed)) == Outcome("name", "failed", ("bad", "1 differs"))
    fine = Checked("9 kernels", notes=("a note",))
    assert gate.attempt(Check("name", lambda: fine)) == Outcome("name", "ok", ("a note",), "9 kernels")


def test_the_committed_files_pass_the_quick_checks() -> None:
    every = gate.Gate().checks()
    slow = ("tables", "page", "notes", "documents")
    outcomes = [gate.attempt(one) for one in every if not any(word in one.name for word in slow)]
    assert len(outcomes) == len(every) - len(slow)
    assert [(one.name, one.details) for one in outcomes if one.status != "ok"] == []


def test_results_that_make_no_report_fail_the_checks_that_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice() -> None:
        raise FlashladderError("one cell was measured twice")

    monkeypatch.setattr(gate, "collect", twice)
    found = {one.name: gate.attempt(one) for one in gate.Gate().checks()[:8]}
    assert found["published figures are as taken over"].status == "ok"
    assert found["progressions fit the published ones"].details == ("one cell was measured twice",)


def edited(number: int, form: str, **changed: int) -> list[str]:
    """What is wrong with the lock of sm_90 when one kernel's numbers are changed."""
    entry = LOCK.iterations[number]
    kernels = {**entry.kernels, form: entry.kernels[form].model_copy(update=changed)}
    entries = {**LOCK.iterations, number: entry.model_copy(update={"kernels": kernels})}
    return gate.lock_problems(LockFile(arch="sm_90", iterations=entries))


def form_of(number: int, *, spilling: bool) -> str:
    """A configuration of an iteration whose tile may spill, or may not."""
    forms = LOCK.iterations[number].kernels
    return next(form for form in forms if (KernelConfig.parse(form).tile == "128,64,4") == spilling)


@pytest.mark.parametrize(
    ("spilling", "n_bytes", "registers", "fails"),
    [(True, 88, 255, False), (True, 89, 255, True), (True, 1, 254, True), (False, 4, 255, True)],
)
def test_only_the_published_tile_at_all_registers_may_spill(
    spilling: bool, n_bytes: int, registers: int, fails: bool
) -> None:
    found = edited(16, form_of(16, spilling=spilling), spill_stores=n_bytes, registers=registers)
    assert [f"spills {n_bytes} bytes" in line for line in found if "spills" in line] == [True] * fails


def test_a_lock_holds_the_ladder_and_nothing_else() -> None:
    entries = {number: entry for number, entry in LOCK.iterations.items() if number != 9} | {99: LOCK.iterations[8]}
    found = gate.lock_problems(LockFile(arch="sm_90", iterations=entries))
    assert {line.split(", ")[0] for line in found if line.endswith("is not locked")} == {"sm_90: iteration 9"}
    assert {line.split(", ")[0] for line in found if "not of the ladder" in line} == {"sm_90: iteration 99"}


@pytest.mark.parametrize(("off", "fails"), [(REGISTER_TOLERANCE, False), (-REGISTER_TOLERANCE - 1, True)])
def test_registers_are_those_of_the_published_kernels(off: int, fails: bool) -> None:
    theirs = read_peer(PEER)[8][REGISTERS]
    form = load_iteration(8).configs[PUBLISHED_GPU].short_form()
    assert bool(edited(8, form, registers=theirs + off, spill_stores=0)) == fails
