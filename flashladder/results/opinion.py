"""The part of a result that another timing tool adds: its raw samples, by subject and round.

Why apart from `flashladder.results.schema`: what reads NVBench's and Nsight Compute's output makes these and knows
nothing of documents (`flashladder.bench.opinion_tools`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from flashladder.ladder.config import Dtype
from flashladder.results.samples import Shape, Strict

Method = Literal["nvbench", "ncu"]


class Timings(Strict):
    """One subject's samples: `rounds[i]` is the round in which it ran `us[i]` microseconds.

    In each round FA2 (``fa2``) and every kernel have their turn. `counters` holds Nsight Compute's other metrics, by
    name, sample by sample.
    """

    subject: str
    rounds: tuple[int, ...]
    us: tuple[float, ...] = Field(min_length=1)
    counters: dict[str, tuple[int, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_round_each(self) -> Timings:
        """Every sample is longer than nothing and has its round and its counters."""
        if {len(found) for found in (self.rounds, *self.counters.values())} != {len(self.us)} or min(self.us) <= 0:
            msg = f"{self.subject}: samples without a round or a counter, or of no length"
            raise ValueError(msg)
        return self


class Opinion(Strict):
    """What one tool measured at one dtype and shape; FA2's timings are among them."""

    method: Method
    mode: Literal["event-free", "ncu-base"]
    version: str
    dtype: Dtype
    shape: Shape
    timings: tuple[Timings, ...]

    def of(self, subject: str) -> Timings | None:
        """The timings of a subject; None when the tool did not time it."""
        return next((one for one in self.timings if one.subject == subject), None)
