"""Ratios, intervals, floors and verdicts on samples whose answer is known, and intervals as tables print them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flashladder.errors import FlashladderError
from flashladder.paths import RESULTS
from flashladder.report.data import other_runs
from flashladder.results import statistics
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult
from flashladder.results.statistics import LogSummary, floor_of, harmonic_mean, harmonic_summary, stated, summarize
from tests.data_files import table_of


def noisy(center: float, spread: float, n: int = 40, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(center, spread, n)


@pytest.mark.parametrize(
    ("reference", "kernel"), [([0.0], [1.0]), ([1.0], [0.0]), ([1.0], [math.inf]), ([math.nan], [1.0])]
)
def test_times_that_mean_nothing_are_refused(reference: list[float], kernel: list[float]) -> None:
    with pytest.raises(FlashladderError, match="a time is not a finite positive number: found smallest"):
        statistics.log_ratios(reference, kernel)


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(200):
        found = summarize(noisy(0.05, 0.02, n=24, seed=seed))
        covered += found.low <= 0.05 <= found.high
    assert 175 <= covered <= 200  # 95 % of 200 is 190


@pytest.mark.parametrize(("low", "high", "enough", "expected"), table_of("null/results/statistics", "verdicts"))
def test_verdicts(low: float, high: float, enough: int, expected: str) -> None:
    assert statistics.verdict(LogSummary((low + high) / 2, low, high, 24), floor=0.01, enough=enough) == expected


def test_the_floor_is_the_farthest_end_of_any_interval() -> None:
    assert floor_of([LogSummary(0, -0.003, 0.001, 20), LogSummary(0, -0.001, 0.002, 20)]) == 0.003


def test_the_harmonic_mean_lies_in_its_interval() -> None:
    assert harmonic_mean([1.0, 0.5]) == pytest.approx(2 / 3)
    series = [(noisy(math.log(ratio), 0.01, seed=i), None) for i, ratio in enumerate((0.9, 1.0, 1.1))]
    found = harmonic_summary(series)
    assert statistics.percent(found.median) == pytest.approx(100 * harmonic_mean([0.9, 1.0, 1.1]), abs=0.5)
    assert found.low < found.median < found.high
    assert found.n == 120


@pytest.mark.parametrize(("a", "b", "rho"), table_of("null/results/statistics", "correlations"))
def test_spearmans_correlation(a: list[float], b: list[float], rho: float) -> None:
    assert statistics.spearman(a, b) == pytest.approx(rho)


BENCH = RESULTS / "h200" / "bench.json.gz"


@pytest.mark.parametrize(
    ("others", "low", "high"), [([], 0.013, 0.028), ([0.01], 0.004, 0.028), ([0.01, 0.03], 0.004, 0.036)]
)
def test_an_interval_holds_samples_floor_and_other_runs(others: list[float], low: float, high: float) -> None:
    samples = LogSummary(0.02, 0.019, 0.022, 24)
    found = statistics.widened(samples, 0.006, others)
    assert [found.low, found.high] == pytest.approx([low, high])
    assert (found.median, found.n) == (samples.median, samples.n)


def test_stated_cells_hold_the_floor_and_what_other_files_measured() -> None:
    own, others = load_as(BENCH, BenchResult), other_runs(BENCH)
    assert [one.settings.pairs for one in others] == [24] * 7, (
        "further steps, Hopper thrice, second card, sweep, bundle"
    )
    told = stated(own, others)
    seen = [{(one.kernel, one.dtype, one.shape): one.pct for one in run.summaries} for run in others]
    held = 0
    for before, after in zip(own.summaries, told.summaries, strict=True):
        floor = 1 + own.floors_pct[before.dtype] / 100
        assert after.pct == before.pct
        assert after.pct_low <= before.pct_low / floor * (1 + 1e-12)
        assert after.pct_high >= before.pct_high * floor * (1 - 1e-12)
        for run in seen:
            if other := run.get((before.kernel, before.dtype, before.shape)):
                assert after.pct_low <= other <= after.pct_high
                held += 1
    assert held > 2 * len(own.summaries)
    assert told.groups == own.groups
    floor = math.log1p(own.floors_pct["fp16"] / 100)
    for before_mean, after_mean in zip(own.means, told.means, strict=True):
        assert math.log(after_mean.pct_high / before_mean.pct) >= floor * 0.9


def test_another_run_on_the_other_side_makes_a_verdict_ambiguous() -> None:
    whole = load_as(BENCH, BenchResult)
    cell = next(one for one in whole.summaries if one.verdict == "faster")
    own = whole.model_copy(update={"summaries": (cell,), "means": ()})
    slow = own.model_copy(update={"summaries": (cell.model_copy(update={"pct": 99.0, "pct_low": 98.0}),)})
    (printed,) = stated(own, [slow]).summaries
    assert (printed.verdict, printed.pct_low < 99.0) == ("ambiguous", True)
    kernels = {name: one.model_copy(update={"text_sha256": "0" * 64}) for name, one in own.kernels.items()}
    (printed,) = stated(own, [slow.model_copy(update={"kernels": kernels})]).summaries
    assert printed.verdict == "faster", "of other machine code"
    same = own.model_copy(update={"summaries": (cell.model_copy(update={"verdict": "same"}),)})
    assert stated(same, [slow]).summaries[0].verdict == "ambiguous"
    floor = own.floors_pct[cell.dtype]
    within = {"verdict": "same", "pct": 100.0, "pct_low": 100 / (1 + floor / 100), "pct_high": 100 + floor}
    same = own.model_copy(update={"summaries": (cell.model_copy(update=within),)})
    assert stated(same).summaries[0].verdict == "same", "samples within the floor are, and the floor comes on top"


def test_clusters_widen_the_interval_when_processes_disagree() -> None:
    values = np.concatenate([noisy(0.00, 0.001, 20, 1), noisy(0.05, 0.001, 20, 2), noisy(0.10, 0.001, 20, 3)])
    clusters = [0] * 20 + [1] * 20 + [2] * 20
    alone, clustered = summarize(values), summarize(values, clusters)
    assert clustered.median == alone.median
    assert clustered.high - clustered.low > alone.high - alone.low
    assert clustered.low == pytest.approx(0.0, abs=0.005)
    assert clustered.high == pytest.approx(0.10, abs=0.005)
