"""Bank conflicts, wavefronts, sectors and requests are those that Nsight Compute read on a GPU, pattern by pattern.

With `--hw` they are read again, on this machine's GPU: pytest tests/null/emulator/test_hw_counters.py --hw
"""

from __future__ import annotations

from collections.abc import Mapping
import gzip
import json
from typing import Any

import pytest
from tests.cases.patterns import METRICS, Pattern, differences, patterns, ptx_of

from flashladder.files import sha256
from flashladder.paths import RESULTS
from ptxemu.chip import Gpu

READINGS = RESULTS / "h200" / "emulator_patterns.json.gz"


@pytest.fixture(scope="module")
def document(hardware: Gpu | None) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(READINGS.read_bytes()))
    if hardware is not None:
        from analysis.emulator_hw_counters import measure

        found["machine"]["gpu"] = hardware.name
        found["readings"] = {pattern.name: read for pattern, read in zip(patterns(), measure()[0], strict=True)}
    return found


def test_the_readings_are_of_these_patterns(document: Mapping[str, Any]) -> None:
    assert document["ptx_sha256"] == sha256(ptx_of(patterns()))
    assert list(document["readings"]) == [pattern.name for pattern in patterns()]
    assert len(document["readings"]) > 700
    assert document["machine"]["gpu"].startswith("NVIDIA")


@pytest.mark.parametrize("part", range(4))
def test_every_pattern_counts_as_on_the_chip(document: Mapping[str, Any], part: int) -> None:
    every = patterns()
    size = -(-len(every) // 4)
    chosen = every[part * size : (part + 1) * size]
    assert not differences(chosen, [document["readings"][pattern.name] for pattern in chosen])


def test_the_patterns_tell_rules_apart(document: Mapping[str, Any]) -> None:
    """The readings themselves hold conflicts, merged phases and lines of pairs: a constant would not pass above."""
    conflicts = METRICS[0]
    readings = document["readings"]
    assert readings["shared ld 4 bytes, stride 32"][conflicts] == 31
    assert readings["shared ld 8 bytes, pairs"][METRICS[2]] < readings["shared ld 8 bytes, stride 1"][METRICS[2]]
    sectors = METRICS[4]
    assert readings["cp.async.cg 16 bytes, stride 2"][sectors] < readings["cp.async.ca 16 bytes, stride 2"][sectors]


def test_a_pattern_knows_its_threads() -> None:
    assert {pattern.threads for pattern in patterns()} == {32, 64}
    assert isinstance(patterns()[0], Pattern)


def test_a_reading_that_differs_is_told(document: Mapping[str, Any]) -> None:
    (chosen,) = (pattern for pattern in patterns() if pattern.name == "shared ld 4 bytes, stride 2")
    reading = dict(document["readings"][chosen.name])
    assert not differences((chosen,), [reading])
    reading[METRICS[0]] += 1
    assert differences((chosen,), [reading]) == [f"{chosen.name}: {METRICS[0]} 2 (emulator 1)"]
