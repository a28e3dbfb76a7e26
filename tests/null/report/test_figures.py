"""Figures in texts: how they are written, found over line ends, replaced, and derived."""

from __future__ import annotations

from dataclasses import replace
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.iteration import load_all
from flashladder.paths import ROOT
from flashladder.report import data as report_data
from flashladder.report import figures
from flashladder.report.figure_data import DURATIONS, Data
from flashladder.report.figures import FIGURES, Figure, about, problems, rewritten, spelled


@pytest.fixture(scope="module")
def ladder() -> report_data.Ladder:
    return report_data.collect()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.3, "a second"), (1.4, "a second"), (1.6, "two seconds"), (41, "40 seconds"), (64, "a minute"),
        (86, "90 seconds"), (104, "100 seconds"), (106, "two minutes"), (301, "five minutes"), (745, "twelve minutes"),
        (868, "14 minutes"),
    ],
)  # fmt: skip
def test_durations_are_written_as_people_do(seconds: float, text: str) -> None:
    assert about(seconds) == text


def test_counts_are_words_up_to_twelve() -> None:
    assert [spelled(n) for n in (0, 1, 12, 13, 256)] == ["no", "one", "twelve", "13", "256"]


def made(pattern: str, value: str) -> Figure:
    return Figure("README.md", pattern, lambda _: value)


@pytest.mark.parametrize(
    ("text", "value", "lines"),
    [
        ("about 1.7 times", "1.7", []),
        ("about\n1.7\ntimes", "1.7", []),
        ("about 1.8 times", "1.7", ["expected 1.7, found 1.8"]),
        ("about 1.7 times, or about 1.9 times", "1.7", ["expected 1.7, found 1.9"]),
        ("about as fast", "1.7", ["no text like"]),
    ],
)
def test_every_place_is_compared_over_line_ends(
    tmp_path: Path, ladder: report_data.Ladder, text: str, value: str, lines: list[str]
) -> None:
    for page in dict.fromkeys(figure.page for figure in FIGURES):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(text, encoding="utf-8")
    found = problems(ladder, tmp_path, (made(r"about ([\d.]+) times", value),))
    assert found.n == 1
    assert len(found.problems) == len(lines)
    for problem, line in zip(found.problems, lines, strict=True):
        assert problem.startswith("README.md: ")
        assert line in problem


def test_rewriting_touches_figures_alone_and_keeps_wrapped_lines(ladder: report_data.Ladder) -> None:
    texts = figures.pages()
    new = rewritten(ladder, texts)
    assert new == {page: texts[page] for page in texts if page not in figures.SEALED}
    page = figures.MEASURED
    text = texts[page].replace("about 1.5 times", "about\n0.1 times")
    assert rewritten(ladder, {page: text})[page] == text.replace("\n0.1 times", "\n1.5 times")


def test_the_factor_to_cudnn_and_fa4_is_that_of_the_anchors(ladder: report_data.Ladder) -> None:
    """By hand from anchors_h200.csv: (623.3 + 611.0) / 2 / 333.6 = 1.850; the fastest step is at 119.6 % of FA2."""
    best = max(Data(ladder).percent(step) for step in range(1, 20))
    assert Data(ladder).beyond_ampere() == pytest.approx(1.850 / (best / 100), abs=1e-3)


def test_durations_need_a_record_of_where_and_when(tmp_path: Path, ladder: report_data.Ladder) -> None:
    record = json.loads((ROOT / "results" / DURATIONS).read_text(encoding="utf-8"))
    for change in ({"date": "yesterday"}, {"seconds": 0}, {"cores": None}, {"machine": "x"}):
        broken = {**record, "reproduce": {**record["reproduce"], **change}}
        (tmp_path / DURATIONS).write_text(json.dumps(broken), encoding="utf-8")
        with pytest.raises(FlashladderError, match=f"{DURATIONS}: bad record of durations") as caught:
            Data(ladder, tmp_path).durations  # noqa: B018 - it is read when it is asked for
        assert "\n" not in str(caught.value)


def test_without_measurements_no_figure_is_derived(ladder: report_data.Ladder) -> None:
    with pytest.raises(FlashladderError, match="nothing was measured"):
        Data(replace(ladder, machines=())).percent(1)


def test_command_prints_every_figure_and_fails_on_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figures.main() == 0
    assert len(capsys.readouterr().out.splitlines()) == len(FIGURES)
    monkeypatch.setattr(figures, "pages", lambda _: EMPTY)
    with pytest.raises(CheckFailed, match=f"{len(FIGURES)} figures differ, the first: README.md: no text like"):
        figures.main()


EMPTY = {figure.page: "" for figure in FIGURES}


def test_each_step_of_the_changelog_has_its_figure() -> None:
    patterns = [one.pattern for one in FIGURES if one.page == "CHANGELOG.md"]
    for step in load_all():
        assert sum(one.startswith(f"^- Iteration {step.number}, ") for one in patterns) == 1, step.number


@pytest.mark.parametrize(
    ("best", "text"),
    [
        ({512: ("cudnn", "cudnn"), 1024: ("fa3", "fa3"), 2048: ("fa3", "fa3")}, "cuDNN at 512, FA3 from 1024 on"),
        ({512: ("cudnn", "fa3"), 2048: ("fa4",) * 2}, "FA3 or cuDNN at 512, FA4 from 2048 on"),
        ({512: ("fa3", "fa3"), 1024: ("fa3", "fa3")}, "FA3 from 512 on"),
    ],
)  # fmt: skip
def test_the_best_library_is_named_by_length(
    ladder: report_data.Ladder, monkeypatch: pytest.MonkeyPatch, best: dict[int, tuple[str, str]], text: str
) -> None:
    cells = {
        (dtype, n): SimpleNamespace(kernel=name)
        for n, names in best.items()
        for dtype, name in zip(("fp16", "bf16"), names, strict=True)
    }
    monkeypatch.setattr(Data, "_fastest", lambda *_, ours: {} if ours else cells)
    assert Data(ladder).best_libraries("h100") == text
