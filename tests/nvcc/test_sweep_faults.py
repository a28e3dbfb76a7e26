"""Ten sweeps and ten workers killed at random moments of the day; results/sweep/ has the log of a hundred of each.

Another seed, or more: ``FLASHLADDER_FAULTS_SEED=7 FLASHLADDER_FAULTS=100 pytest -s tests/nvcc/test_sweep_faults.py``.
"""

from __future__ import annotations

from datetime import datetime, timezone
import os
from pathlib import Path
import subprocess
import sys

import pytest

from flashladder.errors import FlashladderError
from flashladder.paths import ROOT
from flashladder.toolchain.wheels import find_toolchain

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]
SEED = os.environ.get("FLASHLADDER_FAULTS_SEED") or datetime.now(timezone.utc).strftime("%Y%m%d")
KILLS = os.environ.get("FLASHLADDER_FAULTS") or "10"


def test_nothing_is_lost_or_doubled_by_kills_at_random_moments(tmp_path: Path) -> None:
    """In a process of its own, because it forks."""
    try:
        find_toolchain()
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")
    log = tmp_path / "faults.txt"
    words = [sys.executable, "-m", "tests.nvcc.sweep_faults", "--kills", KILLS, "--seed", SEED, "--log", str(log)]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    told = log.read_text(encoding="utf-8")
    print(told)  # shown when it fails, or with -s: the seed is in the first line
    assert done.returncode == 0, done.stderr
    assert "passed: " in told
    assert told.count("sweep killed") == told.count("worker killed") == int(KILLS)
