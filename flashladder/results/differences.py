"""What of a written timing does not follow from its samples: the written document beside the derived one, by cell.

Why apart from `flashladder.results.derive`: that derives; this only compares, and says where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import math
from typing import Any, NamedTuple

from flashladder.results.schema import BenchResult

TOLERANCE = 1e-9  # relative: re-derived numbers may differ by the rounding of another NumPy


class Found(NamedTuple):
    """What a comparison found wrong, a line each, and how many things it compared."""

    problems: Sequence[str]
    n: int


def differences(written: BenchResult, derived: BenchResult) -> list[str]:
    """One line per value that does not follow from the samples: cell, field, as written, as derived."""
    found = []
    for name in ("groups", "summaries", "means", "floors_pct"):
        old, new = (_labelled(one.model_dump(mode="json")[name]) for one in (written, derived))
        told = f"{name} does not follow from the raw samples"
        labels, expected = [label for label, _ in old], [label for label, _ in new]
        if labels != expected:
            found += [f"{told}: {label}: not written" for label in expected if label not in labels]
            found += [f"{told}: {label}: written, not derived" for label in labels if label not in expected]
            found += [] if set(labels) ^ set(expected) else [f"{told}: cells repeated or in another order"]
            continue
        for (label, a), (_, b) in zip(old, new, strict=True):
            found += [f"{told}: {label}{field}: written {x}, derived {y}" for field, x, y in unequal(a, b)]
    return found


def _labelled(part: Mapping[str, float] | Sequence[Mapping[str, Any]]) -> list[tuple[str, object]]:
    """Dumped groups, summaries, means or floors, each beside its cell: kernel or process, dtype, shape."""
    if isinstance(part, Mapping):
        return sorted(part.items())
    labelled: list[tuple[str, object]] = []
    for one in part:
        shape = one.get("shape")
        where = f"S={shape['seq_len']} B={shape['batch']} H={shape['n_heads']}" if shape else "all S"
        labelled.append((f"{one.get('kernel') or 'process ' + str(one['process'])} {one['dtype']} {where}", one))
    return labelled


def unequal(a: object, b: object, field: str = "") -> Iterator[tuple[str, object, object]]:
    """Values that differ by more than rounding: `` field.0.field``, and both."""
    if isinstance(a, dict) and isinstance(b, dict):  # of one model: the same keys
        for key in a:
            yield from unequal(a[key], b[key], f"{field}.{key}" if field else f" {key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from unequal(x, y, f"{field}.{index}")
    elif isinstance(a, float) and isinstance(b, float):
        if not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield field, a, b
    elif a != b:
        yield field, a, b
