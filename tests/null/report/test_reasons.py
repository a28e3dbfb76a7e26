"""Reasons and notes: the data must support each text; a contradiction or an unknown name is one line."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

import pytest

from analysis import render_notes
from flashladder.errors import FlashladderError
from flashladder.explain.predict import NAME as PREDICTIONS
from flashladder.explain.predict import load_predictions
from flashladder.files import write_atomic
from flashladder.ladder.iteration import load_iteration
from flashladder.names import GPUS
from flashladder.report.data import Ladder, collect
from flashladder.report.reasons import SECTIONS, Words, bottleneck, locked, mma_issue, reasons, tensor_rate
from tests.data_files import table_of
from tests.typed import error_line


@pytest.fixture(scope="module")
def ladder() -> Ladder:
    """The committed results."""
    return collect()


def page(folder: Path, *bodies: str, number: int = 8) -> Path:
    """A file with the reasons of one iteration; its sections hold `bodies`."""
    sections = (f"## {title}\n\n{body}\n" for title, body in zip_longest(SECTIONS, bodies, fillvalue="."))
    path = folder / "reasons.md"
    path.write_text("\n".join([f"# {number}\n", *sections]), encoding="utf-8")
    return path


@pytest.mark.parametrize(("call", "message"), table_of("null/report/reasons", "calls"))
def test_what_the_data_contradict_is_named_with_its_line(
    ladder: Ladder, tmp_path: Path, call: str, message: str
) -> None:
    path = page(tmp_path, "Words.", "More words,\nand {{ " + call + " }}.")
    where, _, what = error_line(reasons, ladder, 8, path).partition("reasons.md:10: ")
    assert where
    assert message in what


def test_a_page_has_its_three_sections_in_order(ladder: Ladder, tmp_path: Path) -> None:
    path = tmp_path / "reasons.md"
    path.write_text("# 8\n## Try next\n", encoding="utf-8")
    with pytest.raises(FlashladderError, match="wrong sections: expected What one sees, Reasons, Try next, found Try"):
        reasons(ladder, 8, path)
    assert "no reasons of iteration 9; docs/add-an-iteration.md says how" in error_line(reasons, ladder, 9, path)


def test_figures_are_those_of_the_tables_by_hand(ladder: Ladder) -> None:
    """Read off results/report/progression.md, ablation_h200.md and the locks."""
    words = Words(ladder, 8).called
    assert words["speed"]("h200", at=512) == "98.8 %"
    assert words["gains"]("a100") == "gains 7.5 points (80.3 to 87.8 % of FA2)"
    assert words["gain"]("a100") == "+7.5"
    assert words["pays"]("static_swizzle", at=512) == "20.7 %"
    assert words["spilled"]("interleave") == "352 against 40 bytes"
    assert words["falls"]("LEA", "sm_90") == "32 to 0"
    assert words["count"]("total", "published a100") == "2,210"
    assert words["ctas"]("rtx3090", configs="a100") == "1"  # 64 KiB of 100
    assert words["ctas"]("a100") == "2"


def test_cycles_of_a_loop_by_hand(ladder: Ladder) -> None:
    """64 LDSM of 4.03 wavefronts and 681 instructions; 128 HMMA of 2 * 16 * 8 * 16 FLOPs at 2048 per clock."""
    assert tensor_rate("a100") == 0.5
    assert 0.66 < tensor_rate("h200") < 0.67  # measured; the peak is 1
    loads = Words(ladder, 7)
    assert loads.share("shared reads", "a100", 7) == pytest.approx(100 * 64 * 4.031 / 256, rel=1e-4)
    assert loads.share("issue slots", "a100", 7) == pytest.approx(100 * (681 - 128 + 128 * mma_issue("h200")) / 4 / 256)
    assert 5 < mma_issue("h200") < 6  # of the 6 clocks of an mma; by hand 7.4 less the 2 of two fma
    assert "no rates of mixed rounds" in error_line(mma_issue, "a100")
    assert loads.share("shared reads", "a100", 1) == pytest.approx(100 * 64 * 32.03 / 256, rel=1e-4)
    flops = 186.4 * 0.991 * 512 / 515 * 1e12  # FA2's, about; the published count also has the softmax
    assert loads.called["fa2_use"]("a100") == f"{100 * flops / 312e12:.0f} %"


def folder_of(folder: Path, **other: Mapping[str, object]) -> Path:
    """A folder of results with predictions of iteration 8; `other` replaces facts by GPU."""
    predictions, gpus = load_predictions(), {}
    facts = {"clocks": 2000.0, "binding": "issue slots", "percent_of_fa2": 91.44}
    facts |= {"resources": {"tensor": 1000.0, "ALU": 100.0, "issue slots": 1500.0}}
    (old,) = (one for one in predictions.gpus["a100"] if one.iteration == 8)
    for gpu in GPUS:
        own = {"text_sha256": locked(load_iteration(8), gpu).text_sha256, **facts, **other.get(gpu, {})}
        gpus[gpu] = (old.model_copy(update=own),)
    write_atomic(folder / PREDICTIONS, predictions.model_copy(update={"gpus": gpus}).model_dump_json())
    return folder


def test_the_bottleneck_table_holds_resources_bottleneck_and_speeds(ladder: Ladder, tmp_path: Path) -> None:
    lines = list(bottleneck(ladder, 8, folder_of(tmp_path, rtx3090={"binding": "tensor", "clocks": 4000.0})))
    assert lines[0] == "## Bottleneck"
    assert lines[5:] == table_of("null/report/reasons", "table")


def test_a_prediction_of_another_kernel_is_refused_and_none_gives_no_table(ladder: Ladder, tmp_path: Path) -> None:
    assert list(bottleneck(ladder, 8, tmp_path)) == []
    folder = folder_of(tmp_path, h200={"text_sha256": "0" * 64})
    with pytest.raises(FlashladderError, match=r"iteration 8 on h200 is not what was predicted: expected .*found 0000"):
        list(bottleneck(ladder, 8, folder))
    assert "iteration 9 on a100 is not what was predicted" in error_line(list, bottleneck(ladder, 9, folder))
    (folder / PREDICTIONS).write_text("{}", encoding="utf-8")
    assert "predictions.json: " in error_line(list, bottleneck(ladder, 8, tmp_path))


def test_an_edited_note_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render_notes, "NOTES", tmp_path)
    render_notes.main([])
    edited = tmp_path / "08.md"
    edited.write_text(edited.read_text(encoding="utf-8").replace("IADD3", "IADD4", 1), encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        render_notes.main(["--check"])
    assert caught.value.code == 1
    assert "08.md: stale note" in capsys.readouterr().err
