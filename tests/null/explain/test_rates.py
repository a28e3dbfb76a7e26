"""Rates of configs/gpus/: the model's are all there, and those said to be measured follow from the measured spans."""

from __future__ import annotations

from collections.abc import Iterator
import gzip
import json
import statistics
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.explain.simulate import SCHEDULERS, chip_of
from flashladder.ladder.gpus import Gpu, load_gpus
from flashladder.paths import RESULTS

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
