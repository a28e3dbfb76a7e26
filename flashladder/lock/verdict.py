"""What became of one claim at one place, and the rules that make a claim worth stating.

Why rules: a claim that also holds with the parent's kernel in the child's place says nothing about the step, and a
bound that asks for a tenth of what is measured would let nine tenths go unnoticed. So a claim is refused where it says
nothing, unless it says ``unchanged``; where it asks for less than half of the change; and where it holds although its
`on` leaves the architecture out. Nothing to run here: `flashladder.lock.code_claims`,
`flashladder.emulate.agreement`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import math

from flashladder.errors import Checked, CheckFailed
from flashladder.ladder.claim import PLACES, Claim

SHARE = 0.5  # of the smallest measured change, that a bound asks for at least
WITHIN = 0.01  # the largest relative deviation that a claim may call equal
Counts = Mapping[str, float]


@dataclass(frozen=True)
class Sides:
    """The counts that a claim is judged on.

    Attributes:
        own: the iteration's.
        parent: its parent's; None for the first iteration.
        null: those of the kernel that stands in the iteration's place when the step is taken back: the parent's, and
            for the first iteration, which has none, those of the step that follows it.
    """

    own: Counts
    parent: Counts | None
    null: Counts


@dataclass(frozen=True)
class Verdict:
    """One claim at one place.

    Attributes:
        iteration: the number of the iteration that claims it.
        place: an architecture, ``PTX``, ``emulator`` or the folder of a machine's results.
        tile: where both sides have the same one, what follows the iteration in the line.
        before: the parent's count of the claim's metric; None without a parent.
        after: the iteration's.
        null: the count with the step taken back.
        claimed: whether the claim is made here (its `on` may leave an architecture out).
        refuted: whether taking the step back refutes the claim.
        problem: why the claim fails; empty when it does not.
    """

    iteration: int
    claim: Claim
    place: str
    tile: str
    before: float | None
    after: float
    null: float
    claimed: bool
    refuted: bool
    problem: str

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong with the claim here."""
        return not self.problem

    @property
    def counts(self) -> str:
        """``4 -> 1 (-75.0 %)``."""
        if self.before is None:
            return plain(self.after)
        text = f"{plain(self.before)} -> {plain(self.after)}"
        return text + (f" ({100 * (self.after - self.before) / self.before:+.1f} %)" if self.before else "")

    def __str__(self) -> str:
        """One line: verdict, place, claim, counts, and what is wrong."""
        where = f"iteration {self.iteration}{self.tile} on {self.place}"
        claim = str(self.claim) if self.claimed else f"not claimed here: {self.claim}"
        line = f"{'holds' if self.holds else 'FAILS'}  {where}: {claim}: {self.counts}"
        return f"{line}; {self.problem}" if self.problem else line


def plain(count: float) -> str:
    """A count as texts print it: whole numbers with thousands set apart, others with four digits."""
    return f"{count:,.0f}" if float(count).is_integer() else f"{count:.4g}"


def judge(
    number: int, claim: Claim, places: Mapping[str, Sides], tile: str = "", *, confirms: bool = False
) -> list[Verdict]:
    """The verdict on one claim of iteration `number` at each place.

    Args:
        number: of the iteration.
        claim: one of its claims.
        places: where it is judged, each with its counts.
        tile: what the lines say of the configuration.
        confirms: only whether it holds; that it is worth stating is judged elsewhere.
    """
    found = [_judge(number, claim, place, sides, tile) for place, sides in places.items()]
    claimed = [verdict for verdict in found if verdict.claimed]
    if confirms or any(verdict.problem for verdict in claimed):
        return found
    problem = _absence(claim, places) or _emptiness(claim, claimed) or _looseness(claim, claimed)
    return [replace(verdict, problem=problem) if verdict.claimed and problem else verdict for verdict in found]


def _judge(number: int, claim: Claim, place: str, sides: Sides, tile: str) -> Verdict:
    holds, holds_without = claim.holds(sides.own, sides.parent), claim.holds(sides.null, sides.parent)
    claimed = not claim.on or place in claim.on
    problem = ""
    if not claimed:
        problem = "it holds here too, which its 'on' denies" if holds else ""
    elif not holds:
        missing = claim.absent(sides.own, sides.parent)
        problem = f"no {missing[0]} in either kernel" if len(missing) == len(claim.names) else "it does not hold"
    return Verdict(
        iteration=number,
        claim=claim,
        place=place,
        tile=tile,
        before=None if sides.parent is None else claim.measure(sides.parent),
        after=claim.measure(sides.own),
        null=claim.measure(sides.null),
        claimed=claimed,
        refuted=claimed and holds and not holds_without,
        problem=problem,
    )


def _absence(claim: Claim, places: Mapping[str, Sides]) -> str:
    """A name that no kernel has at any place where the claim is made; empty where all occur."""
    made = [sides for place, sides in places.items() if not claim.on or place in claim.on]
    for name in claim.names:
        if all(name in claim.absent(sides.own, sides.parent) for sides in made):
            return f"no {name} in either kernel"
    return ""


def _emptiness(claim: Claim, verdicts: Sequence[Verdict]) -> str:
    """Why the claim says nothing about the step; empty when it does, or says just that."""
    if claim.form == "unchanged" or all(verdict.refuted for verdict in verdicts):
        return ""
    return "it says nothing about the step, for it holds without it: write 'unchanged'"


def _looseness(claim: Claim, verdicts: Sequence[Verdict]) -> str:
    """Why the claim, which holds, asks for too little; empty when it does not."""
    if claim.form == "number":
        return f"too loose: 'within' is at most {WITHIN:g}" if claim.within > WITHIN else ""
    if claim.form == "unchanged":
        return ""
    pairs = [(verdict.before or 0.0, verdict.after) for verdict in verdicts]
    if not all(before for before, _ in pairs):
        return "too loose: state the number that it rises to from 0"
    change = min(abs(after - before) / before for before, after in pairs)
    if (claim.at_least or 0.0) >= SHARE * change:
        return ""
    least = math.ceil(1000 * SHARE * change) / 1000
    return f"too loose: the smallest change is {change:.3g}, so ask for {least:g} or more: {{{claim.direction}: ...}}"


def checked(about: str, verdicts: Sequence[Verdict], hint: str | None = None) -> Checked:
    """Whether all claims `about` something hold, say something and ask for enough, with every verdict."""
    broken = [verdict for verdict in verdicts if not verdict.holds]
    lines = tuple(map(str, verdicts))
    if not broken:
        return Checked(f"{len(verdicts)} claims hold", lines)
    first = broken[0]
    failure = CheckFailed(
        f"{len(broken)} of {len(verdicts)} claims about {about} do not hold",
        where=", ".join(sorted({f"iteration {verdict.iteration}" for verdict in broken})),
        found=f"{first.claim.metric}{PLACES.get(first.claim.scope, '')} on {first.place}: {first.problem}",
        hint=hint,
    )
    return Checked("", lines, problems=tuple(map(str, broken)), failure=failure)
