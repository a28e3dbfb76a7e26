"""One SM that runs warps: four schedulers that issue in order, their pipes, shared memory, copies, CTA barriers.

Why a simulation and not a formula: two warps share a scheduler, and whether one waits while the other multiplies is
what the ladder's second half is about. Each scheduler issues one instruction per clock, of the warp that it issued last
as long as it can, else of the next one (greedy). A warp's next instruction starts when its stall has passed, its
scoreboards are clear, the mma that it depends on are done, and its pipe is free. All warps run the same steps, over and
over; what is counted is how many rounds they make, once they have begun to run apart.

Try ``simulate(steps, chip, ctas=2, warps=4).clocks``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
import heapq
import math

from flashladder.errors import FlashladderError
from flashladder.explain.chip import ASSUMED, SCHEDULERS, Chip
from flashladder.explain.steps import PIPES, Step
from flashladder.machine_code.sass import N_BARRIERS

REGISTERS = 256
GROUPS = 8  # of copies that are remembered; no kernel has more in flight


@dataclass(frozen=True)
class Rounds:
    """What came out.

    Attributes:
        clocks: for one round of every warp.
        idle: why a scheduler issued nothing, as shares of its clocks, by what its first warp to go on waited for.
    """

    clocks: float
    idle: dict[str, float]


@dataclass
class _Warp:
    """A warp: where it is, and when what it waits for is there."""

    cta: int
    scheduler: int
    ready: float
    at: int = 0
    rounds: int = 0
    held: bool = False
    boards: list[float] = field(default_factory=lambda: [0.0] * N_BARRIERS)
    made: list[float] = field(default_factory=lambda: [0.0] * REGISTERS)
    copied: float = 0.0
    groups: deque[float] = field(default_factory=lambda: deque(maxlen=GROUPS))


@dataclass
class _Scheduler:
    """A quarter of the SM: its warps, when its pipes are free, and what it has waiting for shared memory."""

    warps: list[_Warp] = field(default_factory=list)
    pipes: list[float] = field(default_factory=lambda: [0.0] * len(PIPES))
    waiting: deque[float] = field(default_factory=deque)
    way_back: float = 0.0
    last: _Warp | None = None
    wakes: float = 0.0


class _Sm:
    """The SM while it runs."""

    def __init__(self, steps: Sequence[Step], chip: Chip, ctas: int, warps: int, apart: float) -> None:
        self.steps, self.chip = steps, chip
        self.schedulers = [_Scheduler() for _ in range(SCHEDULERS)]
        self.warps_per_cta, self.rounds = warps, 0
        self.arrived: list[list[_Warp]] = [[] for _ in range(ctas)]
        self.shared = self.l2 = 0.0
        self.idle: defaultdict[str, float] = defaultdict(float)
        self.queue = [(0.0, place) for place in range(SCHEDULERS)]
        for cta in range(ctas):
            for warp in range(warps):
                place = (cta * warps + warp) % SCHEDULERS
                self.schedulers[place].warps.append(_Warp(cta, place, cta * apart))

    def run(self, rounds: int) -> float:
        """Goes on until the warps have made so many rounds, all together; the clock then."""
        while self.queue:
            now, place = heapq.heappop(self.queue)
            scheduler = self.schedulers[place]
            if now != scheduler.wakes:
                continue  # it was woken earlier
            warp, then, why = self._choose(scheduler, now)
            if warp is None:
                if then < math.inf:
                    self.idle[why] += then - now
                self._wake(place, then)
                continue
            step = self.steps[warp.at]
            scheduler.last = warp
            self._issue(scheduler, warp, step, now)
            self._wake(place, now + step.issues)
            if warp.at == 0 and self.rounds >= rounds:
                return now
        raise FlashladderError("the warps wait for each other", found="a barrier that not all warps of a CTA reach")

    def _wake(self, place: int, then: float) -> None:
        self.schedulers[place].wakes = then
        if then < math.inf:
            heapq.heappush(self.queue, (then, place))

    def _choose(self, scheduler: _Scheduler, now: float) -> tuple[_Warp | None, float, str]:
        """The warp that goes on now; or None, when the first one can, and what it waits for."""
        last, then, why = scheduler.last, math.inf, ""
        if last is not None and not last.held:
            then, why = self._earliest(scheduler, last, now)
            if then <= now:
                return last, now, ""
        for warp in scheduler.warps:
            if warp is not last and not warp.held:
                at, reason = self._earliest(scheduler, warp, now)
                if at <= now:
                    return warp, now, ""
                if at < then:
                    then, why = at, reason
        return None, then, why

    def _earliest(self, scheduler: _Scheduler, warp: _Warp, now: float) -> tuple[float, str]:
        """When a warp's next instruction can be issued, and what decides that."""
        step = self.steps[warp.at]
        at, why = warp.ready, "dependence"
        for board in step.waits:
            if warp.boards[board] > at:
                at, why = warp.boards[board], "scoreboard"
        made = warp.made
        for register in step.after:
            if made[register] > at:
                at, why = made[register], "mma result"
        if step.pipe is not None:
            if scheduler.pipes[step.pipe] > at:
                at, why = scheduler.pipes[step.pipe], PIPES[step.pipe] + " pipe"
        elif step.wavefronts:
            waiting = scheduler.waiting
            while waiting and waiting[0] <= now:
                waiting.popleft()
            if len(waiting) >= ASSUMED.queue and waiting[-ASSUMED.queue] > at:
                at, why = waiting[-ASSUMED.queue], "shared memory"
        elif step.kind == "wait" and len(warp.groups) > step.left:
            landed = max(list(warp.groups)[: len(warp.groups) - step.left])
            if landed > at:
                at, why = landed, "copies"
        return at, why

    def _issue(self, scheduler: _Scheduler, warp: _Warp, step: Step, now: float) -> None:
        warp.ready = now + step.stall
        done, read = now + step.latency, now + ASSUMED.operands_read
        if step.pipe is not None:
            scheduler.pipes[step.pipe] = now + step.holds
            for register in step.makes:
                warp.made[register] = done
        elif step.wavefronts:
            done, read = self._access(scheduler, warp, step, now)
        elif step.kind == "commit":
            warp.groups.append(warp.copied)
        elif step.kind == "branch":
            warp.ready = now + max(step.stall, ASSUMED.branch)
        elif step.kind in ("barrier", "end"):
            self._arrive(warp, now, self.chip.barrier_latency if step.kind == "barrier" else ASSUMED.launch)
        if step.written is not None and done > warp.boards[step.written]:
            warp.boards[step.written] = done
        if step.read is not None and read > warp.boards[step.read]:
            warp.boards[step.read] = read
        warp.at += 1
        if warp.at == len(self.steps):
            warp.at = 0
            self.rounds += 1

    def _access(self, scheduler: _Scheduler, warp: _Warp, step: Step, now: float) -> tuple[float, float]:
        """An access to shared memory, a shuffle or a copy; when its result is there and its operands are read."""
        start = max(now + ASSUMED.to_shared, self.shared)
        self.shared = start + step.wavefronts
        scheduler.waiting.append(start)
        latency = step.latency - ASSUMED.to_shared
        if step.kind == "copy":
            self.l2 = max(self.l2, start) + step.copied / self.chip.l2
            warp.copied = max(warp.copied, self.l2 + self.chip.l2_latency)
            return warp.copied, start + ASSUMED.operands_read
        if step.returns:  # the first wavefront is in the latency
            scheduler.way_back = max(scheduler.way_back, start) + step.returns
            done = max(start + step.returns - self.chip.shared_return, scheduler.way_back) + latency
        else:
            done = start + step.wavefronts + latency
        return done, start + ASSUMED.operands_read

    def _arrive(self, warp: _Warp, now: float, latency: float) -> None:
        """A warp at a barrier of its CTA: held until all of them are there."""
        there = self.arrived[warp.cta]
        there.append(warp)
        warp.held = True
        if len(there) < self.warps_per_cta:
            return
        for one in there:
            one.held = False
            one.ready = max(one.ready, now + latency)
            if one.scheduler != warp.scheduler and self.schedulers[one.scheduler].wakes > one.ready:
                self._wake(one.scheduler, one.ready)
        there.clear()


def simulate(
    steps: Sequence[Step], chip: Chip, *, ctas: int, warps: int, rounds: int = 6, skipped: int = 2, apart: float = 0.0
) -> Rounds:
    """Runs `steps` on one SM, over and over, in every warp.

    Args:
        steps: of one round: a KV block, or a CTA from its first instruction to its last.
        chip: the SM.
        ctas: resident at once.
        warps: of each.
        rounds: of every warp that are counted.
        skipped: rounds before these.
        apart: clocks between the begins of two CTAs.

    Raises:
        FlashladderError: warps of a CTA wait at a barrier for others that never come.
    """
    sm = _Sm(steps, chip, ctas, warps, apart)
    n = ctas * warps
    begin = sm.run(skipped * n)
    made, before = _progress(sm), dict(sm.idle)
    span = sm.run((skipped + rounds) * n) - begin
    idle = {why: (clocks - before.get(why, 0.0)) / span / SCHEDULERS for why, clocks in sm.idle.items()}
    return Rounds(span * n / (_progress(sm) - made), dict(sorted(idle.items(), key=lambda item: -item[1])))


def _progress(sm: _Sm) -> float:
    """Rounds of all warps, with the parts of those that they are in."""
    return sm.rounds + sum(warp.at for one in sm.schedulers for warp in one.warps) / len(sm.steps)
