"""Bank conflicts, wavefronts, sectors, requests, tensor instructions are those that Nsight Compute read on a GPU.

With `--hw` those of AMPERE are read again, on this machine's GPU: pytest tests/test_hw_counters.py --hw
"""

from __future__ import annotations

from collections.abc import Mapping
import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases.patterns import AMPERE, BANKS, GLOBAL, HOPPER, Patterns

from ptxemu.chip import Gpu

HERE = Path(__file__).parent
TENSOR = HOPPER.metrics[-1]


def measured() -> list[dict[str, int]]:
    spec = importlib.util.spec_from_file_location("hw_counters", HERE.parent / "tools" / "hw_counters.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    found: list[dict[str, int]] = tool.measure(AMPERE)
    return found


def document(which: Patterns) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((HERE / "data" / which.file).read_bytes()))
    return found


@pytest.fixture(scope="module")
def readings(hardware: Gpu | None) -> Mapping[str, Mapping[str, int]]:
    if hardware is not None:
        return {pattern.name: read for pattern, read in zip(AMPERE.patterns, measured(), strict=True)}
    found: Mapping[str, Mapping[str, int]] = document(AMPERE)["readings"]
    return found


@pytest.mark.parametrize("which", [AMPERE, HOPPER], ids=lambda which: which.file)
def test_the_readings_are_of_these_patterns(which: Patterns) -> None:
    found = document(which)
    assert found["ptx_sha256"] == which.digest()
    assert list(found["readings"]) == [pattern.name for pattern in which.patterns]
    assert found["machine"]["gpu"].startswith("NVIDIA")
    assert {pattern.threads for pattern in which.patterns} <= {32, 64, 128}


@pytest.mark.parametrize("part", range(4))
def test_every_pattern_counts_as_on_the_chip(readings: Mapping[str, Mapping[str, int]], part: int) -> None:
    chosen = AMPERE.patterns[part::4]
    assert AMPERE.differences([readings[pattern.name] for pattern in chosen], chosen) == []


def test_every_pattern_of_hopper_counts_as_on_the_chip() -> None:
    assert HOPPER.differences(list(document(HOPPER)["readings"].values())) == []


def test_the_patterns_tell_rules_apart(readings: Mapping[str, Mapping[str, int]]) -> None:
    """The readings themselves hold conflicts, merged phases and lines of pairs: a constant would not pass above."""
    conflicts, wavefronts, sectors = BANKS[0], BANKS[2], GLOBAL[0]
    assert readings["shared ld 4 bytes, stride 32"][conflicts] == 31
    assert readings["shared ld 8 bytes, pairs"][wavefronts] < readings["shared ld 8 bytes, stride 1"][wavefronts]
    assert readings["cp.async.cg 16 bytes, stride 2"][sectors] < readings["cp.async.ca 16 bytes, stride 2"][sectors]
    hopper = document(HOPPER)["readings"]
    assert hopper["stmatrix x4, rows of 128"][BANKS[1]] > hopper["stmatrix x4, rows of 144"][BANKS[1]] == 0
    assert hopper["3 wgmma n8 f32.f16.f16, A in registers"][TENSOR] == 12


@pytest.mark.parametrize(
    ("which", "name", "metric", "says"),
    [
        (AMPERE, "shared ld 4 bytes, stride 2", BANKS[0], "2 (emulator 1)"),
        (HOPPER, "stmatrix x1, rows of 16", TENSOR, "1 (emulator 0)"),
    ],
)
def test_a_reading_that_differs_is_told(which: Patterns, name: str, metric: str, says: str) -> None:
    chosen = [pattern for pattern in which.patterns if pattern.name == name]
    reading = dict(document(which)["readings"][name])
    assert which.differences([reading], chosen) == []
    reading[metric] += 1
    assert which.differences([reading], chosen) == [f"{name}: {metric} {says}"]
