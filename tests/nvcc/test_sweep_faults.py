"""Sweeps on the emulator killed at random moments: ten sweeps and ten workers; results/sweep/ logs a hundred.

Another seed, or more: ``FLASHLADDER_FAULTS_SEED=7 FLASHLADDER_FAULTS=100 pytest -s tests/nvcc/test_sweep_faults.py``.
"""

from __future__ import annotations

from datetime import datetime, timezone
import os
from pathlib import Path

import pytest

from tests.nvcc import sweep_faults

SEED = os.environ.get("FLASHLADDER_FAULTS_SEED") or datetime.now(timezone.utc).strftime("%Y%m%d")
KILLS = os.environ.get("FLASHLADDER_FAULTS") or "10"


@pytest.mark.nvcc
def test_nothing_is_lost_or_doubled_by_kills_at_random_moments(tmp_path: Path) -> None:
    log = tmp_path / "faults.txt"
    sweep_faults.main(["--kills", KILLS, "--seed", SEED, "--log", str(log)])  # its lines are shown when it fails
    lines = log.read_text(encoding="utf-8")
    assert "passed: " in lines
    assert lines.count("sweep killed") == lines.count("worker killed") == int(KILLS)
