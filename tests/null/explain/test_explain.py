"""The model of one SM: its simulation, and its predictions beside measurements."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
import gzip
import json
from pathlib import Path
import statistics

import pytest

from analysis import explain_validation
from analysis.explain_validation import compare, compare_tuned
from flashladder.errors import CheckFailed
from flashladder.explain.predict import D_HEAD, NAME, anchor_of, known, load_predictions, worth
from flashladder.explain.simulate import ASSUMED, PIPES, SCHEDULERS, Step, chip_of, simulate
from flashladder.ladder.gpus import Gpu, load_gpus
from flashladder.ladder.iteration import load_iteration
from flashladder.lock.command import locked_kernel
from flashladder.paths import RESULTS
from tests.typed import error_line

CHIP = chip_of(load_gpus()["h200"])
FMA = Step("plain", PIPES.index("fma"), CHIP.holds["fma"], 1.0, 1, (), None, None)
MUFU = Step("plain", PIPES.index("mufu"), CHIP.holds["mufu"], 1.0, 1, (), None, None)
MMA = Step("mma", PIPES.index("mma"), CHIP.holds["mma"], CHIP.mma_issue, 1, (), None, None, latency=CHIP.latency["mma"])
LDSM = Step("shared", None, 0, 1.0, 1, (), None, None, CHIP.latency["shared"], 4.0, 4.0 * CHIP.shared_return)
BARRIER = Step("barrier", None, 0, 1.0, 1, (), None, None)


def clocks(*steps: Step, ctas: int = 2, warps: int = 4) -> float:
    return simulate(steps, CHIP, ctas=ctas, warps=warps).clocks


@pytest.mark.parametrize(
    ("steps", "ctas", "expected"),
    [
        ([MUFU] * 20, 2, 20 * CHIP.holds["mufu"] * 2),  # two warps on a scheduler
        ([FMA] * 40, 2, 40 * 2),
        ([MMA] * 20, 2, 20 * CHIP.holds["mma"] * 2),
        ([MMA, FMA, FMA, FMA, FMA] * 10, 2, 10 * (CHIP.mma_issue + 4) * 2),  # an mma keeps its scheduler from others
        ([LDSM] * 10, 2, 10 * 4 * 8),  # wavefronts of eight warps: shared memory is one pipe for all schedulers
        ([replace(MMA, after=(8, 9, 10, 11), makes=(8, 9, 10, 11))] * 10, 1, 10 * CHIP.latency["mma"]),  # a chain
    ],
)
def test_warps_take_the_rate_of_a_pipe_that_they_fill(steps: list[Step], ctas: int, expected: float) -> None:
    assert clocks(*steps, ctas=ctas) == pytest.approx(expected, rel=0.02)


def test_a_warp_waits_for_its_own_result_and_not_for_another_warps() -> None:
    load = replace(LDSM, written=0)
    use = replace(FMA, waits=(0,))
    alone = simulate([load, use] * 5, CHIP, ctas=1, warps=1)
    latency = CHIP.latency["shared"] + 3 * CHIP.shared_return
    assert alone.clocks == pytest.approx(5 * latency, rel=0.1)
    assert alone.idle["scoreboard"] > 0.2 * 0.9  # one of four schedulers has a warp
    assert clocks(*[load, use] * 5) < 2 * alone.clocks


def test_a_copy_is_waited_for_only_as_far_as_the_wait_says() -> None:
    copy = Step("copy", None, 0, 1.0, 1, (), None, None, 0.0, ASSUMED.copy_wavefronts, copied=512)
    commit = Step("commit", None, 0, 1.0, 1, (), None, None)
    wait = Step("wait", None, 0, 1.0, 1, (), None, None)
    exposed = simulate([copy, commit, wait], CHIP, ctas=1, warps=4)
    assert exposed.clocks > CHIP.latency["l2"]
    assert exposed.idle["copies"] > 0.9
    one_behind = simulate([copy, commit, replace(wait, left=1)], CHIP, ctas=1, warps=4)
    assert CHIP.latency["l2"] / 2 < one_behind.clocks < exposed.clocks


def test_a_barrier_holds_a_cta_until_its_slowest_warp() -> None:
    assert clocks(*[FMA] * 8, BARRIER) > clocks(*[FMA] * 8)
    assert simulate([BARRIER], CHIP, ctas=1, warps=4).clocks == pytest.approx(CHIP.latency["barrier"], abs=2)


LATENCIES = {
    "mma_latency": "mma.f16", "shared_latency": "ld.shared.b32", "shuffle_latency": "shfl.bfly", "mufu_latency": "ex2",
    "barrier_latency": "bar.sync", "l2_latency": "ld.global.cg.v4",
}  # fmt: skip
MIXED = ("2 fma", "4 fma", "2 mul", "4 iadd", "cvt.f16x2", "shfl.bfly")


@cache
def measured_rates(gpu: str) -> dict[tuple[str, int, int], float]:
    """Instructions of a round's first kind per clock and SM, by round, warps and chains; for one warp, clocks each."""
    document, found = json.loads(gzip.decompress((RESULTS / gpu / "rates.json.gz").read_bytes())), {}
    for run in document["runs"]:
        count = next(iter(run["instructions"].values())) * run["trips"]
        middle = statistics.median(span for repeat in run["spans"] for span in repeat)
        rate = middle / count if run["alone"] else count * run["warps"] / middle
        found[run["round"], run["warps"], run["chains"]] = rate
    return found


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_measured_rates_are_those_of_the_committed_spans(gpu: str) -> None:
    given, found = load_gpus()[gpu], measured_rates(gpu)
    assert given.rate("mma") == pytest.approx(found["mma.f16", 16, 4], abs=0.002)
    others = {mixed: int(mixed[0]) if mixed[0].isdigit() else 1 for mixed in MIXED}
    left = [SCHEDULERS / found[f"mma.f16 + {mixed}", 16, 4] - count for mixed, count in others.items()]
    assert given.rate("mma_issue") == pytest.approx(statistics.mean(left), abs=0.02)  # each other one takes a clock
    for name, round_ in LATENCIES.items():
        assert given.rate(name) == pytest.approx(found[round_, 1, 1], abs=0.6), name
    more = (found["ldmatrix.x4 8-way", 1, 1] - found["ldmatrix.x4", 1, 1]) / 28
    assert given.rate("shared_return") == pytest.approx(more, abs=0.01)
    copied = max(rate for (name, warps, _), rate in found.items() if (name, warps) == ("cp.async.cg 16", 8))
    assert given.rate("l2") == pytest.approx(512 * copied, rel=0.03)


def test_documented_rates_are_those_of_the_guide_by_compute_capability() -> None:
    """CUDA C++ Programming Guide, throughput of native arithmetic instructions: results per clock and SM, over 32."""
    for key, gpu in load_gpus().items():
        results = {"fma": 64 if gpu.arch == "sm_80" else 128, "imad": 64, "alu": 64, "mufu": 16}
        assert {name: 32 * gpu.rate(name) for name in results} == results, key
        assert (gpu.rate("shared"), gpu.rate("issue")) == (1, SCHEDULERS), key


def test_a_gpu_without_a_rate_is_one_line() -> None:
    lacking = Gpu.model_validate({**load_gpus()["a100"].model_dump(), "rates": {}})
    assert "expected mma" in error_line(chip_of, lacking)


PREDICTIONS = load_predictions()
NUMBERS = list(range(1, 17))


@pytest.mark.parametrize(
    ("gpu", "order", "error"), [("h200", 0.85, 10), ("h100", 0.85, 10), ("a100", 0.8, 10), ("rtx3090", -1, 3)]
)
def test_the_order_and_the_size_of_the_steps_are_predicted(gpu: str, order: float, error: float) -> None:
    found = compare(PREDICTIONS, gpu)
    assert found is not None
    assert set(NUMBERS) <= set(found.pairs)
    assert found.spearman >= order  # the steps hardly differ on a 3090
    assert found.median_error <= error


def test_kernels_of_other_tiles_are_predicted_too() -> None:
    found = compare_tuned(PREDICTIONS, "h200")
    assert len(found.pairs) >= 30
    assert found.spearman >= 0.75
    assert found.median_error <= 10


def test_a_4090_is_compared_with_nothing_as_nobody_timed_fa2_there() -> None:
    assert compare(PREDICTIONS, "rtx4090") is None
    assert known(load_gpus()["rtx4090"], PREDICTIONS.gpus["rtx4090"], PREDICTIONS.seq_len)[1] == {}


def test_sweeps_beyond_the_ladder_join_where_they_exist_and_time_the_same_code(tmp_path: Path) -> None:
    gpu, kernels = load_gpus()["h200"], PREDICTIONS.gpus["h200"]
    (tmp_path / "published").symlink_to(RESULTS / "published")
    (tmp_path / "h200").mkdir()
    assert known(gpu, kernels, 4096, tmp_path)[1] == {}
    for name in ("beyond.json.gz", "bench_16.json.gz"):
        joined = tmp_path / "h200" / name
        joined.symlink_to(RESULTS / "h200" / "h200.json.gz")
        what, found = known(gpu, kernels, 4096, tmp_path)
        assert what == "measured"
        assert found[16] == pytest.approx(108.6, abs=0.1)
        assert set(NUMBERS) <= set(found)
        other = tuple(one.model_copy(update={"text_sha256": "0" * 64}) for one in kernels)
        assert known(gpu, other, 4096, tmp_path)[1] == {}
        joined.unlink()


def test_what_a_step_is_worth_is_told_against_the_one_before_it() -> None:
    by_number = {one.iteration: one for one in PREDICTIONS.gpus["a100"]}
    assert worth(PREDICTIONS, "a100", by_number[1]) is None
    ratio = by_number[17].percent_of_peak / by_number[16].percent_of_peak
    assert worth(PREDICTIONS, "a100", by_number[17]) == pytest.approx((16, 100 * ratio - 100), abs=0.01)
    assert worth(PREDICTIONS, "nowhere", PREDICTIONS.gpus["a100"][1]) is None


def test_the_table_is_what_the_predictions_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert explain_validation.main(["--check"]) == 0
    monkeypatch.setattr(explain_validation, "REPORT", tmp_path)
    with pytest.raises((CheckFailed, SystemExit)):
        explain_validation.main(["--check"])


@pytest.mark.parametrize("text", ["", "{}", '{"schema_version": 1, "seq_len": "x", "gpus": {}}'])
def test_predictions_that_are_none_are_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    path.write_text(text, encoding="utf-8")
    assert "explain_validation" in error_line(load_predictions, path)
    assert "no predictions" in error_line(load_predictions, tmp_path / NAME)


@pytest.mark.parametrize("key", sorted(PREDICTIONS.gpus))
def test_speeds_follow_from_clocks_and_the_anchor_and_the_code_is_locked(key: str) -> None:
    gpu = load_gpus()[key]
    anchor = anchor_of(gpu, PREDICTIONS.seq_len)
    for one in PREDICTIONS.gpus[key]:
        config = load_iteration(one.iteration).configs[gpu.configs_of]
        kernel = locked_kernel(one.iteration, config, gpu.arch)
        assert kernel is not None
        assert (one.config, one.text_sha256) == (config.short_form(), kernel.text_sha256)
        blocks = PREDICTIONS.seq_len // config.B_c
        clocks = (blocks * one.clocks * one.ctas + one.overhead) * one.waves
        flop = 4 * config.B_r * config.B_c * D_HEAD * one.ctas * blocks / clocks
        assert one.flop_per_clock == pytest.approx(flop, rel=1e-4), one.iteration
        tflops = one.flop_per_clock * gpu.peaks["sms"].value * gpu.peaks["boost_clock"].value * 1e-6
        if anchor is None:
            assert one.percent_of_fa2 is None
        else:
            share = one.flop_per_clock / anchor.flop_per_clock
            assert one.percent_of_fa2 == pytest.approx(100 * share, abs=2e-3)
            tflops = anchor.tflops * share
        assert one.tflops == pytest.approx(tflops, rel=1e-4)
        peak = 100 * one.flop_per_clock / gpu.peaks["fp16_tensor_rate"].value
        assert one.percent_of_peak == pytest.approx(peak, abs=2e-3)
