"""Successive halving on times from the simulated GPU: the best is found, noise forgives, the budget holds."""

from __future__ import annotations

from collections.abc import Mapping
import math
import random

import pytest

from flashladder.bench.timing import Arm, time_pairs
from flashladder.results.blocks import Plan
from flashladder.sweep.halving import HANDFUL, RUNGS, most_pairs, most_survivors, ranking, survivors, usual_pairs
from tests.null.bench.test_timing_null import FakeGpu

NOISE = 0.007  # log units of one pair, about that of an H200 at S=4096


def climbed(true: Mapping[str, float], seed: int) -> tuple[str, int]:
    """The winner, and the pairs that it cost, by the paired timer on a simulated GPU."""
    gpu, draw = FakeGpu(), random.Random(seed)

    def launch(milliseconds: float) -> None:
        gpu.now += milliseconds * draw.lognormvariate(0, NOISE / math.sqrt(2))

    reference = Arm("R", lambda _: launch(7.0))

    def arm(name: str, ratio: float) -> Arm:
        return Arm(name, lambda _: launch(7.0 / ratio))

    arms = {name: arm(name, ratio) for name, ratio in true.items()}
    values: dict[str, list[float]] = {name: [] for name in true}
    alive, cost = list(true), 0
    for index, n in enumerate(RUNGS):
        plan = Plan(pairs=n, blocks=n, extra_blocks=0, seed=index)
        _, pairs = time_pairs(gpu.hardware(), reference, [arms[name] for name in alive], plan)
        for name, own in pairs.items():
            values[name] += [math.log(pair.reference_us / pair.kernel_us) for pair in own]
        cost += n * len(alive)
        alive = survivors({name: values[name] for name in alive})
    return alive[0], cost


@pytest.mark.parametrize("seed", range(12))
def test_it_finds_the_winner_within_the_budget(seed: int) -> None:
    draw = random.Random(1000 + seed)
    true = {f"c{index}": draw.uniform(0.75, 1.0) for index in range(93)} | {"best": 1.01}
    winner, cost = climbed(true, seed)
    assert winner == "best"
    assert cost <= usual_pairs(94) < most_pairs(94) < 94 * sum(RUNGS)


def test_equals_cost_no_more_than_the_budget() -> None:
    winner, cost = climbed({f"c{index}": 1.0 for index in range(60)}, 3)
    assert winner.startswith("c")
    assert usual_pairs(60) < cost <= most_pairs(60)


def test_a_tie_behind_the_half_goes_on_and_a_hopeless_one_before_it_does_not() -> None:
    close = {f"tie{index}": [0.1 - 0.0005 * index, 0.101 - 0.0005 * index] for index in range(6)}
    far = {f"far{index}": [0.0, 0.001] for index in range(4)}
    kept = survivors(close | far)
    assert kept == [f"tie{index}" for index in range(6)]  # six of ten: more than half
    few = {"fast": [0.1, 0.1], **{f"slow{index}": [0.0, 0.0] for index in range(19)}}
    assert len(survivors(few)) == HANDFUL  # not the ten of the better half
    assert survivors(few, handful=1) == ["fast"]


def test_one_disturbed_pair_of_five_puts_nobody_out() -> None:
    """Its mean lies 0.02 behind the leader's, its median nowhere."""
    values = {f"c{index}": [0.1] * 5 for index in range(12)} | {"hit": [0.1, 0.1, 0.1, 0.1, 0.0]}
    slow = {f"slow{index}": [0.0] * 5 for index in range(7)}
    assert set(survivors(values | slow, handful=1)) == set(values)


def test_nobody_goes_where_nothing_was_learnt() -> None:
    values: dict[str, list[float]] = {"a": [0.1], "b": [], "c": [0.2], "d": [0.0], "e": [-0.1]}
    assert survivors(values) == ["c", "a", "d", "e", "b"] == ranking(values)
    assert survivors({}) == []


def test_the_budget_follows_from_the_rungs() -> None:
    assert most_survivors(94) == 71
    assert most_survivors(4) == most_survivors(5) == 4 == HANDFUL
    assert most_pairs(3) == usual_pairs(3) == 3 * sum(RUNGS)
    assert sum(RUNGS) >= 24
    assert all(pairs % 2 == 0 for pairs in RUNGS)
