"""The committed counters of the emulator are what the PTX gives today, kernel by kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.emulate import take_reading as emulator_counters
from flashladder.emulate.reading import load_reading

pytestmark = pytest.mark.nvcc


@pytest.mark.parametrize("number", range(1, 17))
def test_the_committed_reading_follows_from_the_ptx(number: int) -> None:
    assert emulator_counters.read_kernel(number) == load_reading().of(number)


def test_a_reading_is_kept_and_a_damaged_one_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(emulator_counters, "CACHE", tmp_path)
    monkeypatch.setattr(emulator_counters, "SHAPE", emulator_counters.RACE_SHAPE)  # small: a second
    first = emulator_counters.read_kernel(16)
    (kept,) = tmp_path.glob("*.json")
    kept.write_text("{", encoding="utf-8")
    assert emulator_counters.read_kernel(16) == first
    monkeypatch.setattr(emulator_counters, "launch", lambda *_: pytest.fail("it was kept"))
    assert emulator_counters.read_kernel(16) == first
