"""Tensor instructions and wavefronts of ``stmatrix`` are those that Nsight Compute read on a Hopper GPU."""

from __future__ import annotations

from collections.abc import Mapping
import gzip
import json
from typing import Any

import pytest
from tests.cases.hopper_patterns import METRICS, emulate, patterns, ptx_of
from tests.cases.patterns import told

from flashladder.files import relative, sha256
from flashladder.paths import RESULTS

READINGS = RESULTS / "h200" / "hopper_patterns.json.gz"
ASK = f"python analysis/emulator_hw_counters.py --hopper --out {relative(READINGS)}"


@pytest.fixture(scope="module")
def document() -> Mapping[str, Any]:
    if not READINGS.is_file():
        pytest.skip(f"{relative(READINGS)} is not there yet: {ASK}")
    found: dict[str, Any] = json.loads(gzip.decompress(READINGS.read_bytes()))
    return found


def test_every_pattern_counts_as_on_the_chip(document: Mapping[str, Any]) -> None:
    every = patterns()
    assert document["ptx_sha256"] == sha256(ptx_of(every))
    assert told(every, [document["readings"][pattern.name] for pattern in every], emulate(every)) == []


def test_the_patterns_tell_rules_apart() -> None:
    """The emulator's own numbers differ where the chip's might: a constant would not pass above."""
    chosen = patterns()
    found = dict(zip((pattern.name for pattern in chosen), emulate(chosen), strict=True))
    conflicts, tensor = METRICS[1], METRICS[4]
    assert found["stmatrix x4, rows of 128"][conflicts] > found["stmatrix x4, rows of 144"][conflicts] == 0
    assert found["3 wgmma n8 f32.f16.f16, A in registers"][tensor] == 12
    (first, *_) = chosen
    reading = {**found[first.name], tensor: 7}
    assert told((first,), [reading], [found[first.name]]) == [f"{first.name}: {tensor} 7 (emulator 0)"]
