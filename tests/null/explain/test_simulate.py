"""The SM of the model on made-up instructions, and the rates of configs/gpus/ that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
import gzip
import json
import statistics
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.explain.simulate import ASSUMED, PIPES, SCHEDULERS, Chip, Step, chip_of, simulate
from flashladder.ladder.gpus import Gpu, load_gpus
from flashladder.paths import RESULTS

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


MEASURED = ("h100", "h200")
LATENCIES = {
    "mma_latency": "mma.f16", "shared_latency": "ld.shared.b32", "shuffle_latency": "shfl.bfly", "mufu_latency": "ex2",
    "barrier_latency": "bar.sync", "l2_latency": "ld.global.cg.v4",
}  # fmt: skip
MIXED = ("2 fma", "4 fma", "2 mul", "4 iadd", "cvt.f16x2", "shfl.bfly")


def runs(gpu: str) -> Iterator[tuple[dict[str, Any], float]]:
    """Each run, with instructions of its first kind per clock and SM; of one alone, clocks per instruction."""
    document = json.loads(gzip.decompress((RESULTS / gpu / "rates.json.gz").read_bytes()))
    for run in document["runs"]:
        count = next(iter(run["instructions"].values())) * run["trips"]
        middle = statistics.median(span for repeat in run["spans"] for span in repeat)
        yield run, middle / count if run["alone"] else count * run["warps"] / middle


def fullest(gpu: str, name: str) -> float:
    """The rate of a round with the most warps."""
    return next(rate for run, rate in runs(gpu) if (run["round"], run["warps"], run["chains"]) == (name, 16, 4))


def alone(gpu: str, name: str) -> float:
    return next(rate for run, rate in runs(gpu) if run["alone"] and run["round"] == name)


def mma_issue(gpu: str) -> float:
    """Clocks that an mma takes from its scheduler: what is left of a mixed round when each other one took one."""
    others = {mixed: int(mixed[0]) if mixed[0].isdigit() else 1 for mixed in MIXED}
    found = [SCHEDULERS / fullest(gpu, f"mma.f16 + {mixed}") - count for mixed, count in others.items()]
    return statistics.mean(found)


@pytest.mark.parametrize("gpu", MEASURED)
def test_measured_rates_are_those_of_the_committed_spans(gpu: str) -> None:
    given = load_gpus()[gpu]
    assert given.rate("mma") == pytest.approx(fullest(gpu, "mma.f16"), abs=0.002)
    assert given.rate("mma_issue") == pytest.approx(mma_issue(gpu), abs=0.02)
    for name, round_ in LATENCIES.items():
        assert given.rate(name) == pytest.approx(alone(gpu, round_), abs=0.6), name
    more = (alone(gpu, "ldmatrix.x4 8-way") - alone(gpu, "ldmatrix.x4")) / 28
    assert given.rate("shared_return") == pytest.approx(more, abs=0.01)
    copied = max(rate for run, rate in runs(gpu) if run["round"] == "cp.async.cg 16" and run["warps"] == 8)
    assert given.rate("l2") == pytest.approx(512 * copied, rel=0.03)


@pytest.mark.parametrize("gpu", MEASURED)
@pytest.mark.parametrize(("name", "rate"), [("fma", "fma"), ("imad", "imad"), ("alu", "lop3"), ("mufu", "ex2")])
def test_the_guide_and_the_chip_agree(gpu: str, name: str, rate: str) -> None:
    assert fullest(gpu, rate) == pytest.approx(load_gpus()[gpu].rate(name), rel=0.06)


def test_documented_rates_are_those_of_the_guide_by_compute_capability() -> None:
    """CUDA C++ Programming Guide, throughput of native arithmetic instructions: results per clock and SM, over 32."""
    for key, gpu in load_gpus().items():
        results = {"fma": 64 if gpu.arch == "sm_80" else 128, "imad": 64, "alu": 64, "mufu": 16}
        assert {name: 32 * gpu.rate(name) for name in results} == results, key
        assert (gpu.rate("shared"), gpu.rate("issue")) == (1, SCHEDULERS), key


def test_a_gpu_without_a_rate_is_one_line() -> None:
    gpu = load_gpus()["a100"]
    lacking = Gpu.model_validate({**gpu.model_dump(), "rates": {}})
    with pytest.raises(FlashladderError, match=r"lacks a rate: a100.yaml|a100.yaml: .*lacks a rate|expected mma"):
        chip_of(lacking)
