"""Coverage and mutation: what is counted, what fails, and the page that is rendered from the committed figures."""

from __future__ import annotations

import json
from pathlib import Path
import sys
from typing import Any

import pytest

from analysis import mutation, quality
from analysis.mutation import Mutant, counted, from_spans, sampled, stale, unexplained
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.located import read_yaml

MODULE = "flashladder.lock.code_claims"


def mutant(number: int, after: str = "", before: str = "x = 1", function: str = "judge") -> Mutant:
    return Mutant(f"{MODULE}.x_{function}__mutmut_{number}", f"{MODULE}.{function}", before, after or f"x = {number}")


def counts(tried: int, killed: int, timeout: int = 0, planted: int = 0) -> dict[str, int]:
    survived = tried - killed - timeout
    return {"planted": planted or tried, "tried": tried, "killed": killed, "timeout": timeout, "survived": survived}


def test_the_page_is_what_the_committed_figures_give() -> None:
    documents = [quality.read(path) for path in (quality.COVERAGE, quality.MUTATION)]
    assert quality.PAGE.read_text(encoding="utf-8") == quality.page(documents[0], documents[1], quality.settings())


def test_the_committed_figures_are_good_enough() -> None:
    rooms = quality.read(quality.MUTATION)["rooms"]
    settings = quality.settings()
    assert set(rooms) == set(settings["rooms"])
    for name, room in rooms.items():
        assert quality.score(room["modules"].values()) >= settings["score"], name
        assert sum(one["tried"] for one in room["modules"].values()) >= 100, name
    assert quality.judged(quality.read(quality.COVERAGE)["rooms"]).startswith("the tests reach ")


def test_every_explained_survivor_is_of_a_room_and_has_a_reason() -> None:
    settings: Any = read_yaml(mutation.SETTINGS)
    for group in settings["survivors"]:
        assert set(group) == {"reason", "mutants"}
        assert len(group["reason"]) > 20
        for one in group["mutants"]:
            assert set(one) == {"function", "becomes"}
            assert one["function"].split(".")[1] in settings["rooms"]
    assert all(one["pattern"] and one["reason"] for one in settings["ignored"])


def test_a_score_counts_timeouts_as_noticed() -> None:
    assert quality.score([counts(10, 7, 1), counts(10, 9)]) == pytest.approx(85.0)
    assert quality.score([]) == 0.0


def test_the_interval_of_a_sample() -> None:
    low, high = quality.interval(90.0, 100, 10**9)
    assert (low, high) == pytest.approx((82.56, 94.48), abs=0.01)  # Wilson's, from a table
    assert quality.interval(90.0, 100, 100) == (90.0, 90.0)
    nearly = quality.interval(90.0, 100, 110)
    assert low < nearly[0] < 90.0 < nearly[1] < high


def report(*files: tuple[str, int, int, int, int]) -> dict[str, Any]:
    return {
        "files": {name: {"summary": dict(zip(quality.KEYS.values(), numbers, strict=True))} for name, *numbers in files}
    }


def test_files_are_summed_by_room() -> None:
    rooms = quality.by_room(
        report(
            ("flashladder/lock/verdict.py", 100, 90, 10, 9),
            ("flashladder/lock/deep/more.py", 50, 50, 4, 4),
            ("flashladder/errors.py", 10, 10, 0, 0),
            ("emulator/src/ptxemu/isa/bits.py", 7, 7, 2, 2),
            ("emulator/src/ptxemu/table.py", 3, 3, 0, 0),
        )
    )
    assert rooms.pop("ptxemu") == {"lines": 10, "lines_reached": 10, "branches": 2, "branches_reached": 2}
    assert rooms == {
        "lock": {"lines": 150, "lines_reached": 140, "branches": 14, "branches_reached": 13},
        "(modules)": {"lines": 10, "lines_reached": 10, "branches": 0, "branches_reached": 0},
    }
    assert quality.judged(rooms) == "the tests reach 93.8 % of 160 lines, 92.9 % of 14 branches"
    assert quality.share(rooms["(modules)"], "branches") == 100.0


@pytest.mark.parametrize("reached", [(91, 100), (100, 91)])
def test_too_few_lines_or_branches_fail(reached: tuple[int, int]) -> None:
    rooms = quality.by_room(report(("flashladder/errors.py", 100, reached[0], 100, reached[1])))
    with pytest.raises(CheckFailed, match=r"expected 92 % of either, found .*91\.0 %"):
        quality.judged(rooms)


def test_the_command_judges_a_report_and_keeps_nothing_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report(("flashladder/errors.py", 100, 95, 10, 10))), encoding="utf-8")
    for name in ("COVERAGE", "PAGE"):
        monkeypatch.setattr(quality, name, tmp_path / name)
    quality.main(["--coverage", str(path)])
    assert capsys.readouterr().out == "the tests reach 95.0 % of 100 lines, 100.0 % of 10 branches\n"
    assert [one.name for one in tmp_path.iterdir()] == ["report.json"]
    quality.main(["--coverage", str(path), "--record"])
    assert quality.read(tmp_path / "COVERAGE")["rooms"]["(modules)"]["lines_reached"] == 95
    assert "| (modules) | 100 | 95.0 % | 10 | 100.0 % |" in (tmp_path / "PAGE").read_text(encoding="utf-8")


def test_a_sample_is_drawn_by_what_a_mutant_says() -> None:
    mutants = [mutant(number) for number in range(50)]
    drawn = sampled(mutants, 1, 10)
    assert len(set(drawn)) == 10
    assert sampled(mutants[::-1], 1, 10) == drawn
    assert sampled(mutants, 2, 10) != drawn
    assert sorted(sampled(mutants, 1, None), key=mutants.index) == mutants
    others = [mutant(number, function="other") for number in range(50)]
    assert [one for one in sampled(mutants + others, 1, 100) if one in drawn][:10] == drawn


def test_mutants_are_read_with_their_lines() -> None:
    lines = [
        "def x_judge__mutmut_orig(a):",
        "    return a + 1",
        "def x_judge__mutmut_2(a):",
        "    return a - 1",
        "    def xǁLockǁof__mutmut_orig(self):",
        "        return f(",
        "            self, 1",
        "        )",
        "    def xǁLockǁof__mutmut_1(self):",
        "        return f(",
        "            None, 1",
        "        )",
    ]
    spans = {
        "x_judge__mutmut_orig": (1, 2),
        "x_judge__mutmut_2": (3, 4),
        "xǁLockǁof__mutmut_orig": (5, 8),
        "xǁLockǁof__mutmut_1": (9, 12),
    }
    assert list(from_spans(MODULE, lines, spans)) == [
        Mutant(f"{MODULE}.x_judge__mutmut_2", f"{MODULE}.judge", "return a + 1", "return a - 1"),
        Mutant(f"{MODULE}.xǁLockǁof__mutmut_1", f"{MODULE}.Lock.of", "self, 1", "None, 1"),
    ]


def test_figures_are_counted_by_module() -> None:
    mutants = [mutant(number) for number in range(5)]
    outcome = dict(
        zip((one.name for one in mutants), ("killed", "timeout", "segfault", "survived", "no tests"), strict=True)
    )
    empty = {"planted": 3, "tried": 0, "killed": 0, "timeout": 0, "survived": 0}
    assert counted(mutants, outcome, {MODULE: 9, "flashladder.lock.other": 3}) == {
        MODULE: {"planted": 9, "tried": 5, "killed": 2, "timeout": 1, "survived": 2},
        "flashladder.lock.other": empty,
    }


def test_an_explained_survivor_must_survive() -> None:
    mutants = [mutant(1), mutant(2), mutant(3)]
    outcome = {mutants[0].name: "survived", mutants[1].name: "killed"}

    def explained(after: str, function: str = f"{MODULE}.judge") -> list[dict[str, str]]:
        return [{"function": function, "becomes": after, "reason": "because"}]

    assert list(stale(explained("x = 1"), mutants, outcome)) == []
    assert list(stale(explained("x = 3"), mutants, outcome)) == []  # not drawn
    assert list(stale(explained("x = 2"), mutants, outcome)) == [f"{MODULE}.judge: a test notices `x = 2` by now"]
    gone = f"{MODULE}.judge: no mutant becomes `x = 9` any more"
    assert list(stale(explained("x = 9"), mutants, outcome)) == [gone]
    assert list(stale(explained("x = 9", "flashladder.gate.verify.verify"), mutants, outcome)) == []  # another room's
    assert list(unexplained(explained("x = 1"), mutants, outcome)) == []
    assert list(unexplained([], mutants, outcome)) == [mutants[0]]


def test_a_room_below_its_score_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mutants = [mutant(number) for number in range(10)]
    outcome = {one.name: "survived" if number < 2 else "killed" for number, one in enumerate(mutants)}
    monkeypatch.setattr(mutation, "prepare", lambda *_: None)
    monkeypatch.setattr(mutation, "working_in", lambda _: pytest.MonkeyPatch.context())
    monkeypatch.setattr(mutation, "planted", lambda *_: mutants)
    monkeypatch.setattr(mutation, "tried", lambda _, chosen: {one.name: outcome[one.name] for one in chosen})
    settings = {"seed": 1, "score": 80, "survivors": [], "rooms": {"lock": {"modules": [], "tests": [], "sample": 5}}}
    figures, problems = mutation.judge("lock", settings, None)
    assert figures == {MODULE: counts(10, 8)}
    assert problems == []
    _, problems = mutation.judge("lock", {**settings, "score": 81}, None)
    assert problems == ["lock: expected a score of 81 %, found 80.0 %"]
    assert sum(one["tried"] for one in mutation.judge("lock", settings, 5)[0].values()) == 5


def test_a_file_that_is_no_report_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in (None, "{}"):
        if text is not None:
            (tmp_path / "report.json").write_text(text, encoding="utf-8")
        with pytest.raises(SystemExit) as left:
            quality.main(["--coverage", str(tmp_path / "report.json")])
        assert left.value.code == 2
        assert "not a report of coverage.py" in capsys.readouterr().err


def test_without_mutmut_a_session_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mutmut.configuration", None)
    with (
        pytest.raises(FlashladderError, match="mutmut is missing; run: nox -s mutation"),
        mutation.working_in(tmp_path),
    ):
        pass


def test_an_unknown_room_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        mutation.main(["attic"])
    assert left.value.code == 2
    assert capsys.readouterr().err == "error: no such room: expected lock, results, check, gate, found attic\n"
