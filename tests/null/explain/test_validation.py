"""The committed predictions: near enough to what was measured, consistent, of the locked machine code, rendered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import re

import pytest

from analysis import explain_validation
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.explain.predict import D_HEAD, ELEMENT, TENSORS, Resource, anchor_of, binding
from flashladder.explain.simulate import SCHEDULERS, chip_of
from flashladder.explain.validation import NAME, Predicted, compare, compare_tuned, known, load_predictions, worth
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import Gpu, load_gpus
from flashladder.ladder.iteration import load_iteration
from flashladder.lock.command import locked_kernel
from flashladder.lock.schema import LockedKernel
from flashladder.paths import RESULTS

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


def test_what_binds_is_named() -> None:
    names = {gpu: {one.iteration: one.binding for one in kernels} for gpu, kernels in PREDICTIONS.gpus.items()}
    for gpu in ("h200", "h100", "a100"):
        assert names[gpu][1] == "shared memory"  # bank conflicts
        assert names[gpu][2] == "latency (copies)"  # lazy loads
        assert names[gpu][7] == "shared memory"
        assert names[gpu][16] == "issue slots"  # mma and what stands between them
    assert [names["rtx3090"][number] for number in (1, 2, 7, 16)] == ["shared memory", "tensor", "tensor", "tensor"]


def test_a_4090_has_no_percentage_of_an_fa2_that_nobody_timed() -> None:
    assert {one.percent_of_fa2 for one in PREDICTIONS.gpus["rtx4090"]} == {None}
    assert compare(PREDICTIONS, "rtx4090") is None
    assert known("rtx4090", PREDICTIONS.gpus["rtx4090"], PREDICTIONS.seq_len)[1] == {}


def test_sweeps_beyond_the_ladder_join_where_they_exist_and_time_the_same_code(tmp_path: Path) -> None:
    kernels = PREDICTIONS.gpus["h200"]
    (tmp_path / "published").symlink_to(RESULTS / "published")
    (tmp_path / "h200").mkdir()
    assert known("h200", kernels, 4096, tmp_path)[1] == {}
    for name in ("beyond.json.gz", "bench_16.json.gz"):
        joined = tmp_path / "h200" / name
        joined.write_bytes((RESULTS / "h200" / "h200.json.gz").read_bytes())
        what, found = known("h200", kernels, 4096, tmp_path)
        assert what == "measured"
        assert set(NUMBERS) <= set(found)
        assert found[16] == pytest.approx(108.6, abs=0.1)
        other = tuple(one.model_copy(update={"text_sha256": "0" * 64}) for one in kernels)
        assert known("h200", other, 4096, tmp_path)[1] == {}
        joined.unlink()


def test_what_a_step_is_worth_is_told_against_the_one_before_it() -> None:
    for gpu in ("a100", "rtx3090", "rtx4090"):
        by_number = {one.iteration: one for one in PREDICTIONS.gpus[gpu]}
        assert worth(PREDICTIONS, gpu, by_number[1]) is None
        told = worth(PREDICTIONS, gpu, by_number[17])
        assert told is not None
        assert told[0] == 16
        ratio = by_number[17].percent_of_peak / by_number[16].percent_of_peak
        assert told[1] == pytest.approx(100 * ratio - 100, abs=0.01)
    text = (RESULTS / "report" / "explain.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| 17 over 16 "))
    assert len(re.findall(r"[+-]\d+\.\d %", row)) == 3
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
    with pytest.raises(FlashladderError, match="explain_validation"):
        load_predictions(path)
    with pytest.raises(FlashladderError, match="no predictions"):
        load_predictions(tmp_path / NAME)


PREDICTIONS = load_predictions()
GPUS = sorted(PREDICTIONS.gpus)
CONFIGS_OF = {"a100": "a100", "rtx3090": "rtx3090", "rtx4090": "rtx3090", "h100": "h200", "h200": "h200"}


def kernels(key: str) -> Iterator[tuple[Predicted, KernelConfig, LockedKernel]]:
    """Each prediction of a GPU with the configuration that the GPU runs and what the lock holds of it."""
    for one in PREDICTIONS.gpus[key]:
        config = load_iteration(one.iteration).configs[CONFIGS_OF[key]]
        assert one.config == config.short_form()
        kernel = locked_kernel(one.iteration, config, load_gpus()[key].arch)
        assert kernel is not None
        assert one.text_sha256 == kernel.text_sha256
        yield one, config, kernel


def speeds(gpu: Gpu, one: Predicted) -> tuple[float | None, float]:
    """Percent of FA2 and TFLOP/s by FLOP per clock: of FA2's own, and at the boost clock where nobody timed FA2."""
    anchor = anchor_of(gpu, PREDICTIONS.seq_len)
    if anchor is not None:
        share = one.flop_per_clock / anchor.flop_per_clock
        return 100 * share, anchor.tflops * share
    return None, one.flop_per_clock * gpu.peaks["sms"].value * gpu.peaks["boost_clock"].value * 1e-6


@pytest.mark.parametrize("key", GPUS)
def test_speeds_follow_from_clocks_and_the_anchor(key: str) -> None:
    gpu = load_gpus()[key]
    assert gpu.configs_of == CONFIGS_OF[key]
    for one, config, _ in kernels(key):
        blocks = PREDICTIONS.seq_len // config.B_c
        clocks = (blocks * one.clocks * one.ctas + one.overhead) * one.waves
        flop = 4 * config.B_r * config.B_c * D_HEAD * one.ctas * blocks / clocks
        assert one.flop_per_clock == pytest.approx(flop, rel=1e-4), one.iteration
        percent, tflops = speeds(gpu, one)
        assert one.percent_of_fa2 == (percent if percent is None else pytest.approx(percent, abs=2e-3))
        assert one.tflops == pytest.approx(tflops, rel=1e-4)
        peak = 100 * one.flop_per_clock / gpu.peaks["fp16_tensor_rate"].value
        assert one.percent_of_peak == pytest.approx(peak, abs=2e-3)


@pytest.mark.parametrize("key", GPUS)
def test_what_binds_follows_from_resources_and_waits(key: str) -> None:
    for one, _, _ in kernels(key):
        found = [Resource(name, 0.0, "", clocks) for name, clocks in one.resources.items()]
        idle = dict(sorted(one.idle.items(), key=lambda item: -item[1]))
        assert binding(found, one.clocks, idle) == one.binding, one.iteration


@pytest.mark.parametrize("key", GPUS)
def test_resources_are_the_locked_loops_times_the_rates(key: str) -> None:
    gpu = load_gpus()[key]
    chip = chip_of(gpu)
    for one, config, kernel in kernels(key):
        share, loop = config.n_threads / 32 / SCHEDULERS, kernel.main_loop
        issued = loop["total"] - loop["HMMA"] + loop["HMMA"] * chip.mma_issue
        dram = TENSORS * D_HEAD * ELEMENT * config.B_r * config.B_c / PREDICTIONS.seq_len
        wanted = {"tensor": loop["HMMA"] * share * chip.mma, "DRAM": dram / chip.dram}
        whole = {"MUFU": loop["MUFU"] * share * chip.mufu, "issue slots": issued * share}
        if "VOTE" in loop:  # what stands behind a vote is in the loop, and taken to be left out
            assert all(0.7 * clocks < one.resources[name] < clocks for name, clocks in whole.items()), one.iteration
        else:
            wanted |= whole
        assert {name: one.resources[name] for name in wanted} == pytest.approx(wanted, abs=2e-3), one.iteration
        shared = kernel.dynamic_smem + kernel.static_smem
        held = gpu.occupancy(registers=kernel.registers, threads=config.n_threads, shared_bytes=shared)
        assert one.ctas == held.ctas
