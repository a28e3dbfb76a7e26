"""``invoke verify --rerun`` with a simulated timer: which cells it draws, what it compares, what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.gate import verify
from flashladder.gate.published import compare_ranks, compare_same_gpu
from flashladder.gate.verify import Sample, draw, file_to_rerun, rerun
from flashladder.paths import RESULTS
from flashladder.results.derive import derive
from flashladder.results.files import load_as
from flashladder.results.schema import A_A, BenchResult
from tests.typed import command, error_line, printed

BENCH = RESULTS / "h200" / "bench.json.gz"
OWN = load_as(BENCH, BenchResult)
CARD = "GPU-11111111-2222-3333-4444-555555555555"


def timed(drawn: Sample, factor: float = 1.0, name: str = OWN.gpu.name, *, lose: bool = False) -> BenchResult:
    """The committed samples of the drawn cells, scaled as if another card had timed them."""
    groups = []
    for (dtype, shape), kernels in drawn.items():
        wanted = {A_A, *(one.key for one in kernels[lose:])}
        for group in OWN.groups:
            if (group.dtype, group.shape) == (dtype, shape):
                series = tuple(
                    one.model_copy(
                        update={"pairs": tuple(
                            pair if one.kernel == A_A else pair._replace(kernel_us=pair.kernel_us / factor)
                            for pair in one.pairs
                        )}
                    )
                    for one in group.series if one.kernel in wanted
                )  # fmt: skip
                order = {"order": tuple(one.kernel for one in series)}
                blocks = tuple(block.model_copy(update=order) for block in group.blocks)
                groups.append(group.model_copy(update={"series": series, "blocks": blocks}))
    gpu = OWN.gpu.model_copy(update={"uuid": CARD, "name": name})
    return derive(OWN.model_copy(update={"groups": tuple(groups), "gpu": gpu}))


def test_cells_follow_from_the_seed_and_the_file() -> None:
    drawn = draw(OWN, 8, 7, "digest")
    assert sum(map(len, drawn.values())) == 8
    assert drawn == draw(OWN, 8, 7, "digest")
    assert drawn != draw(OWN, 8, 8, "digest")
    assert drawn != draw(OWN, 8, 7, "another digest")
    assert all(one.dtype == dtype for (dtype, _), kernels in drawn.items() for one in kernels)
    assert sum(map(len, draw(OWN, 10**6, 0, "").values())) == len(OWN.summaries)


def test_the_same_kernels_on_another_card_of_the_model_agree() -> None:
    found = rerun(BENCH, 6, 0, timed)
    assert found.details == ()
    assert found.summary.startswith("6 of 264 cells timed again on this NVIDIA H200, seed 0")


def test_invented_ratios_are_out_of_their_tolerance_with_a_cause() -> None:
    found = rerun(BENCH, 24, 1, lambda drawn: timed(drawn, 0.9))
    assert len(found.details) >= 12, "cells at 20 % of FA2 and above are off by more than 2 points"
    assert all("rerun: " in line and f"probably another card: {CARD} instead of" in line for line in found.details)
    assert found.summary.startswith("24 of 264 cells")


def test_cells_with_just_enough_pairs_are_compared() -> None:
    least = min(one.n_pairs for one in OWN.summaries)
    just = OWN.model_copy(update={"settings": OWN.settings.model_copy(update={"min_pairs": least})})
    assert compare_same_gpu(just, just, ("a", "b")) == ([], len(OWN.summaries) + len(OWN.means))
    none = OWN.model_copy(update={"settings": OWN.settings.model_copy(update={"min_pairs": 10**6})})
    assert compare_same_gpu(none, none, ("a", "b")) == ([], len(OWN.means)), "no cell has enough"


def test_a_cell_without_a_figure_is_told() -> None:
    found = rerun(BENCH, 6, 0, lambda drawn: timed(drawn, lose=True))
    assert any("cells have no valid timing" in line for line in found.details)


def test_another_model_is_compared_by_rank() -> None:
    found = rerun(BENCH, 12, 3, lambda drawn: timed(drawn, 0.7, "NVIDIA B1"))
    assert found.details == ()
    model = "another GPU model than the file's (NVIDIA H200), so ranks are compared"
    assert f"on this NVIDIA B1, seed 3, {model}: Spearman 1.000, at least 0.8" in found.summary
    turned = OWN.model_copy(
        update={"summaries": tuple(one.model_copy(update={"pct": 1e4 / one.pct}) for one in OWN.summaries)}
    )
    lines, told = compare_ranks(OWN, turned)
    assert told.startswith("Spearman -1.000")
    assert lines[0].startswith("rerun: rank order of 264 cells: Spearman -1.000, at least 0.8; probably another card")
    few = OWN.model_copy(update={"summaries": OWN.summaries[:3]})
    assert compare_ranks(OWN, few) == (["rerun: expected at least 4 cells to rank"], "3 cells give no rank order")


def test_which_file_is_meant(tmp_path: Path) -> None:
    assert file_to_rerun(BENCH, "any") == BENCH
    assert file_to_rerun(None, "NVIDIA H200") == BENCH
    assert file_to_rerun(RESULTS / "h100", "any") == RESULTS / "h100" / "h100.json.gz"
    with pytest.raises(FlashladderError, match=r"none: nothing to time again: .*this GPU is h200"):
        file_to_rerun(tmp_path / "none", "NVIDIA H200")


@pytest.mark.parametrize(
    ("name", "cells", "message"),
    [
        ("tune_07.json.gz", 3, "a tuning run has too few pairs to compare"),
        ("check.json.gz", 3, "a result of another kind: expected bench, found check"),
        ("bench.json.gz", 0, "no cell to time again: expected a benchmark"),
    ],
)
def test_what_cannot_be_timed_anew_is_one_line(name: str, cells: int, message: str) -> None:
    assert message in error_line(rerun, RESULTS / "h200" / name, cells, 0, timed)


def test_without_a_gpu_it_is_one_line_and_leaves_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no GPU here" in error_line(command, "verify", str(BENCH), "--rerun")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("told", "code"), [((), 0), (("rerun: cell",), 1)])
def test_verify_says_what_the_rerun_found(monkeypatch: pytest.MonkeyPatch, told: tuple[str, ...], code: int) -> None:
    seen: list[object] = []

    def planted(*arguments: object) -> verify.Outcome:
        seen.extend(arguments)
        return verify.Outcome("bench.json.gz", "failed" if told else "ok", "3 of 9 cells", told)

    monkeypatch.setattr(verify, "rerun_here", planted)
    small = RESULTS / "h200" / "sanitizer.json.gz"
    assert "3 of 9 cells" in printed("verify", str(small), "--rerun", "--cells", "3", "--seed", "5", code=code)
    assert seen == [small, 3, 5]
    assert '"summary": "3 of 9 cells"' in printed("verify", str(small), "--rerun", "--json", code=code)
