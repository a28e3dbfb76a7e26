"""The SM of the model on made-up instructions: rates, latencies, what waits for what, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashladder.errors import FlashladderError
from flashladder.explain.simulate import ASSUMED, PIPES, Chip, Step, chip_of, simulate
from flashladder.ladder.gpus import load_gpus

CHIP: Chip = chip_of(load_gpus()["h200"])
FMA = Step("FFMA", "plain", PIPES.index("fma"), CHIP.fma, 1.0, 1, (), None, None)
MUFU = Step("MUFU", "plain", PIPES.index("mufu"), CHIP.mufu, 1.0, 1, (), None, None)
MMA = Step("HMMA", "mma", PIPES.index("mma"), CHIP.mma, CHIP.mma_issue, 1, (), None, None, latency=CHIP.mma_latency)
LDSM = Step("LDSM", "shared", None, 0, 1.0, 1, (), None, None, CHIP.shared_latency, 4.0, 4.0 * CHIP.shared_return)
BARRIER = Step("BAR", "barrier", None, 0, 1.0, 1, (), None, None)


def clocks(*steps: Step, ctas: int = 2, warps: int = 4) -> float:
    return simulate(steps, CHIP, ctas=ctas, warps=warps).clocks


def test_warps_that_fill_a_pipe_take_its_rate() -> None:
    assert clocks(*[MUFU] * 20) == pytest.approx(20 * CHIP.mufu * 2, rel=0.02)  # two warps on a scheduler
    assert clocks(*[FMA] * 40) == pytest.approx(40 * 2, rel=0.02)
    assert clocks(*[MMA] * 20) == pytest.approx(20 * CHIP.mma * 2, rel=0.02)


def test_shared_memory_is_one_pipe_for_all_schedulers() -> None:
    assert clocks(*[LDSM] * 10) == pytest.approx(10 * 4 * 8, rel=0.02)  # wavefronts of eight warps
    assert clocks(*[replace(LDSM, wavefronts=32.0)] * 10) == pytest.approx(10 * 32 * 8, rel=0.02)


def test_an_mma_keeps_its_scheduler_from_other_instructions() -> None:
    mixed = clocks(*[MMA, FMA, FMA, FMA, FMA] * 10)
    assert mixed == pytest.approx(10 * (CHIP.mma_issue + 4) * 2, rel=0.02)
    assert mixed > clocks(*[MMA] * 10)


def test_a_warp_waits_for_its_own_result_and_not_for_another_warps() -> None:
    load = replace(LDSM, written=0)
    use = replace(FMA, waits=(0,))
    alone = simulate([load, use] * 5, CHIP, ctas=1, warps=1)
    latency = CHIP.shared_latency + 3 * CHIP.shared_return
    assert alone.clocks == pytest.approx(5 * latency, rel=0.1)
    assert alone.idle["scoreboard"] > 0.2 * 0.9  # one of four schedulers has a warp
    assert clocks(*[load, use] * 5) < 2 * alone.clocks


def test_mma_in_a_chain_take_their_latency() -> None:
    chained = replace(MMA, after=(8, 9, 10, 11), makes=(8, 9, 10, 11))
    assert clocks(*[chained] * 10, ctas=1) == pytest.approx(10 * CHIP.mma_latency, rel=0.02)


def test_a_copy_is_waited_for_only_as_far_as_the_wait_says() -> None:
    copy = Step("LDGSTS", "copy", None, 0, 1.0, 1, (), None, None, 0.0, ASSUMED.copy_wavefronts, copied=512)
    commit = Step("LDGDEPBAR", "commit", None, 0, 1.0, 1, (), None, None)
    wait = Step("DEPBAR", "wait", None, 0, 1.0, 1, (), None, None)
    exposed = simulate([copy, commit, wait], CHIP, ctas=1, warps=4)
    assert exposed.clocks > CHIP.l2_latency
    assert exposed.idle["copies"] > 0.9
    one_behind = simulate([copy, commit, replace(wait, left=1)], CHIP, ctas=1, warps=4)
    assert CHIP.l2_latency / 2 < one_behind.clocks < exposed.clocks


def test_a_barrier_holds_a_cta_until_its_slowest_warp() -> None:
    assert clocks(*[FMA] * 8, BARRIER) > clocks(*[FMA] * 8)
    assert simulate([BARRIER], CHIP, ctas=1, warps=4).clocks == pytest.approx(CHIP.barrier_latency, abs=2)


def test_warps_that_wait_for_ever_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashladder.explain.simulate._Sm._arrive", lambda self, warp, now, latency: _hold(warp))
    with pytest.raises(FlashladderError, match="the warps wait for each other"):
        simulate([BARRIER], CHIP, ctas=1, warps=4)


def _hold(warp: object) -> None:
    warp.held = True  # type: ignore[attr-defined]  # the model's own class is private
