"""The report: same results, same bytes; only locked machine code counts; stale files are named."""

from __future__ import annotations

import json
from pathlib import Path
import re
import shutil
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.files import last_iteration
from flashladder.paths import CONFIGS, RESULTS, ROOT
from flashladder.report import command as report
from flashladder.report import data as report_data
from flashladder.report import plot as report_plot
from flashladder.report import tables as report_tables
from flashladder.results.published import PUBLISHED
from tests.null.ladder_fixture import TIMED, Fixture, make
from tests.typed import command, error_line

BEGIN, END = "<!-- progression:begin -->", "<!-- progression:end -->"
README = f"# x\n\n{BEGIN}\nold\n{END}\n\nrest\n<!-- times:begin -->\nlong ago\n<!-- times:end -->\n"


def rising(number: int) -> float:
    """Percent of FA2 of a made-up ladder that gets faster with every step."""
    return 50.0 + 3.5 * number


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return make(tmp_path_factory.mktemp("results"), rising)


def picture(*points: report_plot.Point) -> dict[str, bytes]:
    names = {point.iteration: "step" for point in points}
    return report_plot.render([report_plot.Series("made up", points)], names, "made up", [], {1: "steps"})


def test_a_drawn_number_changes_the_picture_and_rounded_bounds_are_drawn() -> None:
    points = [report_plot.Point(n, 80.0 + n, 79.0 + n, 81.0 + n) for n in range(1, 16)]
    one, other = (picture(*points, report_plot.Point(16, last)) for last in (97.0, 99.0))
    assert all(one[suffix] != other[suffix] for suffix in ("svg", "png"))
    assert report_plot.rendered_by(one["svg"])[1] != report_plot.rendered_by(other["svg"])[1]
    beside = picture(report_plot.Point(1, 50.0, 50.0 + 1e-12, 50.0 - 1e-12))
    assert beside["png"].startswith(b"\x89PNG")


def test_without_measurements_the_table_says_so(tmp_path: Path) -> None:
    shutil.copytree(PUBLISHED, tmp_path / "published")
    unmeasured = report_data.collect(tmp_path)
    block = report_tables.readme_block(unmeasured)
    assert "Nothing was measured by this project yet" in block
    assert "TFLOP/s" not in block
    assert "| 16 | Static GMEM stride" in block
    assert report_plot.of_ladder(unmeasured)["png"].startswith(b"\x89PNG")


def test_a_result_without_locked_machine_code_is_refused_by_name(tmp_path: Path) -> None:
    folder = make(tmp_path / "results", rising, stale={7: "f" * 64}).folder
    found = report_data.collect(folder)
    assert len(found.refused) == 1
    assert "machine/bench.json.gz: 07 (FP16" in found.refused[0]
    assert "refused" in found.refused[0]
    rows = found.rows(found.machines[0], "fp16")
    assert [row.iteration.number for row in rows if row.measured is None and row.iteration.number in TIMED] == [7]
    assert "## Refused" in report_tables.document(found)


def test_the_same_cell_in_two_files_is_an_error(measured: Fixture, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(measured.folder, tmp_path / "results"))
    shutil.copy(folder / "machine" / "bench.json.gz", folder / "machine" / "bench_again.json.gz")
    with pytest.raises(FlashladderError, match=r"was measured twice.*bench\.json\.gz and bench_again\.json\.gz"):
        report_data.collect(folder)


def test_readme_says_how_long_the_commands_take(tmp_path: Path) -> None:
    times: dict[str, Any] = json.loads((RESULTS / "times.json").read_bytes())
    times["seconds"] = {"reproduce": {"first": 180.4, "second": 41.5}, "tests": {"first": 250.0, "second": 199.6}}
    (tmp_path / "times.json").write_text(json.dumps({**times, "cpus": 3}), encoding="utf-8")
    found = report.sentence(tmp_path)
    assert found.startswith("On 3 CPUs without a GPU")
    assert re.findall(r"\d+ s\b", found) == ["180 s", "250 s", "42 s", "200 s"]
    (tmp_path / "times.json").write_text(json.dumps({**times, "cpus": "many"}), encoding="utf-8")
    assert re.search(r"times.json: .*nox -s times", error_line(report.sentence, tmp_path))


@pytest.mark.parametrize("text", ["none", BEGIN, f"{END} {BEGIN}", README + README])
def test_missing_markers_are_an_error(text: str) -> None:
    assert "markers of what is generated" in error_line(report.between_markers, text, "progression", "new")


SLOW_SWEEPS = ("ablation.json.gz", "toolchain.json.gz", "tune.json.gz")  # slow to draw; test_variants covers them


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: Fixture) -> Path:
    """A checkout for the command: its files are written in tmp_path, and the ladder's timings are made up."""
    machines = {path.parent for path in RESULTS.glob("h*/README.md")}
    for machine in machines:
        (tmp_path / machine.relative_to(ROOT)).mkdir(parents=True)
    small = [path for machine in machines for path in machine.iterdir() if path.name not in SLOW_SWEEPS]
    shutil.copytree(CONFIGS, tmp_path / CONFIGS.relative_to(ROOT))  # the report writes fastest.json
    for path in (*(path for path in RESULTS.iterdir() if path not in {report.REPORT, *machines}), *small):
        (tmp_path / path.relative_to(ROOT)).symlink_to(path)
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(report, "collect", lambda: report_data.collect(measured.folder))
    monkeypatch.setattr(report, "pages", lambda *_: {})  # slow to draw; test_page covers it
    return tmp_path


def test_command_writes_then_checks(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("report", "--check") == 1
    assert "missing; run: invoke report" in capsys.readouterr().err
    assert command("report", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["refused"] == []
    assert {row["iteration"] for row in told["rows"]} == set(range(1, last_iteration() + 1))
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    assert command("report", "--check", "--open") == 0
    assert "no browser here; copy and open " in capsys.readouterr().err
    assert "Static GMEM stride" in (place / "README.md").read_text()
    assert {path.name for path in (place / "results" / "report").iterdir()} == {
        "progression.md", "progression.csv", "cells.csv", "progression.svg", "progression.png",
        *report.result_pages(place / "results"),
    }  # fmt: skip


@pytest.mark.parametrize("check", [False, True])
def test_a_folder_in_the_place_of_a_file_is_named_before_any_is_written(place: Path, check: bool) -> None:
    folder = place / "configs" / "fastest.json"
    folder.unlink()
    folder.mkdir()
    assert error_line(report.report, check=check).endswith("/fastest.json: is a directory; remove it")
    assert not (place / "results" / "report").exists()
