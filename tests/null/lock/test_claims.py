"""Verdicts on claims, on counts small enough to judge by hand, and what makes a claim worth stating."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import json
from pathlib import Path
from typing import Any

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.claim import Claim
from flashladder.ladder.iteration import load_iteration
from flashladder.lock import code_claims as claims
from flashladder.lock import step_counts
from flashladder.lock.code_claims import Counts, Sides, Verdict, checked, judge
from flashladder.lock.step_counts import COUNTS, StepCounts, read_counts
from flashladder.results.schema import kernel_key

FALLS = Claim("LOP3+SHF", "kernel", "falls", at_least=0.5)
LAST_PUBLISHED = kernel_key(16, load_iteration(16).configs["a100"].short_form())


def sides(own: Counts, parent: Counts | None = None, null: Counts | None = None) -> Sides:
    """The counts of a step and its parent, by default also those without the step."""
    return Sides(own, parent, null or parent or {})


def one(claim: Claim, own: Counts, parent: Counts) -> Verdict:
    """The verdict at a single place."""
    (verdict,) = judge(8, claim, {"sm_80": sides(own, parent)}, " at (64, 64, 4)")
    return verdict


@pytest.mark.parametrize(
    ("claim", "own", "parent", "problem"),
    [
        (Claim("LOP3", "kernel", "equals"), {}, {}, "no LOP3 in either kernel"),
        (Claim("LOP3+SHF", "kernel", "falls", at_least=1), {}, {"LOP3": 2}, "no SHF in either kernel"),
        (Claim("LOP3", "kernel", "equals", value=0), {"LOP3": 0}, {"LOP3": 0}, "it says nothing about the step"),
        (Claim("LOP3", "kernel", "equals", value=2), {"LOP3": 3}, {"LOP3": 2}, "it does not hold"),
        (Claim("LOP3", "kernel", "equals", value=2), {"LOP3": 2}, {"LOP3": 3}, ""),
        (Claim("LOP3", "kernel", "equals"), {"LOP3": 2}, {"LOP3": 2}, ""),
        (Claim("A/B", "kernel", "equals", value=4, within=0.01), {"A": 8, "B": 2}, {"A": 6, "B": 2}, ""),
    ],
)
def test_a_claim_must_hold_and_say_something(claim: Claim, own: Counts, parent: Counts, problem: str) -> None:
    verdict = one(claim, own, parent)
    assert verdict.problem.startswith(problem)
    assert verdict.holds == (not problem)


def test_on_names_exactly_the_architectures_where_a_claim_holds() -> None:
    after = {"sm_80": 1, "sm_86": 1, "sm_90": 7}
    places = {arch: sides({"LOP3": count}, {"LOP3": 4}) for arch, count in after.items()}
    claim = Claim("LOP3", "kernel", "falls", at_least=0.5)

    def problems(*on: str) -> list[str]:
        return [verdict.problem for verdict in judge(8, replace(claim, on=on), places)]

    assert problems("sm_80", "sm_86") == ["", "", ""]
    assert problems() == ["", "", "it does not hold"]
    assert problems("sm_80") == ["", "it holds here too, which its 'on' denies", ""]
    assert problems("sm_80", "sm_86", "sm_90") == ["", "", "it does not hold"]
    outside = judge(8, replace(claim, on=("sm_80", "sm_86")), places)[2]
    assert (outside.claimed, outside.refuted) == (False, False)
    assert "on sm_90: not claimed here: LOP3 falls by at least 50 % (on sm_80, sm_86 only): 4 -> 7" in str(outside)


def test_only_claims_that_are_made_are_held_to_the_rules() -> None:
    claim = Claim("LOP3", "kernel", "equals", value=2, on=("sm_80",))
    places = {"sm_80": sides({"LOP3": 2}, {"LOP3": 2}), "sm_90": sides({"LOP3": 3}, {"LOP3": 3})}
    empty, elsewhere = judge(8, claim, places)
    assert empty.problem.startswith("it says nothing about the step")
    assert elsewhere.problem == ""
    assert [v.problem for v in judge(8, claim, places, confirms=True)] == ["", ""]
    both = {"sm_80": sides({"LOP3": 2}, {"LOP3": 4}), "sm_90": sides({"LOP3": 2}, {"LOP3": 2})}
    verdicts = judge(8, replace(claim, on=()), both)
    assert all("says nothing" in verdict.problem for verdict in verdicts), "at one of two places it is no news"


def test_the_first_iteration_is_refuted_by_the_one_that_follows() -> None:
    claim = Claim("A/B", "counters", "equals", value=32)
    own, follower = {"A": 64, "B": 2}, {"A": 8, "B": 2}
    (verdict,) = judge(1, claim, {"emulator": sides(own, None, follower)})
    assert (verdict.before, verdict.after, verdict.refuted) == (None, 32, True)
    assert str(verdict).endswith("A/B is 32: 32")
    (same,) = judge(1, claim, {"emulator": sides(own, None, own)})
    assert same.problem.startswith("it says nothing about the step")


def test_every_verdict_is_shown_and_a_broken_one_fails(capsys: pytest.CaptureFixture[str]) -> None:
    good = one(FALLS, {"LOP3": 1, "SHF": 0}, {"LOP3": 4, "SHF": 1})
    bad = replace(one(FALLS, {"LOP3": 4, "SHF": 1}, {"LOP3": 4, "SHF": 1}), iteration=9)
    assert (str(good)[:5], str(bad)[:5]) == ("holds", "FAILS")
    assert checked("machine code", [good]).summary == "1 claims hold"
    checked("machine code", [good]).show()
    found = checked("machine code", [good, bad])
    assert found.problems == (str(bad),)
    message = "iteration 9: 1 of 2 claims about machine code do not hold: found LOP3\\+SHF on sm_80: it does not hold"
    with pytest.raises(CheckFailed, match=f"^{message}$") as caught:
        found.show()
    assert caught.value.exit_code == 1
    assert capsys.readouterr().out.splitlines() == [str(good), str(good), str(bad)]


def test_a_kernel_that_was_not_counted_is_named() -> None:
    hint = "run: python -m flashladder.lock.step_counts --write"
    with pytest.raises(FlashladderError, match=f"no counts of 08 .*{hint}"):
        claims.verify([8], StepCounts(kernels={}))
    with pytest.raises(FlashladderError, match=f"no counts of the steps; {hint}"):
        read_counts(Path("nowhere"))


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda kernel, code: code["kernel"].update(IADD3=999), "on sm_90: IADD3: "),
        (lambda kernel, code: code["kernel"].update(registers=256), "registers: 256, in the lock 255"),
        (lambda kernel, code: code.update(text_sha256="0" * 64), "what was counted is not what is locked"),
        (lambda kernel, code: kernel.update(ptx_sha256="0" * 64), "what was counted is not what is locked"),
        (lambda kernel, code: kernel["sass"].pop("sm_90"), "what was counted is not what is locked"),
    ],
)
def test_edited_counts_do_not_fit_the_locks(tmp_path: Path, edit: Callable[[Any, Any], object], problem: str) -> None:
    document = json.loads(COUNTS.read_text(encoding="utf-8"))
    kernel = document["kernels"][LAST_PUBLISHED]
    edit(kernel, kernel["sass"]["sm_90"])
    edited = tmp_path / "counts.json"
    edited.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(CheckFailed, match=problem):
        claims.check(path=edited).show()


def test_counts_that_the_kernels_do_not_give_are_named_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What compiles and counts is planted; tests/nvcc/test_lock_nvcc.py does it."""
    path, counts = tmp_path / "counts.json", read_counts()
    key, kernel = next(iter(counts.kernels.items()))
    edited = {**counts.kernels, key: kernel.model_copy(update={"ptx": {"add.s32": 7}})}
    monkeypatch.setattr(step_counts, "COUNTS", path)
    monkeypatch.setattr(step_counts, "count_all", lambda: StepCounts(kernels=edited))
    step_counts.main(["--write"])
    assert capsys.readouterr().out == f"wrote {path}\n"
    assert step_counts.check(path).failure is None
    expected = f"counts of 1 kernels are not what their code gives: found {key}; run: python -m flashladder"
    assert expected in str(step_counts.check(COUNTS).failure)
