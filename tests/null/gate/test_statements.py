"""Words and claims belong together: no claim can be deleted or turned around without an error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gate import statements
from flashladder.ladder.claim import Claim
from flashladder.ladder.iteration import Iteration, load_all

LADDER = load_all()
EVERY = [
    pytest.param(iteration, claim, id=f"{iteration.number}-{claim.scope}-{claim.metric}")
    for iteration in LADDER
    for claim in iteration.expect.claims
]
SCOPES = ("sass", "ptx", "counters")


def with_claim(monkeypatch: pytest.MonkeyPatch, iteration: Iteration, old: Claim, *new: Claim) -> None:
    """The ladder with `new` in the place of one claim."""
    expect = replace(
        iteration.expect,
        **{  # type: ignore[arg-type]  # fields of Expect
            scope: tuple(
                one for claim in getattr(iteration.expect, scope) for one in (new if claim == old else (claim,))
            )
            for scope in SCOPES
        },
    )
    ladder = [replace(iteration, expect=expect) if one.number == iteration.number else one for one in LADDER]
    monkeypatch.setattr(statements, "load_all", lambda _: ladder)


def test_the_committed_statements_fit(capsys: pytest.CaptureFixture[str]) -> None:
    statements.check().show()
    assert "statements have their claims" in capsys.readouterr().out
    assert len(EVERY) > 90


@pytest.mark.parametrize(("iteration", "claim"), EVERY)
def test_no_claim_can_be_deleted(monkeypatch: pytest.MonkeyPatch, iteration: Iteration, claim: Claim) -> None:
    with_claim(monkeypatch, iteration, claim)
    (line,) = statements.problems()
    assert f"iteration {iteration.number} must claim {claim.metric} " in line
    assert line.endswith(f": {claim.form}, and claims nothing")


@pytest.mark.parametrize(("iteration", "claim"), EVERY)
def test_no_claim_can_be_turned_around(monkeypatch: pytest.MonkeyPatch, iteration: Iteration, claim: Claim) -> None:
    other = Claim(claim.metric, claim.scope, "equals" if claim.direction != "equals" else "falls")
    with_claim(monkeypatch, iteration, claim, other)
    (line,) = statements.problems()
    assert line.endswith(f"{claim.form}, and claims {other.form}")


def test_a_claim_without_words_and_words_without_claims(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = LADDER[0]
    (claim,) = first.expect.counters
    with_claim(monkeypatch, first, claim, claim, Claim("HMMA", "counters", "equals", value=128))
    (line,) = statements.problems()
    assert line.endswith("no statement in configs/statements.yaml stands on: HMMA is 128")
    with_claim(monkeypatch, first, claim, claim)
    path = tmp_path / "statements.yaml"
    text = statements.STATEMENTS.read_text(encoding="utf-8")
    path.write_text(text.replace("each phase takes eight wavefronts", "each phase takes nine wavefronts"), "utf-8")
    with pytest.raises(CheckFailed, match=r"iteration 1 says 'each phase takes nine wavefronts .*its 'why' does not"):
        statements.check(path).show()
    path.write_text("statements:\n  - {iterations: [1], says: 9-way conflicts are expected}\n", encoding="utf-8")
    assert "iteration 1 says '9-way conflicts are expected': its 'why' does not" in statements.problems(path)
    assert "iteration 1 says '9-way conflicts are expected': no claim stands for it" in statements.problems(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("statements:\n  - {iterations: [1], says: something, sass: {IADDD3: falls}}\n", "did you mean 'IADD3'"),
        ("statements:\n  - {iterations: [1], says: something, sass: {IADD3: drops}}\n", "falls, rises, unchanged"),
        ("statements:\n  - {iteration: [1], says: something}\n", "iterations"),
    ],
)
def test_malformed_statements_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "statements.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FlashladderError, match=message) as caught:
        statements.problems(path)
    assert caught.value.exit_code == 2
    assert "statements.yaml:2: " in str(caught.value)
