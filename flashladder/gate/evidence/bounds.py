"""The error bounds of a numerical check, asked of the rule and not of the file that was checked by them.

Why: a file whose bounds were raised to 1 passes its own comparison. The rule (`flashladder.cases.reference`) fixes the
relative and the row-wise bound by the dtype alone, and says how large the others can be at most without torch at hand.
Nothing to run here; `flashladder.gate.evidence.manifest` asks.
"""

from __future__ import annotations

from collections.abc import Iterator
import math

from flashladder.cases.reference import (
    ALL_SLICES,
    BIAS_ERRORS,
    BIAS_PER_KEY,
    BIAS_SHARE,
    ROW_BIAS_SHARE,
    UNIT_ROUNDOFF,
)
from flashladder.results.schema import Accuracy, Shape

LARGEST = 6.5  # of V's N(0, 1) numbers, of which a case has at most 2^28; no element of O is larger
TORCH_ROUNDOFFS = 2  # unit roundoffs of O's largest element by which torch may be off: P's rounding and O's
TOLERANCE = 1e-9  # relative


def problems(accuracy: Accuracy, dtype: str, shape: Shape) -> Iterator[str]:
    """One phrase per bound that the rule does not give at this dtype and shape."""
    roundoff = UNIT_ROUNDOFF[dtype]
    for name, rule in (("rms_allowed", roundoff), ("row_bias_allowed", ROW_BIAS_SHARE * roundoff)):
        found = getattr(accuracy, name)
        if found is not None and not math.isclose(found, rule, rel_tol=TOLERANCE):
            yield f"{name}: expected {rule:g}, found {found:g}"
    most = 2 * TORCH_ROUNDOFFS * roundoff * LARGEST
    if not 0 < accuracy.max_allowed <= most:
        yield f"max_allowed: expected at most {most:.3g}, found {accuracy.max_allowed:g}"
    if accuracy.bias_allowed is not None:
        low, high = _bias_range(roundoff, shape)
        if not low * (1 - TOLERANCE) <= accuracy.bias_allowed <= high:
            yield f"bias_allowed: expected {low:.3g} to {high:.3g}, found {accuracy.bias_allowed:g}"


def _bias_range(roundoff: float, shape: Shape) -> tuple[float, float]:
    """What the mean signed error may be allowed: the share of a roundoff, and beyond it the errors of that mean.

    Rows are off by `ROW_BIAS_SHARE` of a roundoff at most, in the RMS; so is the mean of as many of them by that over
    the root of their number, once for O's rounding and once for P's. Of rows and columns the fewer count.
    """
    slices = shape.batch * shape.n_heads
    rows = min(shape.seq_len, shape.d_head) * (slices if slices <= ALL_SLICES else shape.n_heads)
    low = BIAS_SHARE * roundoff + BIAS_PER_KEY * shape.seq_len
    return low, low + BIAS_ERRORS * math.sqrt(2 / rows) * ROW_BIAS_SHARE * roundoff
