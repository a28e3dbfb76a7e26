"""Successive halving: which candidates of a tuning space are timed further, from the few pairs that they have so far.

Why: a space of a hundred configurations spreads over twenty per cent, so that two pairs each tell most of them from the
best; the pairs are better spent among those that are close. Rules: the better half goes on, and so do ties with the
leader that noise may have put behind it (`TIES`); what lies hopelessly far behind the leader does not, whatever its
rank. Pure arithmetic on natural logarithms of ``FA2's time / kernel's time``; knows nothing of GPUs or records.

    >>> survivors({"slow": [0.0, 0.0], "fast": [0.1, 0.1]}, handful=1)
    ['fast']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from statistics import median, variance

RUNGS = (2, 2, 4, 8, 8)
"""Pairs of each surviving candidate in each rung; even, so that kernel and FA2 go first equally often."""
HANDFUL = 4  # that go through every rung: the winner needs somebody to be compared with
HALF = 0.5
MOST = 0.75  # of a rung's candidates that go on at most, ties included
TIES = 2.0  # standard errors of a difference within which two candidates are a tie
HOPELESS = 3.0  # times that, behind the leader
LEAST_TIE = 0.004  # log units: below the A/A floor of any GPU measured so far nothing is told apart


def noise(values: Mapping[str, Sequence[float]]) -> float:
    """Standard deviation of one pair's log ratio, from the spread within all candidates (root mean square)."""
    spreads = [variance(own) for own in values.values() if len(own) > 1]
    return math.sqrt(sum(spreads) / len(spreads)) if spreads else 0.0


def tie(values: Mapping[str, Sequence[float]]) -> float:
    """Log units within which two candidates of `values` cannot be told apart."""
    fewest = min((len(own) for own in values.values() if own), default=1)
    return max(LEAST_TIE, TIES * noise(values) * math.sqrt(2 / fewest))


def ranking(values: Mapping[str, Sequence[float]]) -> list[str]:
    """The candidates by their median, fastest first; those without a pair that counts come last."""
    return sorted(values, key=lambda name: (-median(values[name]) if values[name] else math.inf, name))


def survivors(values: Mapping[str, Sequence[float]], *, handful: int = HANDFUL) -> list[str]:
    """The candidates that go on, fastest first.

    Args:
        values: of every candidate that is still in, all log ratios that count so far, over all rungs.
        handful: so many go on in any case.

    Returns:
        At most `most_survivors` of them; all, where no block of the last rung counted.
    """
    ranked = ranking(values)
    if not ranked or not all(values.values()):
        return ranked
    scores = {name: median(values[name]) for name in ranked}
    leader, close = scores[ranked[0]], tie(values)
    half, most = math.ceil(HALF * len(ranked)), most_survivors(len(ranked), handful)
    kept = []
    for rank, name in enumerate(ranked[:most]):
        behind = leader - scores[name]
        if rank < handful or behind <= (HOPELESS * close if rank < half else close):
            kept.append(name)
    return kept


def most_survivors(n: int, handful: int = HANDFUL) -> int:
    """How many of `n` candidates go on at most."""
    return min(n, max(handful, math.ceil(MOST * n)))


def most_pairs(n: int, rungs: Sequence[int] = RUNGS, handful: int = HANDFUL) -> int:
    """Pairs that `n` candidates cost at most, whatever they measure."""
    total = 0
    for pairs in rungs:
        total += n * pairs
        n = most_survivors(n, handful)
    return total


def usual_pairs(n: int, rungs: Sequence[int] = RUNGS, handful: int = HANDFUL) -> int:
    """Pairs that `n` candidates cost where half of them goes on each time: for estimates."""
    total = 0
    for pairs in rungs:
        total += n * pairs
        n = min(n, max(handful, math.ceil(HALF * n)))
    return total
