"""Errors of iterations beside FA2's against the manifest and against what is allowed.

Why: a step that is faster by being less exact must stay within a bound that somebody else can read. The bounds stand in
`flashladder.report.accuracy`, beside the page that shows them.

Nothing to run here; `flashladder.gate.evidence.manifest` asks.
"""

from __future__ import annotations

from collections.abc import Iterator
import math
from pathlib import Path
from typing import Any

from flashladder.ladder import manifest
from flashladder.ladder.config import DTYPES, KernelConfig
from flashladder.lock.refusal import find_locked
from flashladder.lock.schema import read_lock
from flashladder.report.accuracy import NORMAL, REFERENCE, beyond_bounds, cells
from flashladder.results.files import read_json

SCALED = {f"scale {n}" for n in (2, 3, 5, 10, 20, 30)}
OWED = {NORMAL, *SCALED, "rising", "falling", "matching", "one-hot", "equal", "outlier"}
INPUTS = 63  # of each dtype, at least


def problems(path: Path, spec: manifest.Accuracy) -> Iterator[str]:
    """Arms and inputs that are owed and missing, and errors that are too large."""
    found = cells(path)
    owed = {REFERENCE, *map(str, spec.iterations), *spec.references}
    for arms in {frozenset(cell.maximum) for cell in found}:
        if arms != owed:
            yield f"arms: expected {', '.join(sorted(owed))}, found {', '.join(sorted(arms))}"
            return
    document = read_json(path)
    drawn = {dtype: set[tuple[str, int, int]]() for dtype in DTYPES}
    for one in document["records"]:
        drawn.setdefault(one["dtype"], set()).add((one["inputs"], one["seq_len"], one["seed"]))
        for arm, (most, rms) in one["errors"].items():
            if not 0 < rms <= most < math.inf:
                yield f"{one['dtype']} {one['inputs']} S={one['seq_len']}: errors of {arm}: {most}, {rms} cannot be"
    counted = {dtype: len(draws) for dtype, draws in drawn.items()}
    if counted != dict.fromkeys(DTYPES, spec.inputs) or len(document["records"]) != spec.inputs * len(DTYPES):
        yield f"inputs: expected {spec.inputs} in each of {', '.join(DTYPES)}, once each, found {counted}"
    for dtype, draws in drawn.items():
        kinds = {inputs for inputs, _, _ in draws}
        yield from (f"inputs: {dtype}: {kind} is missing" for kind in sorted(OWED - kinds))
        yield from (f"inputs: {dtype}: {kind} is unknown" for kind in sorted(kinds - OWED))
    yield from _other_code(document, spec)
    yield from beyond_bounds(found)


def _other_code(document: dict[str, Any], spec: manifest.Accuracy) -> Iterator[str]:
    """Kernels that are not the locked ones, in each iteration and dtype."""
    seen = set()
    locks = {arch: read_lock(arch) for arch in {one["arch"] for one in document["kernels"].values()}}
    for key, one in document["kernels"].items():
        number, dtype = int(one["iteration"]), KernelConfig.parse(one["config"]).dtype
        seen.add((number, dtype))
        locked = find_locked(locks[one["arch"]], number, one["config"])
        if locked is None or locked.text_sha256 != one["text_sha256"]:
            yield f"kernel {key}: is not the locked machine code"
    owed = {(number, dtype) for number in spec.iterations for dtype in DTYPES}
    yield from (f"kernel of iteration {number}, {dtype}: is missing" for number, dtype in sorted(owed - seen))
