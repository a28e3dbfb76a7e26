"""Rule 12: cells beside those of another run on the same GPU model or the published ones, and the likeliest cause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import shutil

import pytest

from flashladder.gate import checks as gate_checks
from flashladder.gate import published as gate_published
from flashladder.gate.evidence import rule12
from flashladder.gate.evidence.rule12 import Known, failing, probable_cause, same_model
from flashladder.paths import RESULTS
from flashladder.report.data import collect
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import BenchResult
from tests.null.ladder_fixture import make

BENCH, SECOND = (RESULTS / "h200" / f"{name}.json.gz" for name in ("bench", "second_card"))
RUN = Known(
    config="(FP16, 128, 64, 64, 4): async",
    code="aa" * 32,
    compiler="nvidia-cuda-nvcc 13.0.88",
    clock_mhz=1900.0,
    fa2_tflops=340.0,
    driver="580.159.04",
    torch="2.11.0+cu130",
    card="GPU-0",
)


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        ({}, rule12.NONE),
        (
            {"config": "(FP16, 128, 128, 64, 4): async", "code": "bb" * 32},
            "another configuration: (FP16, 128, 128, 64, 4): async instead of (FP16, 128, 64, 64, 4): async",
        ),
        (
            {"compiler": "nvidia-cuda-nvcc 13.1.80", "code": "bb" * 32},
            "another toolchain: nvidia-cuda-nvcc 13.1.80 instead of nvidia-cuda-nvcc 13.0.88",
        ),
        ({"code": "bb" * 32}, "other machine code from the same compiler"),
        ({"clock_mhz": 1500.0, "fa2_tflops": 270.0}, "another clock: 1500 MHz instead of 1900 MHz"),
        (
            {"clock_mhz": None, "fa2_tflops": 270.0},
            "another clock or another FA2, which itself runs at: 270 TFLOP/s instead of 340 TFLOP/s",
        ),
        ({"clock_mhz": 1880.0}, rule12.NONE),
        (
            {"driver": "570.1", "card": "GPU-1"},
            "another driver: 570.1 instead of 580.159.04; another card: GPU-1",
        ),
        ({"torch": "2.9.0"}, "another torch: 2.9.0 instead of 2.11.0+cu130"),
        ({"card": "GPU-1", "driver": None}, "another card: GPU-1 instead of GPU-0"),
        ({"card": "GPU-1", "clock_mhz": 1500.0}, "another clock: 1500 MHz instead of 1900 MHz; another card: GPU-1"),
    ],
)
def test_what_differs_is_named_the_likeliest_cause_first(other: dict[str, object], cause: str) -> None:
    assert probable_cause(RUN, replace(RUN, **other)).startswith(cause)  # type: ignore[arg-type]  # by name


def test_a_cell_within_its_tolerance_says_nothing() -> None:
    assert failing("cell", (90.0, 2.0), 92.0, (RUN, RUN)) is None
    assert failing("cell", (90.0, 2.0), 88.0, (RUN, RUN)) is None
    told = failing("cell", (90.0, 2.0), 92.1, (RUN, RUN))
    assert told == f"cell: expected 90.0 % of FA2 within 2 points, found 92.1 %; probably {rule12.NONE}"


def slower(result: BenchResult, points: float, **other: object) -> BenchResult:
    """The same run with all ratios lower."""
    fields = ("pct", "pct_low")

    def moved(one: object) -> object:
        return one.model_copy(update={name: getattr(one, name) - points for name in fields} | other)  # type: ignore[attr-defined]

    changed = {name: tuple(moved(one) for one in getattr(result, name)) for name in ("summaries", "means")}
    return result.model_copy(update=changed)


@pytest.mark.parametrize(("points", "lengths"), [(1.4, set()), (1.6, {"hmean"}), (2.9, {"hmean", "seq4096"})])
def test_each_cell_has_its_tolerance(points: float, lengths: set[str]) -> None:
    """2 points, 3 at S = 512, 1.5 for the harmonic mean."""
    own = load_as(BENCH, BenchResult)
    found = same_model(own, slower(own, points), ("bench.json.gz", "again.json.gz"))
    assert found.n == len(own.summaries) + len(own.means)
    assert {line.split(", beside")[0].rpartition(" ")[2] for line in found.problems} & {
        "seq512", "seq4096", "hmean",
    } == lengths  # fmt: skip


@pytest.mark.parametrize(("points", "fails"), [(2.1, False), (5.9, False), (6.1, True)])
def test_a_listed_cell_has_three_times_its_tolerance_and_no_more(points: float, fails: bool) -> None:
    own = load_as(BENCH, BenchResult)
    one = next(one for one in own.summaries if one.shape.seq_len == 4096 and one.kernel in own.kernels)
    cell = f"{one.kernel} {one.dtype} S={one.shape.seq_len}"
    other = one.model_copy(update={"pct": one.pct - points})
    found = own.model_copy(update={"summaries": tuple(other if each is one else each for each in own.summaries)})
    told = same_model(own, found, ("bench.json.gz", "again.json.gz"), (cell,)).problems
    assert [f"{one.kernel} {one.dtype} seq4096" in line for line in told] == [True] * fails
    assert len(same_model(own, found, ("bench.json.gz", "again.json.gz")).problems) == 1, "where it is not listed"


def test_a_second_card_that_disagrees_fails_the_gate_with_its_cause(tmp_path: Path) -> None:
    folder = tmp_path / "h200"
    folder.mkdir()
    shutil.copy(BENCH, folder)
    write_result(folder / SECOND.name, slower(load_as(SECOND, BenchResult), 4.0))
    outcome = gate_checks.repeats_hold(tmp_path)
    assert outcome.status == "failed"
    (line,) = (one for one in outcome.details if ": 16 (BF16" in one and "seq4096" in one)
    assert "bf16 seq4096, beside bench.json.gz: expected 1" in line
    assert "% of FA2 within 2 points, found 10" in line
    assert line.endswith("another card: GPU-d79aa688-b247-151f-5428-f3e2e990b544 instead of "
                         "GPU-f91cafd0-a85e-0404-ed3c-c291b2f2e415")  # fmt: skip
    assert gate_checks.repeats_hold().status == "ok"
    assert gate_checks.repeats_hold().summary == "840 cells"


def test_on_the_published_model_a_cell_names_its_tolerance_and_cause(tmp_path: Path) -> None:
    """The A100's boost clock is 1410 MHz, the fixture runs at 1500."""
    published = collect(make(tmp_path / "a", lambda number: 50.0 + number).folder).published
    fixture = make(
        tmp_path / "b", lambda step: published.cell(min(step, 16), "a100", "seq4096").value - (step == 7) * 2.5,
        gpu="NVIDIA A100-SXM4-80GB", configs_of="a100", lengths=[4096],
    )  # fmt: skip
    outcome = gate_checks.published_hold(collect(fixture.folder))
    (line,) = (one for one in outcome.details if "iteration 7, seq4096" in one)
    assert "expected 80.3 % of FA2 within 2 points, found 77." in line
    assert "; probably another clock: 1500 MHz instead of 1410 MHz" in line


def test_a_published_figure_is_known_by_its_configuration_the_boost_clock_and_fa2() -> None:
    ladder = collect()
    row = next(one for one in ladder.rows(ladder.machines[0], "fp16", "a100") if one.iteration.number == 7)
    known = gate_published._published_known(ladder, row, ladder.published.cell(7, "a100", "seq4096"))
    assert known == Known(
        config="(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
        clock_mhz=1410.0,
        fa2_tflops=ladder.published.fa2_tflops["a100", "seq4096"],
    )
    assert None not in (known.clock_mhz, known.fa2_tflops)


def test_every_gpu_with_results_is_ranked_also_one_that_was_only_swept() -> None:
    ladder = collect()
    told = gate_checks.published_hold(ladder, RESULTS)
    assert told.status == "ok"
    assert [part.partition(":")[0] for part in told.summary.split("; ")] == ["h200", "h100"]
    (swept,) = gate_published.swept(ladder, RESULTS)
    assert (swept.name, len(swept.measured), swept.refused) == ("h100", 44, ())


def test_a_rank_order_that_is_turned_around_names_the_farthest(tmp_path: Path) -> None:
    fixture = make(tmp_path / "results", lambda number: 120.0 - number, configs_of="h200", lengths=[4096])
    outcome = gate_checks.published_hold(collect(fixture.folder))
    (line,) = outcome.details
    assert "Spearman -0.9" in line
    assert "farthest in rank iteration 1: 16 instead of 1" in line
    assert line.endswith("probably another card: a NVIDIA H200 and no a100")
    assert rule12.farthest({1: 1.0, 2: 2.0}, (5.0, 6.0)) == "all ranks alike"


def test_own_results_are_compared_with_the_committed_ones_of_the_model(tmp_path: Path) -> None:
    """What `nox -s reproduce` does on an H200; a GPU without committed results is skipped."""
    own = load_as(BENCH, BenchResult)
    write_result(tmp_path / "h200" / "bench.json.gz", slower(own, 2.5))
    outcome = gate_published.beside_committed(tmp_path)
    assert outcome.status == "failed"
    assert outcome.summary == f"{len(own.summaries) + len(own.means)} cells"
    assert {line.split(", beside ")[1].partition(":")[0] for line in outcome.details} == {"results/h200/bench.json.gz"}
    assert not any("seq512" in line for line in outcome.details), "3 points there"
    (tmp_path / "h200").rename(tmp_path / "a100")
    assert gate_published.beside_committed(tmp_path).status == "skipped"
