"""A copy of the checkout for tests that add files to it; what is compiled lies in the checkout's own store."""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import subprocess
import sys

from flashladder.paths import BUILD, ROOT

FOLDERS = ("iterations", "kernels", "configs", "results", "docs", "analysis")
FILES = ("noxfile.py", "tasks.py", "README.md", "CHANGELOG.md", "pyproject.toml")
LEFT_OUT = ("__pycache__", "ablation*.json.gz", "toolchain.json.gz", "tune.json.gz")  # sweeps that take long to draw


def copied(root: Path, *more: str) -> Path:
    """Fills `root` with `FOLDERS`, `more` folders and `FILES`."""
    for name in (*FOLDERS, *more):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for name in FILES:
        shutil.copy(ROOT / name, root / name)
    (root / "build").mkdir()
    for name in ("store", "counts"):
        (BUILD / name).mkdir(parents=True, exist_ok=True)
        (root / "build" / name).symlink_to(BUILD / name)
    return root


def environment(checkout: Path, package: Path) -> dict[str, str]:
    """Variables with which Python in a copy takes the package in the folder `package`."""
    return {"FLASHLADDER_ROOT": str(checkout), "PYTHONPATH": str(package), "COLUMNS": "80", "OMP_NUM_THREADS": "1"}


def ran(checkout: Path, package: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs Python in a copy with the package in the folder `package`; it must end with `code`."""
    own = environment(checkout, package)
    done = subprocess.run(
        [sys.executable, *words], cwd=checkout, env=os.environ | own, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done
