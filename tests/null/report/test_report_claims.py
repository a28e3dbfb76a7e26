"""The report says where a published reason does not apply, by hand-counted figures of step 8."""

from __future__ import annotations

from pathlib import Path

from flashladder.lock.code_claims import verify
from flashladder.paths import RESULTS
from flashladder.report import tables
from flashladder.report.data import collect
from tests.null.ladder_fixture import make


def test_the_reason_of_step_eight_is_not_that_of_sm_90() -> None:
    rows = tables.claim_rows(verify())
    assert [row[0] for row in rows] == ["8", "8", "8"]
    assert rows[0][2:] == [
        "44 -> 30 (-31.8 %) (sm_80, sm_86, sm_89)",
        "sm_90 (H100, H200): 27 -> 34 (+25.9 %) (sm_90)",
    ]
    assert rows[1][3] == "sm_90 (H100, H200): 4 -> 7 (+75.0 %) (sm_90)"


def test_every_progression_ends_with_it(tmp_path: Path) -> None:
    committed = (RESULTS / "report" / "progression.md").read_text(encoding="utf-8")
    section = "\n\n".join(tables.by_architecture()) + "\n"
    assert committed.endswith(section)
    fixture = make(tmp_path / "results", lambda number: 50.0 + number, configs_of="a100", lengths=[4096])
    assert section in tables.document(collect(fixture.folder))
