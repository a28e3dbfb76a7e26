"""The notes on the iterations: what they must say, written by hand, and that the committed ones are current."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from analysis import render_notes
from analysis.page import iterations
from flashladder.errors import FlashladderError
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_all, load_iteration, same_but_for_parts
from flashladder.names import GPUS
from flashladder.report.data import collect
from flashladder.report.page.book import Book
from flashladder.view import diff

# Read off iterations/*.yaml by hand: the GPUs on which a step leaves tile, loads and every free switch as they were.
# What a step's own parts decide (swizzle, eager loads, a buffer that did not exist before, the softmax) is the step.
ALONE = {
    2: {"a100", "rtx3090", "h200"},
    3: {"a100", "rtx3090", "h200"},
    4: {"a100", "rtx3090", "h200"},  # the load sizes that it sets are what makes it tiled
    5: {"a100", "rtx3090", "h200"},
    6: {"a100", "rtx3090", "h200"},
    7: set(),  # tuning
    8: set(),
    9: {"a100", "h200"},  # the RTX 3090 goes from load 2_2_0 to 2_2_2
    10: {"a100"},  # the others change loads and buffer
    11: set(),  # A100 and RTX 3090 flip opt_softmax, the H200 changes loads and buffer
    12: {"rtx3090"},  # the A100 turns opt_softmax on, the H200 off
    13: set(),
    14: {"a100"},  # the RTX 3090 changes loads, the H200 opt_softmax
    15: {"a100"},
    16: set(),
    17: set(),  # 16's loads and buffer are others everywhere
    18: {"a100", "h200"},  # the RTX 3090 takes another tile
    19: {"a100", "rtx3090", "h200"},
    20: set(),  # another family
    21: set(),
    **{number: {"a100", "rtx3090", "h200"} for number in (22, 23, 24, 25, 27, 28)},
    26: set(),  # three stages of V
}


def note(number: int) -> str:
    """A committed note."""
    return (render_notes.NOTES / f"{number:02d}.md").read_text(encoding="utf-8")


def test_the_committed_notes_are_current() -> None:
    assert render_notes.main(["--check"]) == 0


@pytest.mark.parametrize("number", sorted(ALONE))
@pytest.mark.parametrize("gpu", GPUS)
def test_a_note_says_where_the_step_is_alone(number: int, gpu: str) -> None:
    lines, step, facts = note(number).splitlines(), load_iteration(number), load_gpus()[gpu]
    code = step.family.targets.serving(facts.arch)
    if code is None:
        assert f"- {facts.title}: not run there; it needs {step.family.needs}." in lines
        return
    at = next(i for i, line in enumerate(lines) if line.startswith(f"- {facts.title} ({code}): `"))
    if gpu in ALONE[number]:
        assert lines[at + 1] == f"  As iteration {number - 1} there: the step alone."
    else:
        assert lines[at + 1].startswith(f"  Iteration {number - 1} runs as `(FP16, ")
        assert lines[at + 1].endswith("there: not the step alone.")


def test_diff_goes_by_the_same_rule() -> None:
    for step in load_all()[1:]:
        parent = load_iteration(step.parent or 0)
        for gpu in GPUS:
            pair = parent.configs[gpu], step.configs[gpu]
            alone = same_but_for_parts((parent, pair[0]), (step, pair[1]))
            assert alone == (not diff.caveat(parent, step, pair))
            assert alone == (gpu in ALONE[step.number])


@pytest.mark.parametrize(
    ("number", "lines"),
    [
        (
            2,
            ["| LOP3 | 46 to 148 (37 to 60) | 47 to 149 (37 to 60) | 47 to 149 (37 to 60) | 47 to 149 (37 to 60) |"],
        ),
        (5, ["| total | 1256 (699) | 1256 (699) | 1256 (699) | 1312 (665) |", "| registers | 199 | 199 | 199 | 226 |"]),
        (
            8,
            [
                "  It does not apply to sm_90 (H100, H200): 27 -> 34 (+25.9 %) (sm_90).",
                "  It does not apply to sm_90 (H100, H200): 4 -> 7 (+75.0 %) (sm_90).",
                "| IADD3 | 44 to 30 (8 to 3) | 44 to 30 (8 to 3) | 44 to 30 (8 to 3) | 27 to 34 (4 to 1) |",
            ],
        ),
        (14, ["- STG.E.NA.128 is 16: 0 -> 16 (sm_80, sm_86, sm_89, sm_90)."]),
        (
            24,
            [
                "- mufu_under_products in the main loop is 66: 0 -> 66 (sm_90a).",
                "| registers | 168 |",
                "- A100: not run there; it needs sm_90a.",
            ],
        ),
    ],
)
def test_a_note_says_what_was_counted_on_each_architecture(number: int, lines: list[str]) -> None:
    found = note(number).splitlines()
    assert not [line for line in lines if line not in found]


def test_a_step_that_nobody_has_timed_says_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_notes, "_measured", lambda *_: iter(()))
    (line,) = render_notes.timing(load_iteration(24), collect())
    assert line == "- Nobody has timed it yet; `invoke bench 24` does, on sm_90a."
    assert len(list(render_notes.timing(load_iteration(8), collect()))) == 2  # the published ones


def test_a_model_of_warps_that_run_alike_says_nothing_of_roles() -> None:
    assert "## Bottleneck" in note(19)
    assert "## Bottleneck" not in note(24)


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


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere")], ids=["folder", "link"])
def test_a_note_that_is_no_file_is_named_by_the_page(tmp_path: Path, make: Callable[[Path], object]) -> None:
    step = load_iteration(8)
    notes = tmp_path / "iterations" / "notes"
    notes.mkdir(parents=True)
    book = cast("Book", SimpleNamespace(root=tmp_path))
    assert iterations.note(book, step)  # its reason alone, where no note was rendered
    make(notes / "08.md")
    with pytest.raises(FlashladderError, match=r"notes/08\.md: (not a regular file|cannot read the file)") as told:
        iterations.note(book, step)
    assert told.value.exit_code == 2
