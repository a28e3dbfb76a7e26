"""A soak against the manifest: every case beside work, every launch and long shape that is owed, as they must be.

Why: that nothing was wrong is worth as much as was asked. A document that lacks a case, a length or a zero of a
million, or whose second stream idled, says so of no kernel.

Nothing to run here; `flashladder.gate.evidence.manifest` asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flashladder.cases.reference import BIAS_PER_KEY, UNIT_ROUNDOFF
from flashladder.check import soak_runs
from flashladder.check.soak_runs import described as told
from flashladder.gate.evidence.bounds import LARGEST, TORCH_ROUNDOFFS
from flashladder.gate.evidence.proofs import every_case, same_kernels
from flashladder.ladder import manifest
from flashladder.results.files import load_as
from flashladder.results.schema import FarRows, SoakResult

LEAST_REPEATS, LEAST_LAUNCHES = 50, 1_000_000  # that the project owes of each kernel
LEAST_BESIDE = 0.5  # of a kernel's time beside products


def too_little(spec: manifest.Soak) -> Iterator[str]:
    """What a manifest must ask of a soak, and does not."""
    for what, found, least in (
        ("runs that agree", spec.repeats, LEAST_REPEATS),
        ("launches", spec.launches, LEAST_LAUNCHES),
        ("long shapes", spec.far, len(soak_runs.LONG_SHAPES)),
    ):
        if found < least:
            yield f"soak: expected at least {least:,} {what}, found {found:,}"


def problems(path: Path, spec: manifest.Soak) -> Iterator[str]:
    """Cases, launches and long shapes that are owed and missing, or other ones."""
    result = load_as(path, SoakResult)
    yield from same_kernels(result.kernels, spec.of)
    yield from every_case(result, spec)
    for key in result.kernels:
        yield from (f"{key}: {line}" for line in (*_beside(result, key), *_launches(result, key, spec)))
        yield from (f"{key}: {line}" for line in _far(result, key, spec))


def _beside(result: SoakResult, key: str) -> Iterator[str]:
    """Each run of each case that the kernel took was beside work, most of its time."""
    load = {one.case: one for one in result.beside if one.kernel == key}
    for case in result.cases:
        ran = load[case.case].launches if case.case in load else 0
        if case.kernel == key and case.status == "pass" and ran != case.repeats:
            yield f"case {case.case}: expected {case.repeats} launches beside work, found {ran}"
    took = sum(one.seconds for one in load.values())
    share = sum(one.beside_s for one in load.values()) / took if took else 0.0
    if not LEAST_BESIDE <= share <= 1.0:
        yield f"expected work beside at least {LEAST_BESIDE:.0%} of its time, found {share:.0%}"


def _launches(result: SoakResult, key: str, spec: manifest.Soak) -> Iterator[str]:
    own = [one for one in result.hammered if one.kernel == key]
    if (found := sum(one.launches for one in own)) < spec.launches:
        yield f"expected {spec.launches:,} launches at small shapes, found {found:,}"
    missing = [shape for shape in soak_runs.SMALL_SHAPES if [one.shape for one in own].count(shape) != 1]
    yield from (f"launches at {told(shape)}: expected once" for shape in missing)
    each = spec.launches // len(soak_runs.SMALL_SHAPES)
    for one in own:
        if one.launches < each:
            yield f"launches at {told(one.shape)}: expected {each:,}, found {one.launches:,}"
        if one.looks < one.launches / soak_runs.GRAPH:
            yield f"launches at {told(one.shape)}: expected a look after each {soak_runs.GRAPH}, found {one.looks}"


def _far(result: SoakResult, key: str, spec: manifest.Soak) -> Iterator[str]:
    own = [one for one in result.far if one.kernel == key]
    if len({one.shape for one in own}) != len(own) or len(own) < spec.far:
        yield f"expected {spec.far} long shapes, each once, found {len(own)}"
    missing = [shape for shape in soak_runs.LONG_SHAPES if shape not in [one.shape for one in own]]
    yield from (f"long rows at {told(shape)}: are missing" for shape in missing)
    yield from (f"long rows at {told(one.shape)}: {line}" for one in own for line in _rows(one))


def _rows(one: FarRows) -> Iterator[str]:
    """Other rows or slices than the command compares, and bounds beyond the most that the rule can give."""
    if (one.rows, one.slices) != (soak_runs.chosen_rows(one.shape.seq_len), soak_runs.chosen_slices(one.shape)):
        yield "other rows or slices were compared than the command chooses"
    roundoff, cut = UNIT_ROUNDOFF[one.dtype], BIAS_PER_KEY * one.shape.seq_len
    for what, allowed, most in (
        ("max_allowed", one.max_allowed, (2 * TORCH_ROUNDOFFS * roundoff + cut) * LARGEST),
        ("rms_allowed", one.rms_allowed, 2 * TORCH_ROUNDOFFS * roundoff + cut),
    ):
        if not 0 < allowed <= most:
            yield f"{what}: expected at most {most:.3g}, found {allowed:.3g}"
