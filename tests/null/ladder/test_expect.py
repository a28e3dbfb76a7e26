"""Claims: their arithmetic, that they ask for what was published, and that published counters bear them out."""

from __future__ import annotations

import math

import pytest

from flashladder.ladder.iteration import Claim, claim_configs, load_all, load_iteration

LADDER = load_all()


def test_claims_are_made_at_equal_tiles() -> None:
    for step in LADDER[1:]:
        own, parent = claim_configs(step)
        if load_iteration(step.parent or 0).family is not step.family:
            assert parent is None
            continue
        assert parent is not None
        assert own.tile == parent.tile
        assert step.family.conflicts(step.parts, own) == ()
        assert step.family.conflicts(load_iteration(step.parent or 0).parts, parent) == ()
    assert claim_configs(LADDER[0])[1] is None
    own, _ = claim_configs(load_iteration(8))
    assert own.short_form() == "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles"


def test_claim_arithmetic() -> None:
    falls = Claim("A+B", "kernel", "falls", at_least=0.5)
    assert falls.holds({"A": 1, "B": 1}, {"A": 3, "B": 1})
    assert not falls.holds({"A": 1, "B": 2}, {"A": 3, "B": 1})
    assert not Claim("A", "kernel", "falls").holds({"A": 3}, {"A": 3})
    assert Claim("A", "kernel", "rises").holds({"A": 1}, {})
    assert Claim("total", "kernel", "equals").holds({"A": 1, "B": 2}, {"total": 3})
    assert not Claim("TYPO", "kernel", "equals").holds({"A": 1}, {"A": 1})
    assert Claim("A", "kernel", "equals").holds({"A": 0}, {"A": 0})
    assert not Claim("A/B", "kernel", "equals", value=0).holds({"A": 1, "B": 0})
    ratio = Claim("A/B", "kernel", "equals", value=32, within=0.01)
    assert ratio.holds({"A": 322, "B": 10})
    assert not ratio.holds({"A": 324, "B": 10})
    assert not Claim("A", "kernel", "equals", value=0).holds({"A": math.nan})
    assert not Claim("A", "kernel", "falls").holds({"A": math.nan}, {"A": 1})
    with pytest.raises(ValueError, match="needs the parent's counts"):
        falls.holds({"A": 1})


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Claim("FMUL", "kernel", "falls", at_least=0.192), "FMUL falls by at least 19.2 %"),
        (Claim("IADD3+SHF", "main_loop", "falls"), "IADD3+SHF in the main loop falls"),
        (Claim("total", "kernel", "equals"), "total is unchanged"),
        (Claim("add.s64", "ptx", "rises", at_least=2), "add.s64 in the PTX rises by at least 200 %"),
        (Claim("LEA", "kernel", "falls", at_least=1, on=("sm_90",)), "LEA falls by at least 100 % (on sm_90 only)"),
        (Claim("A/B", "kernel", "equals", value=32, within=0.01), "A/B is 32 within 1 %"),
    ],
)
def test_claims_in_words(claim: Claim, words: str) -> None:
    assert str(claim) == words
