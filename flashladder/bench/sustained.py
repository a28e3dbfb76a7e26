"""One subject launched back to back for seconds on end, and the power that the GPU's energy counter tells meanwhile.

Why apart from `flashladder.bench.energy`: here a GPU is a few functions, so that a made-up one can be measured. Batches
of launches are queued ahead of the one that is at work: the driver, which takes milliseconds to answer, is asked while
the GPU works, and leaves no gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
import time

from flashladder.bench.timing import Arm
from flashladder.errors import FlashladderError
from flashladder.results.schema import Sample

BATCH_S = 0.005  # of launches that are counted together
AHEAD = 4  # batches queued behind the one that is at work
PAUSE_S = 0.0005  # between two questions whether a batch is done
WARM_UP_S = 0.5
LOOK_S = 0.2  # between two samples of clock and power
LONGEST = 4.0  # times the seconds asked for: a counter that has not moved by then does not count

Done = Callable[[], bool]


def _pause() -> None:
    time.sleep(PAUSE_S)


@dataclass(frozen=True)
class Meter:
    """What a run needs of a GPU.

    Attributes:
        mark: notes what is queued by now; what it returns tells whether that is done.
        energy_mj: the GPU's energy counter in millijoules; None where it has none.
        sample: a look at its state.
        clock: seconds that only grow.
        pause: lets a little time pass.
    """

    mark: Callable[[], Done]
    energy_mj: Callable[[], int | None]
    sample: Callable[[], Sample]
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[], object] = _pause


@dataclass(frozen=True)
class Run:
    """What a run gave: launches and the seconds that they took, their mean power, samples taken meanwhile."""

    launches: int
    seconds: float
    watts: float
    samples: tuple[Sample, ...]


def sustain(meter: Meter, arm: Arm, at_least_s: float) -> Run:
    """Launches `arm` back to back; power is that between two ticks of the energy counter.

    Raises:
        FlashladderError: the GPU does not tell its energy, or its counter stands still.
    """
    each = _launches_a_batch(meter, arm)
    for _ in _looks(meter, arm, each, WARM_UP_S):
        pass
    ticks: list[tuple[float, int]] = []  # time and energy
    ends: list[tuple[float, int]] = []  # time and launches, as the first batch behind each tick is done
    samples: list[Sample] = []
    last, seen, looked = _energy(meter), 0, 0.0
    for now, done in _looks(meter, arm, each, LONGEST * at_least_s):
        if done > seen and len(ends) < len(ticks):
            ends.append((now, done))
            looked = now
        seen = done
        if len(ends) == 2:
            return _run(ticks, ends, samples)
        if ends and now - looked >= LOOK_S:
            samples.append(meter.sample())
            looked = now
        due = not ticks or (len(ticks) == len(ends) == 1 and now - ends[0][0] >= at_least_s)
        energy = _energy(meter)
        if due and energy != last:
            ticks.append((now, energy))
        last = energy
    raise FlashladderError("the GPU's energy counter stands still", where=arm.key, expected="about ten ticks a second")


def _run(ticks: list[tuple[float, int]], ends: list[tuple[float, int]], samples: list[Sample]) -> Run:
    (from_s, from_mj), (to_s, to_mj) = ticks
    watts = (to_mj - from_mj) / 1e3 / (to_s - from_s)
    return Run(ends[1][1] - ends[0][1], ends[1][0] - ends[0][0], watts, tuple(samples))


def _launches_a_batch(meter: Meter, arm: Arm) -> int:
    """So many launches that they take about `BATCH_S`; the first of all may compile, and does not count."""
    count, took = 1, 0.0
    while count == 1 or took < 4 * BATCH_S:
        count *= 1 if not took else 2
        start = meter.clock()
        for turn in range(count):
            arm.launch(turn)
        done = meter.mark()
        while not done():
            meter.pause()
        took = meter.clock() - start
    return max(1, round(count * BATCH_S / took))


def _looks(meter: Meter, arm: Arm, each: int, most_s: float) -> Iterator[tuple[float, int]]:
    """For `most_s` seconds the time and how many launches are done, with `AHEAD` batches of `each` queued behind."""
    queued: deque[Done] = deque()
    launched = done = 0
    start = now = meter.clock()
    while now - start < most_s:
        while queued and queued[0]():
            queued.popleft()
            done += each
        while len(queued) <= AHEAD:
            for turn in range(launched, launched + each):
                arm.launch(turn)
            launched += each
            queued.append(meter.mark())
        meter.pause()
        now = meter.clock()
        yield now, done


def _energy(meter: Meter) -> int:
    found = meter.energy_mj()
    if found is None:
        raise FlashladderError("this GPU does not tell its energy", expected="nvmlDeviceGetTotalEnergyConsumption")
    return found
