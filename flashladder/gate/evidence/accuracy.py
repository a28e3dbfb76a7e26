"""Errors of iterations beside FA2's against the manifest and against what is allowed.

Why: a step that is faster by being less exact must stay within a bound that somebody else can read. The bounds stand in
`flashladder.report.accuracy`, beside the page that shows them.

Nothing to run here; `flashladder.gate.evidence.manifest` asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from flashladder.ladder import manifest
from flashladder.ladder.config import DTYPES
from flashladder.report.accuracy import REFERENCE, beyond_bounds, cells
from flashladder.results.files import read_json


def problems(path: Path, spec: manifest.Accuracy) -> Iterator[str]:
    """Arms and inputs that are owed and missing, and errors that are too large."""
    found = cells(path)
    owed = {REFERENCE, *map(str, spec.iterations)}
    for arms in {frozenset(cell.maximum) for cell in found}:
        if arms != owed:
            yield f"arms: expected {', '.join(sorted(owed))}, found {', '.join(sorted(arms))}"
            return
    drawn: Counter[str] = Counter(record["dtype"] for record in read_json(path)["records"])
    if drawn != dict.fromkeys(DTYPES, spec.inputs):
        yield f"inputs: expected {spec.inputs} in each of {', '.join(DTYPES)}, found {dict(drawn)}"
    yield from beyond_bounds(found)
