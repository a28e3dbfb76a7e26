"""Does the order of warps decide who meets whom? Where it does not, one run's verdict holds for every schedule.

`Hazards` judges a run by what its barriers and waits guarantee, not by the order in which threads ran. Another schedule
can have another verdict only if a barrier's phase is made of other arrivals there, a wait finds another phase, or a
thread takes another way through the program. `Phases` looks at the first two, with the clocks of `clocks`:

- who arrives at a barrier, or issues a copy that will tell it, knows of the completion of the phase before. Else the
  arrival might count for an earlier phase;
- who finds a phase complete knows of the completion before that one. Else an older phase of the same parity would do;
- whoever completes a phase knows of everybody who has found the last one complete. Else somebody might come too late.

"Knows" means: in every schedule in which the same threads met so far. By induction over the phases, all schedules then
have the same phases. For the third, `hazards` looks for what makes a thread's way depend on the order: the answers of
atomics, strong loads, polls answered false, ``activemask``, clocks, and global memory that is read in the launch which
writes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxemu.observe.clocks import Clocks, Key
from ptxemu.values import WARP, Array, BoolArray


@dataclass
class _Found:
    """Threads that found a phase complete, when they did, and when each warp met first since then; 0: not yet."""

    threads: Array
    time: int
    met: Array


class Phases:
    """The phases of the barriers of a block or cluster; `clocks` are its own."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self._last: dict[Key, int] = {}  # when each barrier's last phase was completed
        self._before: dict[Key, int] = {}  # and the one before
        self._found: dict[Key, list[_Found]] = {}  # who found the last one complete
        self._parts: set[Key] = set()  # CTA barriers that a part of the block has used

    def arrive(self, lanes: BoolArray, key: Key) -> bool:
        """Whether the arrivals of these lanes, (warps, 32), can count for no other phase than they do."""
        return self._know(lanes, key, self._last.get(key, 0))

    def issue(self, thread: int, key: Key) -> bool:
        """As `arrive`, for a copy of this thread that will tell the mbarrier."""
        lanes = np.zeros_like(self.clocks.exists)
        lanes.reshape(-1)[thread] = True
        return self._last.get(key, 0) == 0 or self.arrive(self.clocks.whole(lanes), key)

    def wait(self, lanes: BoolArray, key: Key) -> bool:
        """These lanes find the last phase complete: whether they could have found no other one."""
        sure = self._know(lanes, key, self._before.get(key, 0))
        self.clocks.tick()
        met = np.where(lanes.any(axis=1), 0, self.clocks.now)
        self._found.setdefault(key, []).append(_Found(np.flatnonzero(lanes), self.clocks.now, met))
        return sure

    def together(self, lanes: BoolArray) -> None:
        """These lanes executed an instruction for which lanes of a warp wait for each other.

        It orders no memory, but what one of them does afterwards comes after the waits of all.
        """
        found = [one for each in self._found.values() for one in each if not one.met.all()]
        if not found:
            return
        whole = (lanes >= self.clocks.exists).all(axis=1)
        self.clocks.tick()
        for one in found:
            one.met[whole & (one.met == 0)] = self.clocks.now

    def complete(self, key: Key) -> bool:
        """A phase of an mbarrier is complete: whether all who looked at the last one had found it by then."""
        found = self._found.pop(key, [])
        sure = all(self._told(key, one) for one in found)
        self._before[key] = self._last.get(key, 0)
        self._last[key] = self.clocks.announce(key, _token(key))
        return sure

    def gather(self, lanes: BoolArray, everybody: BoolArray, key: Key) -> bool:
        """These lanes are about to complete a CTA barrier: whether no others could have. `everybody`: the block's."""
        if key not in self._parts and (lanes >= everybody).all():
            return True
        self._parts.add(key)
        return self._know(lanes, key, self._last.get(key, 0))

    def meet(self, lanes: BoolArray, key: Key) -> None:
        """They have completed it, and know of each other."""
        if key in self._parts:
            self._last[key] = self.clocks.learn(lanes, _token(key))

    def signal(self, lanes: BoolArray, key: Key) -> bool:
        """As `arrive`, at a CTA barrier."""
        self._parts.add(key)
        return self.arrive(lanes, key)

    def forget(self, key: Key) -> None:
        """The mbarrier begins anew."""
        for table in (self._last, self._before, self._found):
            table.pop(key, None)

    def _told(self, key: Key, found: _Found) -> bool:
        """Whether those who arrived knew that these threads had found it before, or of a lane that met them since."""
        if self.clocks.told(key, found.threads, found.time):
            return True
        warp = found.threads // WARP
        apart = found.threads[found.met[warp] == 0]
        if apart.size and not self.clocks.told(key, apart, found.time):
            return False
        return all(
            self.clocks.told_one(key, each * WARP + np.arange(WARP), int(found.met[each]))
            for each in np.unique(warp[found.met[warp] > 0])
        )

    def _know(self, lanes: BoolArray, key: Key, time: int) -> bool:
        return time == 0 or self.clocks.knows(lanes, _token(key), time)


def _token(key: Key) -> Key:
    """The agent that stands for the completions of a barrier."""
    return f"phase of {key[0]}", key[1]
