"""Happens-before and its bookkeeping, against a plain model that keeps every access and every thread's knowledge."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
import pytest

from ptxemu.observe.clocks import Clocks
from ptxemu.observe.races import Shadow, SharedRaces
from ptxemu.values import Array, BoolArray

WARPS = 2
THREADS = 32 * WARPS


@dataclass
class Model:
    """Happens-before by definition: each thread knows a set of accesses; meeting shares the sets."""

    known: list[set[int]] = field(default_factory=lambda: [set() for _ in range(THREADS)])
    history: list[tuple[str, range]] = field(default_factory=list)  # kind, bytes
    signals: dict[int, set[int]] = field(default_factory=dict)

    def meet(self, threads: list[int], extra: set[int] | None = None) -> None:
        together = set(extra or ()).union(*(self.known[thread] for thread in threads))
        for thread in threads:
            self.known[thread] = set(together)

    def races(self, kind: str, places: dict[int, range]) -> bool:
        """Whether any thread's access to its bytes races with an earlier one."""
        for thread, here in places.items():
            for index, (earlier, there) in enumerate(self.history):
                overlap = here.start < there.stop and there.start < here.stop
                if overlap and not (kind == earlier != "st") and index not in self.known[thread]:
                    return True
        return False

    def record(self, kind: str, places: dict[int, range]) -> None:
        for thread, here in places.items():
            self.known[thread].add(len(self.history))
            self.history.append((kind, here))


def random_lanes(rng: np.random.Generator, *, partial: bool) -> BoolArray:
    """Some warps, or some lanes."""
    if not partial:
        return np.repeat(rng.random((WARPS, 1)) < 0.6, 32, axis=1)
    lanes: BoolArray = rng.random((WARPS, 32)) < rng.choice([0.1, 0.6, 1.0])
    return lanes


def threads_of(lanes: BoolArray) -> list[int]:
    return [int(thread) for thread in np.flatnonzero(lanes)]


def random_access(rng: np.random.Generator) -> tuple[str, Array, int, BoolArray]:
    """(kind, addresses, width, lanes) of a few lanes, or of many."""
    kind, width = str(rng.choice(["ld", "ld", "st", "atom"])), int(rng.choice([1, 2, 4, 8, 16]))
    lanes = rng.random((WARPS, 32)) < rng.choice([0.03, 0.03, 0.1, 1.0])
    # Distinct places for stores: lanes of one instruction that write one byte are a matter of their own.
    slots = rng.permutation(THREADS) if kind == "st" else rng.integers(0, 96 // width, THREADS)
    return kind, (slots * width).reshape(WARPS, 32).astype(np.uint64), width, lanes


def synchronise(rng: np.random.Generator, races: SharedRaces, model: Model, lanes: BoolArray) -> None:
    """One random meeting, for both."""
    event, number, threads = rng.integers(0, 4), int(rng.integers(0, 2)), threads_of(lanes)
    if event == 0:
        races.clocks.join(lanes, number)
        model.meet(threads, model.signals.pop(number, None))
    elif event == 1:
        races.clocks.signal(lanes, number)
        model.signals.setdefault(number, set()).update(*(model.known[thread] for thread in threads))
    else:
        races.clocks.join_warps(lanes)
        for warp in range(WARPS):
            model.meet([thread for thread in threads if thread // 32 == warp])


def compared(seed: int, *, partial: bool) -> list[tuple[bool, bool]]:
    """What detector and model say of each access of a random program from which the racing ones are left out."""
    rng = np.random.default_rng(seed)
    races, model = SharedRaces(np.ones((WARPS, 32), dtype=np.bool_)), Model()
    verdicts = []
    for _ in range(60):
        if rng.random() < 0.3:
            lanes = random_lanes(rng, partial=partial)
            if lanes.any():
                synchronise(rng, races, model, lanes)
            continue
        kind, address, width, lanes = random_access(rng)
        places = {t: range(int(address.flat[t]), int(address.flat[t]) + width) for t in threads_of(lanes)}
        attempt = copy.deepcopy(races)
        verdicts.append((bool(attempt.access(kind, address, width, lanes, 0)), model.races(kind, places)))
        if not any(verdicts[-1]):
            model.record(kind, places)
            races = attempt
    assert races.clocks.per_warp is not partial
    return verdicts


@pytest.mark.parametrize("seed", range(0, 120, 10))
def test_whole_warps_are_judged_exactly(seed: int) -> None:
    verdicts = [verdict for each in range(seed, seed + 10) for verdict in compared(each, partial=False)]
    assert {reported == expected for reported, expected in verdicts} == {True}
    assert {expected for _, expected in verdicts} == {True, False}


def test_parts_of_warps_never_hide_a_race() -> None:
    verdicts = [verdict for seed in range(60) for verdict in compared(seed, partial=True)]
    assert all(reported or not expected for reported, expected in verdicts)
    more = sum(reported and not expected for reported, expected in verdicts)
    assert more < 0.02 * len(verdicts)  # changing subsets of a warp's lanes: see `races`


def test_clocks_switch_to_threads_without_changing_what_is_known() -> None:
    exists = np.arange(64).reshape(2, 32) < 50
    clocks, threads = Clocks(exists), Clocks(exists)
    threads._split()
    for lanes in (exists, exists & (np.arange(2) == 1)[:, None]):
        for each in (clocks, threads):
            each.now = 7
            each.join(lanes)
            each.now = 9
            each.join_warps(None)
    assert clocks.per_warp
    assert not threads.per_warp
    everyone = np.arange(50)
    mine, others = np.repeat(everyone, 50), np.tile(everyone, 50)
    for time in (6, 7, 8, 9, 10):
        times = np.full(2500, time)
        assert (clocks.ordered(mine, others, times) == threads.ordered(mine, others, times)).all()
    assert (clocks.horizon(everyone) == threads.horizon(everyone)).all()


def test_shadow_units_shrink_and_grow_without_losing_anything() -> None:
    shadow = Shadow()
    shadow.add("writer", -1)
    shadow.add("table", 0, columns=3)
    shadow.reserve(4)
    shadow["writer"][2] = 5
    shadow["table"][2, 1] = 6
    shadow.fit(np.array([16, 36]), 8)
    assert (shadow.unit, shadow.units) == (4, 16)
    assert shadow["writer"].tolist() == [-1] * 8 + [5] * 4 + [-1] * 4
    assert shadow["table"][8:12, 1].tolist() == [6] * 4
    shadow.reserve(17)
    assert shadow.units == 32
    assert shadow["writer"][16:].tolist() == [-1] * 16
    shadow.fit(np.array([0]), 16)
    assert shadow.unit == 4
    units, threads = shadow.spread(np.array([0, 32]), 8, np.array([3, 4]))
    assert (units.tolist(), threads.tolist()) == ([0, 1, 8, 9], [3, 3, 4, 4])
