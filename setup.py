"""What it is: the one step of packaging that pyproject.toml cannot say; everything else stands there.

Why: the ladder is data (kernels, iterations, configurations, locks) beside the package, where people read and edit it.
An installed package has no checkout around it, so that a wheel carries these files inside, under
``flashladder/carried/`` (`flashladder.paths`). An editable installation finds the checkout itself.

Run: by any build front end, for example ``uv build --wheel``.
"""

from __future__ import annotations

from pathlib import Path
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CARRIED = ("configs", "iterations", "kernels", "requirements", "results/locks", "results/published", "tasks.py")
NO_FILES = shutil.ignore_patterns("__pycache__", ".*")


class BuildPy(build_py):
    """Also copies the ladder's files into the package that is built, where that is not this folder itself."""

    def run(self) -> None:
        """Builds, then copies."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "flashladder" / "carried"
        shutil.rmtree(target, ignore_errors=True)
        for name in CARRIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=NO_FILES)
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target / name)


setup(cmdclass={"build_py": BuildPy})
