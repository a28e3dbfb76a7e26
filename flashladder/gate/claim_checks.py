"""The gate's checks of claims that need nothing but committed files, each with its name.

Why apart from `flashladder.gate.checks`: what a claim owes is this module's affair, how a check is run and told is the
gate's. Each takes the root of a checkout; claims are those of this one's iterations. `invoke gate` runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flashladder.errors import Checked
from flashladder.gate import null_step, statements
from flashladder.lock import code_claims as claims
from flashladder.lock import step_counts
from flashladder.paths import CONFIGS, ITERATIONS, RESULTS, ROOT


def _moved(path: Path, root: Path) -> Path:
    """Where a file of this checkout lies in the one at `root`."""
    return root / path.relative_to(ROOT)


def code_claims(root: Path = ROOT) -> Checked:
    """Claims about machine code and PTX hold, and say something, in the committed counts."""
    return claims.check(path=_moved(step_counts.COUNTS, root), locks=_moved(RESULTS / "locks", root))


def words(root: Path = ROOT) -> Checked:
    """Words and claims of the iterations fit each other."""
    return statements.check(_moved(CONFIGS / statements.STATEMENTS.name, root), _moved(ITERATIONS, root))


def taken_back(root: Path = ROOT) -> Checked:
    """A claim of each step fails when the step is taken back, and the page on it is current."""
    return null_step.check(_moved(null_step.PAGE, root), _moved(RESULTS, root))


CHECKS: tuple[tuple[str, Callable[[Path], Checked]], ...] = (
    ("claims about machine code", code_claims),
    ("words and claims of the steps fit", words),
    ("a claim of each step fails without it", taken_back),
)
