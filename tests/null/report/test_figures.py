"""Figures in texts: how they are written, found over line ends, replaced, and derived."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashladder.errors import FlashladderError
from flashladder.paths import ROOT
from flashladder.report import data as report_data
from flashladder.report import figures
from flashladder.report.figures import DURATIONS, FIGURES, Data, Figure, about, problems, rewritten


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


def made(pattern: str, value: str) -> Figure:
    return Figure("README.md", pattern, lambda _: value)


@pytest.mark.parametrize(
    ("text", "value", "lines"),
    [
        ("about 1.7 times", "1.7", []),
        ("about\n1.7\ntimes", "1.7", []),
        ("about 1.8 times", "1.7", ["expected 1.7, found 1.8"]),
        ("about 1.7 times, or about 1.9 times", "1.7", ["expected 1.7, found 1.9"]),
        ("about as fast", "1.7", ["no such text"]),
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
    text = texts[figures.README].replace("they need 2 GB", "they need\n7 GB")
    assert rewritten(ladder, {figures.README: text})[figures.README] == text.replace("\n7 GB", "\n2 GB")


def test_durations_need_a_record_of_where_and_when(tmp_path: Path, ladder: report_data.Ladder) -> None:
    record = json.loads((ROOT / "results" / DURATIONS).read_text(encoding="utf-8"))
    for change in ({"date": "yesterday"}, {"seconds": 0}, {"cores": None}, {"machine": "x"}):
        broken = {**record, "reproduce": {**record["reproduce"], **change}}
        (tmp_path / DURATIONS).write_text(json.dumps(broken), encoding="utf-8")
        with pytest.raises(FlashladderError, match=f"{DURATIONS}: bad record of durations") as caught:
            Data(ladder, tmp_path).durations  # noqa: B018 - it is read when it is asked for
        assert "\n" not in str(caught.value)


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
