"""Where things lie: the package, the checkout and its folders."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("FLASHLADDER_ROOT") or PACKAGE.parent).resolve()
KERNELS = ROOT / "kernels"
ITERATIONS = ROOT / "iterations"
CONFIGS = ROOT / "configs"
RESULTS = ROOT / "results"
BUILD = ROOT / "build"
