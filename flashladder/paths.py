"""Where things lie: the package, the ladder's files (those of a checkout, or those the package carries), and builds."""

from __future__ import annotations

import os
from pathlib import Path


def path_of(text: str) -> Path:
    """`text` as a path; ``~/`` is the home folder, as a shell leaves it in ``--out=~/x``."""
    return Path.home() / text[2:] if text.startswith("~/") else Path(text)


PACKAGE = Path(__file__).resolve().parent
CARRIED = PACKAGE / "carried"  # in an installed package alone: setup.py puts the ladder's files there
ROOT = path_of(os.environ.get("FLASHLADDER_ROOT") or str(CARRIED if CARRIED.is_dir() else PACKAGE.parent)).resolve()
KERNELS = ROOT / "kernels"
ITERATIONS = ROOT / "iterations"
CONFIGS = ROOT / "configs"
RESULTS = ROOT / "results"
# What is made goes into the checkout, or where there is none into the working folder.
BUILD = path_of(os.environ.get("FLASHLADDER_BUILD") or str("build" if ROOT == CARRIED else ROOT / "build")).absolute()
