"""Where things lie: the package, the ladder's files (those of a checkout, or those the package carries), and builds."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CARRIED = PACKAGE / "carried"  # in an installed package alone: setup.py puts the ladder's files there
ROOT = Path(os.environ.get("FLASHLADDER_ROOT") or (CARRIED if CARRIED.is_dir() else PACKAGE.parent)).resolve()
KERNELS = ROOT / "kernels"
ITERATIONS = ROOT / "iterations"
CONFIGS = ROOT / "configs"
RESULTS = ROOT / "results"
# What is made goes into the checkout, or where there is none into the working folder.
BUILD = Path(os.environ.get("FLASHLADDER_BUILD") or ("build" if ROOT == CARRIED else ROOT / "build")).absolute()
