"""Counters are those that Nsight Compute read on a GPU, pattern by pattern.

With `--hw` the patterns of loads and stores are read again, on this machine's GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
import gzip
import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases import hopper_patterns, patterns

from ptxemu.chip import Gpu

DATA = Path(__file__).parent / "data"
READINGS = {patterns: "emulator_patterns.json.gz", hopper_patterns: "hopper_patterns.json.gz"}


def document(module: Any) -> Mapping[str, Any]:
    """The committed readings, which are of the patterns as they are today."""
    file = DATA / READINGS[module]
    if not file.is_file():
        pytest.skip(f"tests/data/{file.name} is not there: measure with tools/hw_counters.py")
    found: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    every = module.patterns()
    assert found["ptx_sha256"] == hashlib.sha256(module.ptx_of(every).encode()).hexdigest()
    assert list(found["readings"]) == [pattern.name for pattern in every]
    return found


def test_patterns_count_as_on_the_chip(hardware: Gpu | None) -> None:
    """Every fourth one, so that the test is short; all of them with `--hw`."""
    every, readings = patterns.patterns(), document(patterns)["readings"]
    if hardware is not None:
        measure = importlib.import_module("tools.hw_counters").measure
        readings = {pattern.name: read for pattern, read in zip(every, measure()[0], strict=True)}
    chosen = every if hardware is not None else every[::4]
    assert not patterns.differences(chosen, [readings[pattern.name] for pattern in chosen])


def test_every_hopper_pattern_counts_as_on_the_chip() -> None:
    every, readings = hopper_patterns.patterns(), document(hopper_patterns)["readings"]
    found = hopper_patterns.emulate(every)
    assert patterns.told(every, [readings[pattern.name] for pattern in every], found) == []
    by_name = dict(zip((pattern.name for pattern in every), found, strict=True))
    conflicts, tensor = hopper_patterns.METRICS[1], hopper_patterns.METRICS[4]
    assert by_name["stmatrix x4, rows of 128"][conflicts] > by_name["stmatrix x4, rows of 144"][conflicts] == 0
    assert by_name["3 wgmma n8 f32.f16.f16, A in registers"][tensor] == 12


def test_the_patterns_tell_rules_apart() -> None:
    """The readings hold conflicts, merged phases and lines of pairs: a constant would not pass above."""
    readings, metrics = document(patterns)["readings"], patterns.METRICS
    assert readings["shared ld 4 bytes, stride 32"][metrics[0]] == 31
    assert readings["shared ld 8 bytes, pairs"][metrics[2]] < readings["shared ld 8 bytes, stride 1"][metrics[2]]
    cg, ca = (readings[f"cp.async.{kind} 16 bytes, stride 2"][metrics[4]] for kind in ("cg", "ca"))
    assert cg < ca
    (chosen,) = (pattern for pattern in patterns.patterns() if pattern.name == "shared ld 4 bytes, stride 2")
    reading = dict(readings[chosen.name])
    reading[metrics[0]] += 1
    assert patterns.differences((chosen,), [reading]) == [f"{chosen.name}: {metrics[0]} 2 (emulator 1)"]
