"""What a page of reasons says about two numbers: a phrase when they bear it out, an error when they do not.

Why: prose says "falls" once and for all; its data are rendered again with every result. Nothing to run here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flashladder.errors import FlashladderError

Direction = Literal["falls", "rises", "stays"]


class Contradicted(FlashladderError):
    """The data say otherwise than the page."""


@dataclass(frozen=True)
class Change:
    """A number before and after a step; a change within `noise` is none. `unit` follows the numbers."""

    what: str
    before: float
    after: float
    noise: float = 0.0
    unit: str = ""

    @property
    def direction(self) -> Direction:
        """What became of it."""
        if abs(self.after - self.before) <= self.noise:
            return "stays"
        return "rises" if self.after > self.before else "falls"

    def require(self, said: Direction) -> Change:
        """Itself.

        Raises:
            Contradicted: it took another direction than what is said.
        """
        if self.direction != said:
            found = f"{self.direction}, {figure(self.before)} to {figure(self.after)}{self.unit}"
            raise Contradicted(f"the data contradict the page about {self.what}", expected=said, found=found)
        return self

    def said(self) -> str:
        """``149 to 44``; one number where both are printed alike."""
        texts = figure(self.before), figure(self.after)
        return (" to ".join(texts) if texts[0] != texts[1] else texts[1]) + self.unit


def figure(value: float) -> str:
    """A count whole, with separators of thousands; anything else with two decimals below ten and one above."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}"  # as the text says
