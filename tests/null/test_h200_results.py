"""What the committed H200 results must show: kernels correct, clean, as fast as the published ones, faster than FA2."""

from __future__ import annotations

import csv
from functools import cache

import pytest

from flashladder.files import RESULTS
from flashladder.iteration import load_all
from flashladder.result_schema import BenchResult, CheckResult, SanitizerResult
from flashladder.results import load_result
from flashladder.selection import select_configs

H200 = RESULTS / "h200"
DTYPES = ("fp16", "bf16")
BEST_OF = range(9, 17)


@cache
def bench() -> BenchResult:
    result = load_result(H200 / "bench.json.gz")
    assert isinstance(result, BenchResult)
    return result


def percent(number: int, short_form: str, seq_len: int) -> float:
    (found,) = (
        summary.pct
        for summary in bench().summaries
        if bench().kernels[summary.kernel].iteration == number
        and bench().kernels[summary.kernel].config == short_form
        and summary.shape.seq_len == seq_len
    )
    return found


def test_every_iteration_keeps_up_with_its_published_peer() -> None:
    rows = csv.DictReader(
        (RESULTS / "published" / "peer_h200_progression.csv").read_text(encoding="utf-8").splitlines()
    )
    peer = {int(row["iteration"]): float(row["pct_of_fa2_paired_median"]) for row in rows if row["seq_len"] == "4096"}
    assert sorted(peer) == list(range(1, 17))
    for iteration in load_all():
        ours = percent(iteration.number, iteration.configs["a100"].short_form(), 4096)
        assert ours >= peer[iteration.number] - 3.0, iteration.number


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_best_kernel_beats_fa2(dtype: str) -> None:
    tuned = {it.number: it.configs["h200"].with_dtype(dtype).short_form() for it in load_all() if it.number in BEST_OF}
    assert max(percent(number, short_form, 4096) for number, short_form in tuned.items()) >= 107.0
    means = [
        mean.pct
        for mean in bench().means
        if tuned.get(bench().kernels[mean.kernel].iteration) == bench().kernels[mean.kernel].config
    ]
    assert len(means) == len(BEST_OF)
    assert max(means) >= 106.0


def test_every_configuration_was_checked_at_every_length_and_passed() -> None:
    result = load_result(H200 / "check.json.gz")
    assert isinstance(result, CheckResult)
    assert {case.status for case in result.cases} == {"pass", "not_applicable"}
    checked = {(kernel.iteration, kernel.config) for kernel in result.kernels.values()}
    wanted = {(it.number, config.short_form()) for it in load_all() for config in select_configs(it, "prog")}
    assert checked == wanted
    refused = {result.kernels[case.kernel].iteration for case in result.cases if case.status == "not_applicable"}
    assert refused == {16}  # whose row stride is fixed


def test_the_sanitizers_found_nothing() -> None:
    result = load_result(H200 / "sanitizer.json.gz")
    assert isinstance(result, SanitizerResult)
    assert {(finding.tool, finding.clean, finding.errors) for finding in result.findings} == {
        (tool, True, 0) for tool in ("memcheck", "racecheck", "synccheck", "initcheck")
    }
    assert {kernel.iteration for kernel in result.kernels.values()} == set(range(1, 17))
