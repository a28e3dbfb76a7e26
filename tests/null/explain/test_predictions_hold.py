"""Every committed prediction holds together: what it says follows from what else it says, the locks and the rates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flashladder.explain.predict import D_HEAD, ELEMENT, TENSORS, Resource, anchor_of, binding
from flashladder.explain.simulate import SCHEDULERS, chip_of
from flashladder.explain.validation import Predicted, load_predictions
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import Gpu, load_gpus
from flashladder.ladder.iteration import load_iteration
from flashladder.lock.command import locked_kernel
from flashladder.lock.schema import LockedKernel

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
