"""The small Hopper programs on this machine's GPU, by the very runner that a bare machine gets.

Run: pytest tests/gpu/test_hopper_programs_gpu.py
"""

from __future__ import annotations

import json
from pathlib import Path
import subprocess
import sys

import pytest
from tests.hopper_programs.export import export
from tests.hopper_programs.program import programs

from flashladder.errors import FlashladderError
from flashladder.toolchain.wheels import gpu_arch
from ptxemu.chip import load_driver

pytestmark = pytest.mark.gpu


def test_the_chip_computes_what_is_expected(tmp_path: Path) -> None:
    try:
        load_driver()
        count = export(tmp_path, programs().values())
    except FlashladderError as error:
        pytest.skip(str(error))
    if gpu_arch() != "sm_90":
        pytest.skip(f"needs a Hopper GPU, found {gpu_arch()}")
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads((tmp_path / "answers.json").read_text())["records"]) == count
