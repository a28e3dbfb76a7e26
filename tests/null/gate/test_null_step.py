"""The null step: with the parent's kernel in a step's place, a claim of the step fails; and the page that says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashladder.emulate import agreement
from flashladder.errors import CheckFailed
from flashladder.gate import null_step
from flashladder.ladder.claim import COUNTERS
from flashladder.ladder.iteration import Iteration, claim_configs, load_all, load_iteration
from flashladder.lock import code_claims as claims
from flashladder.lock.step_counts import StepCounts, read_counts
from flashladder.lock.verdict import Sides, Verdict, judge
from flashladder.paths import RESULTS
from flashladder.results.files import load_as
from flashladder.results.schema import CounterResult, kernel_key

LADDER = load_all()

# What tells each step from its parent, said once more and apart from the iterations' files.
TELLS = {
    1: "shared_ld_wavefronts/ldsm",
    2: "LOP3",
    3: "LDGSTS",
    4: "registers",
    5: "mma_before_use",
    6: "FMUL",
    7: "ldsm",
    8: "LOP3",
    9: "IMAD.MOV.U32+MOV",
    10: "CS2R",
    11: "SHF",
    12: "div.approx.ftz.f32",
    13: "copies_upward",
    14: "STG.E.NA.128",
    15: "IMAD.WIDE",
    16: "IMAD",
    17: "VOTE",
    18: "BAR.SYNC.DEFER_BLOCKING",
    19: "mma_same_a",
    20: "LDSM",
    21: "HGMMA",
    22: "USETMAXREG",
    23: "BAR",
    24: "mufu_under_products",
    25: "BAR",
    26: "usual_path",
    27: "BAR",
    28: "UCGABAR_ARV",
}


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    return null_step.every_verdict()


@pytest.mark.parametrize("iteration", LADDER, ids=lambda iteration: iteration.slug)
def test_each_step_has_a_claim_that_fails_without_it(iteration: Iteration, verdicts: list[Verdict]) -> None:
    refuted = {null_step.short(row.claim).split()[0] for row in null_step.rows(iteration, verdicts) if row.refuted}
    assert TELLS[iteration.number] in refuted


@pytest.mark.parametrize("number", [n for n in range(2, 17) if n not in (7, 13)])
def test_the_parents_kernel_in_the_steps_place_fails_the_check(number: int) -> None:
    """Really put there: the counts of the step are those of its parent."""
    counts, iteration = read_counts(), load_iteration(number)
    config, parent_config = claim_configs(iteration)
    assert iteration.parent is not None
    assert parent_config is not None
    kernels = dict(counts.kernels)
    kernels[kernel_key(number, config.short_form())] = counts.of(iteration.parent, parent_config)
    broken = [verdict for verdict in claims.verify([number], StepCounts(kernels=kernels)) if not verdict.holds]
    assert broken
    assert all(verdict.problem.endswith(("it does not hold", "in either kernel")) for verdict in broken)
    told = {verdict.claim.metric for verdict in broken}
    unchanged = {claim.metric for claim in iteration.expect.sass if claim.form == "unchanged"}
    assert not told & unchanged


def test_the_readings_of_six_in_the_place_of_seven_fail_its_claim() -> None:
    """Iteration 7 is its configuration: its code at equal knobs is its parent's, what it executes is not."""
    (claim,) = load_iteration(7).expect.counters
    readings = load_as(RESULTS / "h200" / "counters.json.gz", CounterResult)
    six, seven = (
        next(counts for key, counts in readings.counters.items() if key.startswith(prefix)) for prefix in ("06 ", "07 ")
    )
    assert (six[COUNTERS["ldsm"]], seven[COUNTERS["ldsm"]]) == (1_179_648, 1_056_768)
    (held,) = judge(7, claim, {"h200": Sides(seven, six, six)})
    assert (held.holds, held.refuted) == (True, True)
    (failed,) = judge(7, claim, {"h200": Sides(six, six, six)})
    assert not failed.holds


def test_a_step_whose_claims_all_hold_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    twelve = load_iteration(12)
    blunt = replace(twelve, expect=replace(twelve.expect, ptx=(), sass=()))
    ladder = [blunt if one.number == 12 else one for one in LADDER]
    for module in (null_step, claims):
        monkeypatch.setattr(module, "load_all", lambda: ladder)
    monkeypatch.setattr(agreement, "load_runnable", lambda _: ladder)
    found = null_step.problems(null_step.PAGE, null_step.every_verdict())
    assert found[0] == "iteration 12: every claim holds without the step"
    with pytest.raises(CheckFailed, match="iteration 12: every claim holds without the step"):
        null_step.check().show()


def test_the_page_is_current_and_an_edited_one_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    null_step.check().show()
    assert capsys.readouterr().out.endswith("claims fail without their steps, at least one of each step\n")
    text = null_step.PAGE.read_text(encoding="utf-8")
    assert "| 8 | IADD3 falls by at least 20 % (on sm_80, sm_86, sm_89 only) | 44 to 30 |" in text
    assert "| 44 to 30 | (27 to 34) |" in text
    edited = tmp_path / "null-step.md"
    edited.write_text(text.replace("(27 to 34)", "(34 to 27)"), encoding="utf-8")
    with pytest.raises(
        CheckFailed, match=r"not what the claims give; run: python -m flashladder.gate.null_step --write"
    ):
        null_step.check(edited).show()
    with pytest.raises(CheckFailed, match="not what the claims give"):
        null_step.check(tmp_path / "missing.md").show()
